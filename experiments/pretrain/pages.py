"""Page images from boxes, and the page reader's own pretraining: restore the page, hidden patches too, as DiT does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from dice import Dice
from torch import Tensor, nn
from torch.nn import functional

from simfl.models.base import seeded
from simfl.models.vt5_network import VT5Network
from simfl.seeds import seed_for


def page_images(boxes: Tensor, present: Tensor, ink: Tensor, size: int) -> Tensor:
    """Grey pages [B, 3, size, size] (uint8): white, and as dark as `ink` [B, 1, 1] (0 … 1) where a word's box lies.

    `boxes` [B, W, 4] in thousandths, `present` [B, W] 0 or 1; a pixel is shaded by how much of it a box covers.
    """
    edge = torch.arange(size, device=boxes.device)
    scaled = boxes.float() * (size / 1000.0)
    left, top, right, bottom = scaled[..., None].unbind(2)
    across = (torch.minimum(right, edge + 1.0) - torch.maximum(left, edge.float())).clamp(0, 1)
    down = (torch.minimum(bottom, edge + 1.0) - torch.maximum(top, edge.float())).clamp(0, 1) * present[..., None]
    shade = torch.matmul(down.transpose(1, 2), across).clamp(0, 1) * ink
    return (255.0 * (1.0 - shade)).round().to(torch.uint8)[:, None].expand(-1, 3, -1, -1)


def train_reader(
    network: VT5Network, draw_pages: Callable[[], Tensor], steps: int, learning_rate: float, dice: Dice
) -> list[float]:
    """Train `network.vision` alone: one patch of five is greyed out, a linear layer (thrown away) restores all of them.

    `draw_pages()` gives a batch of pages, `dice` hides patches. Returns the mean squared error over the variance of the
    pages, every 50 steps.
    """
    vision = network.vision
    patch = vision.config.patch_size
    with seeded(seed_for("pretrain", "reader")):
        restore = nn.Linear(vision.config.hidden_size, patch * patch).to(next(vision.parameters()).device)
    optimizer = torch.optim.AdamW([*vision.parameters(), *restore.parameters()], lr=learning_rate, weight_decay=0.01)
    curve = []
    for step in range(steps):
        pages = draw_pages()
        target = functional.unfold(1.0 - pages[:, :1].float() / 255.0, patch, stride=patch).transpose(1, 2)
        hidden = dice.uniform(*target.shape[:2]) < 0.2
        side = pages.shape[-1] // patch
        veil = hidden.reshape(-1, 1, side, side).repeat_interleave(patch, 2).repeat_interleave(patch, 3)
        seen = network.encode_page(torch.where(veil, torch.full_like(pages, 128), pages))[:, 1:]
        loss = ((restore(seen) - target) ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 50 == 49 or step == steps - 1:
            curve.append(round(float(loss.detach() / target.var()), 3))
    return curve
