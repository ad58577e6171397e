"""The network of FeDocVQA (Nguyen et al. 2024): a T5 whose words carry the patches under them, as in UDOP (2023).

    word   = T5 embedding + the patch under its centre + box            a patch under no word = patch + token + box
    encoder reads [words, patches under no word, padding] with biases of distance: in the text, across, down

A word without a position (question, end: its box is empty or the whole page) carries no patch. In the published code
such words hide the first patch; here they hide none. Shapes: B examples, L text tokens, N patches, d width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from simfl.models.base import constants
from simfl.models.pair_bias import pair_bias
from simfl.models.prompt import insert_prompt, insert_value
from simfl.models.t5_reader import T5Reader, position_bias

TABLE_ROWS = 1024  # of each box table
SCALE = 1000  # of the integer boxes that objectives give
DISTANCE = 100  # steps across a page, and the largest distance that is distinguished
BUCKETS = 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as in MAE's training


class BoxTables(nn.Module):
    """Sum of rows of X for left and right and of Y for top and bottom: 1,572,864 parameters of width 768."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.x = nn.Embedding(TABLE_ROWS, width)
        self.y = nn.Embedding(TABLE_ROWS, width)
        for table in (self.x, self.y):  # drawn as T5's tables of distance: drawn as words, positions would dominate
            nn.init.normal_(table.weight, std=width**-0.5)

    def forward(self, boxes: Tensor) -> Tensor:
        """Map boxes in [0, 1], [B, S, 4], to [B, S, d]."""
        left, top, right, bottom = (boxes.clamp(0.0, 1.0) * (TABLE_ROWS - 1)).long().unbind(-1)
        return self.x(left) + self.y(top) + self.x(right) + self.y(bottom)


class BoxLinear(nn.Linear):
    """A linear layer of the four coordinates, as in the paper."""

    def __init__(self, width: int) -> None:
        super().__init__(4, width)


class PatchToken(nn.Module):
    """A trained vector added to every patch under no word."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, 1, width).normal_(std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, N, d] to [B, N, d]."""
        return x + self.weight


BOXES: dict[str, type[BoxTables] | type[BoxLinear]] = {"tables": BoxTables, "linear": BoxLinear}


@dataclass(frozen=True)
class PageSettings:
    """Sizes of page patches and box embeddings."""

    image_size: int
    patch_size: int
    boxes: Literal["tables", "linear"]

    @property
    def side(self) -> int:
        """Patches in a row."""
        return self.image_size // self.patch_size


class LayoutT5Network(T5Reader):
    """T5, a patch embedding, a box embedding, a token that marks patches, and biases across and down."""

    def __init__(self, t5: T5Config, page: PageSettings, *, tied: bool, bf16: bool) -> None:
        super().__init__(t5, tied=tied, bf16=bf16)
        self.side, size = page.side, page.patch_size
        self.patches = nn.Conv2d(3, t5.d_model, size, size)
        nn.init.normal_(self.patches.weight, std=(3 * size**2 * t5.d_model) ** -0.5)  # small against words, like boxes
        self.patch_token = PatchToken(t5.d_model)
        self.box = BOXES[page.boxes](t5.d_model)
        self.across = nn.Embedding(BUCKETS, t5.num_heads)
        self.down = nn.Embedding(BUCKETS, t5.num_heads)
        for table in (self.across, self.down):
            nn.init.normal_(table.weight, std=t5.d_model**-0.5)
        self.encoder_dropout = nn.Dropout(t5.dropout_rate)
        self.decoder_dropout = nn.Dropout(t5.dropout_rate)
        self.prompts = nn.ModuleDict()

    def embed(
        self, input_ids: Tensor, boxes: Tensor, attention_mask: Tensor, pixel_values: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return words with their patches, then the patches under no word, then padding, [B, L + N, d]; mask; bias.

        Prompts have no position: those of the text precede the words, those of the image precede the patches.
        """
        boxes = insert_value(self.prompts, "text", boxes, 0, 0)
        page_box = constants((0, 0, SCALE, SCALE), boxes)
        visible = insert_value(self.prompts, "text", attention_mask.to(torch.float32), 1.0, 0)
        placed = visible.bool() & ~(boxes == page_box).all(-1) & ~(boxes == 0).all(-1)
        place = boxes.to(torch.float32) / SCALE * placed[..., None]
        tokens = insert_prompt(self.prompts, "text", self.t5.shared(input_ids), 0)
        if pixel_values is not None:
            patches = self.embed_patches(pixel_values)
            cell = self._cells(place)
            number = torch.arange(patches.shape[1], device=cell.device)
            under = _rows(patches, cell) * placed[..., None]
            used = ((cell[..., None] == number) & placed[..., None]).any(1)
            order = (used.long() * len(number) + number).sort(-1).indices  # unused patches first, in their order
            free = 1.0 - used.gather(1, order).to(torch.float32)
            left = self.patch_token(patches.gather(1, order[..., None].expand_as(patches)) * free[..., None])
            left = insert_prompt(self.prompts, "image", left, 0)
            tokens = torch.cat([tokens + under, left.to(tokens.dtype)], 1)
            grid = self._grid(number).expand(len(order), -1, -1)
            grid = grid.gather(1, order[..., None].expand(-1, -1, 4)) * free[..., None]
            place = torch.cat([place, insert_value(self.prompts, "image", grid, 0.0, 0)], 1)
            visible = torch.cat([visible, insert_value(self.prompts, "image", free, 1.0, 0)], 1)
        return tokens + self.box(place), visible, self._bias(place)

    def embed_patches(self, pixel_values: Tensor) -> Tensor:
        """Map uint8 pages [B, 3, H, W], normalized as MAE's images, to patches [B, N, d]."""
        mean, std = (constants(v, pixel_values, torch.float32)[:, None, None] for v in (MEAN, STD))
        return self.patches((pixel_values.to(torch.float32) / 255.0 - mean) / std).flatten(2).transpose(1, 2)

    def _cells(self, place: Tensor) -> Tensor:
        """Return the number of the patch under the centre of each box, [B, L]."""
        x, y = (place[..., axis] + place[..., axis + 2] for axis in (0, 1))
        column, row = ((centre / 2.0 * self.side).floor().long().clamp(0, self.side - 1) for centre in (x, y))
        return row * self.side + column

    def _grid(self, number: Tensor) -> Tensor:
        """Return the boxes of patches by number, [N, 4]."""
        column, row = (number % self.side).float(), (number // self.side).float()
        return torch.stack([column, row, column + 1, row + 1], -1) / self.side

    def _bias(self, place: Tensor) -> Tensor:
        """Return the sum of the biases of distance in the text, across and down, [B, H, S, S].

        Across and down use T5's buckets over hundredths of the page. Under autocast the bias is bfloat16, as the scores
        are.
        """
        tables = tuple(own.weight if own.weight.dim() == 3 else own.weight[None] for own in (self.across, self.down))
        clients = max(map(len, tables))
        across, down = (self._buckets(place, axis).unflatten(0, (clients, -1)) for axis in (0, 1))
        dtype = torch.bfloat16 if self.bf16 and place.is_cuda else tables[0].dtype
        first, second = (table.expand(clients, -1, -1) for table in tables)
        page = pair_bias((first, second), (across, down), dtype)
        length = place.shape[1]
        text = position_bias(self.t5.encoder, length, length).to(dtype)
        return (page + text[:, None]).flatten(0, 1)

    def _buckets(self, place: Tensor, axis: int) -> Tensor:
        """Return the bucket of the distance between the centres of each two words along an axis, [B, S, S].

        The small addend keeps a whole hundredth from being truncated to the one below.
        """
        centre = (place[..., axis] + place[..., axis + 2]) * (DISTANCE / 2)
        steps = centre[:, None, :] - centre[:, :, None]
        steps = (steps + steps.sign() * 1e-3).long() + DISTANCE
        distances = torch.arange(-DISTANCE, DISTANCE + 1, device=place.device)  # all that occur on a page
        buckets = T5Attention._relative_position_bucket(distances, True, BUCKETS, DISTANCE)
        return functional.embedding(steps, buckets[:, None]).squeeze(-1)


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Return rows `index` [B, L] of each example's `table` [B, N, d]: [B, L, d].

    `gather` would do the same, but on a GPU its gradient adds in no fixed order.
    """
    first = torch.arange(len(table), device=index.device)[:, None] * table.shape[1]
    return functional.embedding(index + first, table.flatten(0, 1))
