"""The rows of a drawn document, and where its words stand and are read.

A document is a grid of R rows x 4 cells x 4 words. Every row is one of

    one     label value                       head    label label label …     (a table: its rows of values follow)
    two     label value label value           cells   value value value …
    noise   words nobody asks for
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from dice import Dice
from torch import Tensor

ONE, TWO, NOISE, HEAD, CELLS = range(5)
COLUMNS, WORDS = 4, 4  # cells a row, words a cell
SHARES = (0.35, 0.5, 0.75)  # of rows that are `one`, `one` or `two`, not a table's head


@dataclass(frozen=True)
class Grid:
    """`kind` of each row, its `columns`, the row of its table's `head`: each [B, R]."""

    kind: Tensor
    columns: Tensor
    head: Tensor

    @property
    def place(self) -> Tensor:
        """The columns' numbers, [4]."""
        return torch.arange(COLUMNS, device=self.kind.device)

    def several(self) -> Tensor:
        """Whether the table that a row belongs to has more than one row of values, [B, R]."""
        counts = torch.zeros_like(self.kind).scatter_add(1, self.head, (self.kind == CELLS).long())
        return counts.gather(1, self.head) > 1

    def pairs(self) -> Tensor:
        """Rows of labels with their values, [B, R, 1]."""
        return ((self.kind == ONE) | (self.kind == TWO))[..., None]

    def labels(self) -> Tensor:
        """Which cells hold a label, [B, R, 4]."""
        return (self.pairs() & (self.place % 2 == 0)) | (self.kind == HEAD)[..., None]

    def present(self) -> Tensor:
        """Which cells hold anything, [B, R, 4]."""
        kind, noise = self.kind, 1 + self.columns % 2
        used = torch.where(kind == ONE, 2, torch.where(kind == TWO, 4, torch.where(kind == NOISE, noise, self.columns)))
        return self.place < used[..., None]


def draw_grid(dice: Dice, batch: int, rows: int) -> Grid:
    """Rows from the top: a table's head is followed by one row of values, or by two to five."""
    kind, columns, head = (torch.zeros(batch, rows, dtype=torch.int64, device=dice.device) for _ in range(3))
    left = torch.zeros(batch, dtype=torch.int64, device=dice.device)
    roll, width = dice.uniform(batch, rows), dice.integers(1, COLUMNS + 1, batch, rows)
    height = torch.where(dice.uniform(batch, rows) < 0.5, 1, dice.integers(2, 6, batch, rows))
    shares = torch.tensor(SHARES, device=dice.device)
    for row in range(rows):
        inside = left > 0
        kind[:, row] = torch.where(inside, CELLS, torch.bucketize(roll[:, row].contiguous(), shares))
        columns[:, row] = torch.where(inside, columns[:, row - 1], width[:, row])
        head[:, row] = torch.where(inside, head[:, row - 1], row)
        left = torch.where(kind[:, row] == HEAD, height[:, row], (left - 1).clamp_min(0))
    last = kind == HEAD
    last[:, :-1] = False  # a head without rows is noise
    kind = torch.where(last, NOISE, kind)
    idle = ~((kind == ONE) | (kind == TWO) | (kind == CELLS)).any(1)
    kind[:, -1] = torch.where(idle, ONE, kind[:, -1])
    return Grid(kind, columns, head)


def draw_order(dice: Dice, batch: int, rows: int) -> Tensor:
    """Reading rank [B, R, 4]: by rows, in one document of seven by halves of the page."""
    row = torch.arange(rows, device=dice.device)[:, None]
    place = torch.arange(COLUMNS, device=dice.device)
    by_rows, by_halves = row * COLUMNS + place, (place // 2) * rows * COLUMNS + row * COLUMNS + place
    return torch.where(dice.uniform(batch, 1, 1) < 1 / 7, by_halves, by_rows)


def draw_boxes(dice: Dice, grid: Grid, words: Tensor, chars: Tensor) -> Tensor:
    """Boxes [B, R, 4, 4, 4] of `words` [B, R, 4, 4] on a page of 1000 by 1000; `chars` is the length of each word."""
    batch, rows = grid.kind.shape
    advance = 6.0 + 8.0 * dice.uniform(batch, 1, 1, 1)  # width of a character
    size = chars[words.clamp_min(0)] * (words >= 0) * advance
    space = advance * (words >= 0)
    reach = (size + space).cumsum(-1)
    start = reach - size - space
    left = _cells(dice, grid, reach[..., -1], advance[..., 0])[..., None] + start
    height = 10 + 12 * dice.uniform(batch, 1)
    step = height * (1.15 + dice.uniform(batch, 1)) + (grid.kind != CELLS) * 14 * dice.uniform(batch, rows)
    y = step.cumsum(1) - step + 30 + 120 * dice.uniform(batch, 1)
    y = y * (960 / y[:, -1:]).clamp_max(1.0)
    top = y[..., None, None].expand_as(left)
    box = torch.stack([left, top, left + size, top + height[..., None, None]], -1)
    return (box + 2 * dice.uniform(*box.shape[:-1], 1)).clamp(0, 1000).long()


def _cells(dice: Dice, grid: Grid, width: Tensor, advance: Tensor) -> Tensor:
    """Left edges [B, R, 4] of cells whose words take `width` [B, R, 4]; most rows follow their document's style."""
    batch, rows = grid.kind.shape
    place, kind = grid.place, grid.kind[..., None]
    style, own = dice.uniform(batch, 1, 3), dice.uniform(batch, rows, 3)
    look = torch.where(dice.uniform(batch, rows, 1) < 0.7, style, own)
    margin = torch.where(kind == ONE, 40 + 500 * look[..., :1], 30 + 60 * look[..., :1])
    pairs = margin + torch.where(place % 2 == 1, 110 + 220 * look[..., 1:2], 0.0) + 480 * (place // 2)
    pitch = 940 / grid.columns.clamp_min(1)[..., None]
    flush_right = 30 + (place + 1) * pitch - width - 15
    table = torch.where(look[..., :1] < 0.35, flush_right, 30 + place * pitch + 0.25 * pitch * look[..., 2:])
    noise = 30 + 700 * own[..., :1] * (place == 0) + 500 * place
    x = torch.where(kind >= HEAD, table, torch.where(kind == NOISE, noise, pairs))
    head = grid.head[..., None]
    right = look[..., :1].gather(1, head) < 0.35  # values stand as their table's head does
    under = torch.where(right, flush_right, table.gather(1, head.expand_as(table)))
    x = torch.where(kind == CELLS, under, x)
    after_label = (x[..., 0] + width[..., 0] + advance[..., 0])[..., None]
    return torch.where((kind == ONE) & (place == 1), torch.maximum(x, after_label), x)
