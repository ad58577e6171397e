"""The rows of a drawn document, the positions of its words, and their reading order.

A document is a grid of R rows x 4 cells x 4 words. Every row is one of

    one     label value                       head    label label label …     (a table: its rows of values follow)
    two     label value label value           cells   value value value …
    noise   words that no question asks for
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from device_random import DeviceRandom
from torch import Tensor

ONE, TWO, NOISE, HEAD, CELLS = range(5)
COLUMNS, WORDS = 4, 4  # cells a row, words a cell
SHARES = (0.35, 0.5, 0.75)  # cumulative shares of rows that are `one`, `two`, `noise`; the others are heads


@dataclass(frozen=True)
class Grid:
    """The kind of each row, its number of columns, and the row of its table's head: each [B, R]."""

    kind: Tensor
    columns: Tensor
    head: Tensor

    @property
    def column_index(self) -> Tensor:
        """Return the indices of the columns, [4]."""
        return torch.arange(COLUMNS, device=self.kind.device)

    def several(self) -> Tensor:
        """Return whether the table of each row has more than one row of values, [B, R]."""
        counts = torch.zeros_like(self.kind).scatter_add(1, self.head, (self.kind == CELLS).long())
        return counts.gather(1, self.head) > 1

    def pairs(self) -> Tensor:
        """Return which rows have labels with values, [B, R, 1]."""
        return ((self.kind == ONE) | (self.kind == TWO))[..., None]

    def labels(self) -> Tensor:
        """Return which cells contain a label, [B, R, 4]."""
        return (self.pairs() & (self.column_index % 2 == 0)) | (self.kind == HEAD)[..., None]

    def present(self) -> Tensor:
        """Return which cells contain words, [B, R, 4]."""
        kind, noise = self.kind, 1 + self.columns % 2
        used = torch.where(kind == ONE, 2, torch.where(kind == TWO, 4, torch.where(kind == NOISE, noise, self.columns)))
        return self.column_index < used[..., None]


def draw_grid(random: DeviceRandom, batch: int, rows: int) -> Grid:
    """Draw the rows from the top: the head of a table is followed by one row of values, or by two to five."""
    kind, columns, head = (torch.zeros(batch, rows, dtype=torch.int64, device=random.device) for _ in range(3))
    left = torch.zeros(batch, dtype=torch.int64, device=random.device)
    roll, width = random.uniform(batch, rows), random.integers(1, COLUMNS + 1, batch, rows)
    height = torch.where(random.uniform(batch, rows) < 0.5, 1, random.integers(2, 6, batch, rows))
    shares = torch.tensor(SHARES, device=random.device)
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


def draw_order(random: DeviceRandom, batch: int, rows: int) -> Tensor:
    """Draw the reading rank [B, R, 4]: by rows; in one of seven documents by halves of the page."""
    row = torch.arange(rows, device=random.device)[:, None]
    column = torch.arange(COLUMNS, device=random.device)
    by_rows, by_halves = row * COLUMNS + column, (column // 2) * rows * COLUMNS + row * COLUMNS + column
    return torch.where(random.uniform(batch, 1, 1) < 1 / 7, by_halves, by_rows)


def draw_boxes(random: DeviceRandom, grid: Grid, words: Tensor, chars: Tensor) -> Tensor:
    """Draw boxes [B, R, 4, 4, 4] of `words` [B, R, 4, 4] on a page of 1000 by 1000; `chars` are the word lengths."""
    batch, rows = grid.kind.shape
    advance = 6.0 + 8.0 * random.uniform(batch, 1, 1, 1)  # width of a character
    size = chars[words.clamp_min(0)] * (words >= 0) * advance
    space = advance * (words >= 0)
    reach = (size + space).cumsum(-1)
    start = reach - size - space
    left = _cells(random, grid, reach[..., -1], advance[..., 0])[..., None] + start
    height = 10 + 12 * random.uniform(batch, 1)
    step = height * (1.15 + random.uniform(batch, 1)) + (grid.kind != CELLS) * 14 * random.uniform(batch, rows)
    y = step.cumsum(1) - step + 30 + 120 * random.uniform(batch, 1)
    y = y * (960 / y[:, -1:]).clamp_max(1.0)
    top = y[..., None, None].expand_as(left)
    box = torch.stack([left, top, left + size, top + height[..., None, None]], -1)
    return (box + 2 * random.uniform(*box.shape[:-1], 1)).clamp(0, 1000).long()


def _cells(random: DeviceRandom, grid: Grid, width: Tensor, advance: Tensor) -> Tensor:
    """Draw left edges [B, R, 4] of cells whose words take `width` [B, R, 4]; most rows follow the document's style."""
    batch, rows = grid.kind.shape
    column, kind = grid.column_index, grid.kind[..., None]
    style, own = random.uniform(batch, 1, 3), random.uniform(batch, rows, 3)
    look = torch.where(random.uniform(batch, rows, 1) < 0.7, style, own)
    margin = torch.where(kind == ONE, 40 + 500 * look[..., :1], 30 + 60 * look[..., :1])
    pairs = margin + torch.where(column % 2 == 1, 110 + 220 * look[..., 1:2], 0.0) + 480 * (column // 2)
    pitch = 940 / grid.columns.clamp_min(1)[..., None]
    flush_right = 30 + (column + 1) * pitch - width - 15
    table = torch.where(look[..., :1] < 0.35, flush_right, 30 + column * pitch + 0.25 * pitch * look[..., 2:])
    noise = 30 + 700 * own[..., :1] * (column == 0) + 500 * column
    x = torch.where(kind >= HEAD, table, torch.where(kind == NOISE, noise, pairs))
    head = grid.head[..., None]
    right = look[..., :1].gather(1, head) < 0.35  # values are aligned as the head of their table
    under = torch.where(right, flush_right, table.gather(1, head.expand_as(table)))
    x = torch.where(kind == CELLS, under, x)
    after_label = (x[..., 0] + width[..., 0] + advance[..., 0])[..., None]
    return torch.where((kind == ONE) & (column == 1), torch.maximum(x, after_label), x)
