"""Page images from boxes, and pretraining of the page reader by reconstruction with masked patches, as in DiT."""

from __future__ import annotations

from collections.abc import Callable

import torch
from device_random import DeviceRandom
from torch import Tensor, nn
from torch.nn import functional

from simfl.models.base import seeded
from simfl.models.vt5_network import VT5Network
from simfl.seeds import seed_for


def page_images(boxes: Tensor, present: Tensor, ink: Tensor, size: int) -> Tensor:
    """Draw grey pages [B, 3, size, size] (uint8): white, with boxes of words as dark as `ink` [B, 1, 1] (0 … 1).

    `boxes` [B, W, 4] are in thousandths, `present` [B, W] is 0 or 1. The shade of a pixel is its share covered by
    boxes.
    """
    edge = torch.arange(size, device=boxes.device)
    scaled = boxes.float() * (size / 1000.0)
    left, top, right, bottom = scaled[..., None].unbind(2)
    across = (torch.minimum(right, edge + 1.0) - torch.maximum(left, edge.float())).clamp(0, 1)
    down = (torch.minimum(bottom, edge + 1.0) - torch.maximum(top, edge.float())).clamp(0, 1) * present[..., None]
    shade = torch.matmul(down.transpose(1, 2), across).clamp(0, 1) * ink
    return (255.0 * (1.0 - shade)).round().to(torch.uint8)[:, None].expand(-1, 3, -1, -1)


def train_reader(
    network: VT5Network, draw_pages: Callable[[], Tensor], steps: int, learning_rate: float, random: DeviceRandom
) -> list[float]:
    """Train `network.vision` only: a fifth of the patches is greyed out, and a temporary linear layer reconstructs all.

    Args:
        network: The network whose page reader is trained.
        draw_pages: Returns a batch of pages, uint8 [B, 3, H, W].
        steps: Number of optimizer steps.
        learning_rate: Of AdamW.
        random: Source of the masks.

    Returns:
        Mean squared error divided by the variance of the pages, every 50 steps.
    """
    vision = network.vision
    patch = vision.config.patch_size
    with seeded(seed_for("pretrain", "reader")):
        reconstruct = nn.Linear(vision.config.hidden_size, patch * patch).to(next(vision.parameters()).device)
    optimizer = torch.optim.AdamW(
        [*vision.parameters(), *reconstruct.parameters()], lr=learning_rate, weight_decay=0.01
    )
    curve = []
    for step in range(steps):
        pages = draw_pages()
        target = functional.unfold(1.0 - pages[:, :1].float() / 255.0, patch, stride=patch).transpose(1, 2)
        masked = random.uniform(*target.shape[:2]) < 0.2
        side = pages.shape[-1] // patch
        mask = masked.reshape(-1, 1, side, side).repeat_interleave(patch, 2).repeat_interleave(patch, 3)
        states = network.encode_page(torch.where(mask, torch.full_like(pages, 128), pages))[:, 1:]
        loss = ((reconstruct(states) - target) ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 50 == 49 or step == steps - 1:
            curve.append(round(float(loss.detach() / target.var()), 3))
    return curve
