"""Documents drawn on the device: key-value lines, tables and noise as words with boxes, and one question each.

A document is a grid of R rows x 4 cells x 4 words. Every row is one of

    one     label value                       head    label label label …     (a table: its rows of values follow)
    two     label value label value           cells   value value value …
    noise   words nobody asks for

The question names a label (and, in a table of several rows, the row's first cell); the answer is the value's words.
Reading order is by rows, in some documents by columns. All is vectorised over the batch; nothing leaves the device.
"""

from __future__ import annotations

import math

import torch
from encoding import Asked, Encoded, encode
from questions import split, templates
from tables import Table
from torch import Tensor

ONE, TWO, NOISE, HEAD, CELLS = range(5)
COLUMNS, WORDS = 4, 4  # cells a row, words a cell
PROMPT = 34  # pieces kept free for the question when a value is chosen
VALUES = (  # how likely, and the kinds of a value's words
    (20, "amount"), (4, "currency amount"), (4, "amount currency"), (14, "date"), (3, "day month year"), (16, "code"),
    (3, "code code"), (4, "count"), (3, "percent"), (6, "name name"), (3, "name name name"), (6, "word"),
    (6, "word word"), (3, "common word"), (3, "common common common"), (5, "nonce"), (4, "nonce nonce"),
    (3, "name count"), (2, "mail"), (4, "group group group group"), (4, "count common"),
)  # fmt: skip
LABELS = ((6, "common"), (3, "word"), (1, "nonce"), (1, "name"))


class Drawer:
    """Draws batches from a table; every number comes from one generator on the table's device."""

    def __init__(self, table: Table, mark_ids: dict[str, int], seed: int) -> None:
        """`mark_ids`: the pieces of ":" and "?" glued to a word."""
        self.table, self.marks = table, mark_ids
        self.device = table.pieces.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        index = {
            word: row + table.kinds["prompt"][0] for row, word in enumerate(table.words[slice(*table.kinds["prompt"])])
        }
        banks = [[split(text) for text in bank] for bank in templates()]
        rows = [part for bank in banks for part in bank]
        self.plain = len(banks[0])  # templates below this number ask without a row
        self.before = self._ragged([["question:", *row[0]] for row in rows], index)
        self.between = self._ragged([row[1] for row in rows], index)
        self.after = self._ragged([[*row[2], "context:"] for row in rows], index)
        self.swapped = torch.tensor([row[3] for row in rows], device=self.device)
        mark = [[mark_ids.get(text, 0) for text in row[4].split("|")] for row in rows]
        self.glued = torch.tensor(mark, device=self.device)
        self.value_kinds = self._kinds(VALUES)
        self.label_kinds = self._kinds(LABELS)

    def _ragged(self, rows: list[list[str]], index: dict[str, int]) -> Tensor:
        width = max(map(len, rows))
        return torch.tensor(
            [[index[word] for word in row] + [-1] * (width - len(row)) for row in rows], device=self.device
        )

    def _kinds(self, spec: tuple[tuple[int, str], ...]) -> tuple[Tensor, Tensor]:
        """Weights [V] and word ranges [V, 4, 2] (start, size; size 0 is no word)."""
        spans = torch.zeros(len(spec), WORDS, 2, dtype=torch.int64)
        for row, (_, text) in enumerate(spec):
            for column, kind in enumerate(text.split()):
                start, stop = self.table.kinds[kind]
                spans[row, column] = torch.tensor([start, stop - start])
        return torch.tensor([float(weight) for weight, _ in spec], device=self.device), spans.to(self.device)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1)."""
        return torch.rand(shape, generator=self.generator, device=self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device)

    def _pick(self, weights: Tensor, count: int) -> Tensor:
        """`count` positions drawn by weight."""
        return torch.bucketize(self.uniform(count), weights.cumsum(0) / weights.sum()).clamp_max(len(weights) - 1)

    def _some(self, kinds: tuple[Tensor, Tensor], *shape: int) -> Tensor:
        """Words [*shape, 4] of kinds drawn by weight."""
        weights, spans = kinds
        count = math.prod(shape)
        span = spans[self._pick(weights, count)].reshape(*shape, WORDS, 2)
        words = span[..., 0] + (self.uniform(*shape, WORDS) * span[..., 1]).long()
        return torch.where(span[..., 1] > 0, words, -1)

    def rows(self, batch: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Kind, columns and row of the table's head, each [B, R]."""
        kind, columns, head = (torch.zeros(batch, rows, dtype=torch.int64, device=self.device) for _ in range(3))
        left = torch.zeros(batch, dtype=torch.int64, device=self.device)
        roll, width = self.uniform(batch, rows), self.integers(1, COLUMNS + 1, batch, rows)
        height = torch.where(self.uniform(batch, rows) < 0.5, 1, self.integers(2, 6, batch, rows))
        for row in range(rows):
            inside = left > 0
            fresh = torch.bucketize(roll[:, row].contiguous(), torch.tensor([0.35, 0.5, 0.75], device=self.device))
            kind[:, row] = torch.where(inside, CELLS, fresh)
            starts = kind[:, row] == HEAD
            columns[:, row] = torch.where(inside, columns[:, row - 1], width[:, row])
            head[:, row] = torch.where(inside, head[:, row - 1], row)
            left = torch.where(starts, height[:, row], (left - 1).clamp_min(0))
        last = kind == HEAD
        last[:, :-1] = False  # a head without rows is noise
        kind = torch.where(last, NOISE, kind)
        idle = ~((kind == ONE) | (kind == TWO) | (kind == CELLS)).any(1)
        kind[:, -1] = torch.where(idle, ONE, kind[:, -1])
        return kind, columns, head

    def draw(self, batch: int, rows: int, length: int) -> Encoded:
        """`batch` documents of `rows` rows with a question each, encoded to `length` pieces."""
        kind, columns, head = self.rows(batch, rows)
        place = torch.arange(COLUMNS, device=self.device)
        several = self._several(kind, head)
        label_words = self._labels(batch, rows)
        value_words = self._some(self.value_kinds, batch, rows, COLUMNS)
        is_label = (((kind == ONE) | (kind == TWO))[..., None] & (place % 2 == 0)) | (kind == HEAD)[..., None]
        used = torch.where(
            kind == ONE, 2, torch.where(kind == TWO, 4, torch.where(kind == NOISE, 1 + columns % 2, columns))
        )
        present = place < used[..., None]
        words = torch.where(is_label[..., None], label_words, value_words)
        words = torch.where(present[..., None], words, -1)
        colon = (self.uniform(batch, 1, 1) < 0.4) & is_label & (kind != HEAD)[..., None]
        marks = self._last(words) * (colon[..., None] * self.marks[":"])
        boxes = self._boxes(words, kind, columns, head)
        order = self._order(batch, rows)
        target = self._target(kind, several, present, is_label, words, marks, order, length)
        question, question_marks, answer = self._question(target, words, label_words, kind, head, several)
        rank = order.flatten(1).argsort(1)[..., None].expand(-1, -1, WORDS)
        words = words.flatten(1, 2).gather(1, rank).flatten(1)
        marks = marks.flatten(1, 2).gather(1, rank).flatten(1)
        boxes = boxes.flatten(1, 2).gather(1, rank[..., None].expand(-1, -1, -1, 4)).flatten(1, 2)
        return encode(self.table, Asked(question, question_marks, words, marks, boxes, answer), length)

    def _several(self, kind: Tensor, head: Tensor) -> Tensor:
        """Whether the table that a row belongs to has more than one row of values, [B, R]."""
        counts = torch.zeros_like(kind).scatter_add(1, head, (kind == CELLS).long())
        return counts.gather(1, head) > 1

    def _labels(self, batch: int, rows: int) -> Tensor:
        """Label words [B, R, 4, 4]: one to three words, some of them shared within a document."""
        weights, spans = self.label_kinds
        span = spans[self._pick(weights, batch * rows * COLUMNS * 3)][:, 0]
        words = (span[:, 0] + (self.uniform(len(span)) * span[:, 1]).long()).reshape(batch, rows, COLUMNS, 3)
        pool = words[:, 0, 0, :2].reshape(batch, 1, 1, 2)
        shared = torch.where(self.uniform(batch, rows, COLUMNS) < 0.5, pool[..., 0], pool[..., 1])
        words[..., 1] = torch.where(self.uniform(batch, rows, COLUMNS) < 0.4, shared, words[..., 1])
        number = torch.bucketize(self.uniform(batch, rows, COLUMNS), torch.tensor([0.45, 0.85], device=self.device))
        words = torch.where(torch.arange(3, device=self.device) <= number[..., None], words, -1)
        return torch.cat([words, torch.full_like(words[..., :1], -1)], -1)

    @staticmethod
    def _last(words: Tensor) -> Tensor:
        """1 at the last present word of each cell."""
        here = (words >= 0).long()
        following = torch.cat([here[..., 1:], torch.zeros_like(here[..., :1])], -1)
        return here * (1 - following)

    def _boxes(self, words: Tensor, kind: Tensor, columns: Tensor, head: Tensor) -> Tensor:
        """Boxes [B, R, 4, 4, 4] on a page of 1000 by 1000."""
        batch, rows = kind.shape
        advance = 6.0 + 8.0 * self.uniform(batch, 1, 1, 1)  # width of a character
        size = self.table.chars[words.clamp_min(0)] * (words >= 0) * advance
        reach = (size + advance * (words >= 0)).cumsum(-1)
        start = reach - size - advance * (words >= 0)
        width = reach[..., -1]
        place = torch.arange(COLUMNS, device=self.device)
        style, own = self.uniform(batch, 1, 3), self.uniform(batch, rows, 3)
        look = torch.where(self.uniform(batch, rows, 1) < 0.7, style, own)
        pairs = torch.where(kind == ONE, 40 + 500 * look[..., 0], 30 + 60 * look[..., 0])
        gap = 110 + 220 * look[..., 1]
        left = pairs[..., None] + torch.where(place % 2 == 1, gap[..., None], 0.0) + 480 * (place // 2)
        pitch = 940 / columns.clamp_min(1)[..., None]
        grid = 30 + place * pitch + 0.25 * pitch * look[..., 2:]
        grid = torch.where(look[..., :1] < 0.35, 30 + (place + 1) * pitch - width - 15, grid)
        loose = 30 + 700 * own[..., :1] * (place == 0) + 500 * place
        kinds = kind[..., None]
        x = torch.where(kinds >= HEAD, grid, torch.where(kinds == NOISE, loose, left))
        inherited = head[..., None].expand_as(x)
        x = torch.where(
            (kinds == CELLS) & (look.gather(1, head[..., None].expand_as(look))[..., :1] >= 0.35),
            grid.gather(1, inherited),
            x,
        )
        x = torch.where(
            (kinds == CELLS) & (look.gather(1, head[..., None].expand_as(look))[..., :1] < 0.35),
            30 + (place + 1) * pitch - width - 15,
            x,
        )
        after_label = x[..., 0] + width[..., 0] + advance[..., 0, 0]
        x = torch.where((kinds == ONE) & (place == 1), torch.maximum(x, after_label[..., None]), x)
        height = 10 + 12 * self.uniform(batch, 1)
        step = height * (1.15 + self.uniform(batch, 1)) + (kind != CELLS) * 14 * self.uniform(batch, rows)
        y = step.cumsum(1) - step + 30 + 120 * self.uniform(batch, 1)
        y = y * (960 / y[:, -1:]).clamp_max(1.0)
        left_edge = x[..., None] + start
        top = y[..., None, None].expand_as(left_edge)
        box = torch.stack([left_edge, top, left_edge + size, top + height[..., None, None]], -1)
        return (box + 2 * self.uniform(*box.shape[:-1], 1)).clamp(0, 1000).long()

    def _order(self, batch: int, rows: int) -> Tensor:
        """Reading rank [B, R, 4]: by rows, in one document of seven by halves of the page."""
        row = torch.arange(rows, device=self.device)[:, None]
        place = torch.arange(COLUMNS, device=self.device)
        by_rows, by_halves = row * COLUMNS + place, (place // 2) * rows * COLUMNS + row * COLUMNS + place
        return torch.where(self.uniform(batch, 1, 1) < 1 / 7, by_halves, by_rows)

    def _target(
        self,
        kind: Tensor,
        several: Tensor,
        present: Tensor,
        is_label: Tensor,
        words: Tensor,
        marks: Tensor,
        order: Tensor,
        length: int,
    ) -> Tensor:
        """The cell asked for, [B] as row·4 + column: a value that has one name and whose last piece is read."""
        place = torch.arange(COLUMNS, device=self.device)
        pairs = ((kind == ONE) | (kind == TWO))[..., None] & (place % 2 == 1)
        table = (kind == CELLS)[..., None] & (~several[..., None] | (place > 0))
        allowed = (pairs | table) & present & ~is_label
        pieces = (self.table.length[words.clamp_min(0)] * (words >= 0) + (marks > 0)).sum(-1).flatten(1)
        rank = order.flatten(1).argsort(1)
        reach = pieces.gather(1, rank).cumsum(1).gather(1, rank.argsort(1))
        score = (
            self.uniform(*allowed.flatten(1).shape)
            + allowed.flatten(1).float()
            + (reach <= length - PROMPT).float() * allowed.flatten(1)
        )
        return score.argmax(1)

    def _question(
        self, target: Tensor, words: Tensor, label_words: Tensor, kind: Tensor, head: Tensor, several: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Prompt words and marks [B, Q], answer words [B, 4]."""
        batch = torch.arange(len(target), device=self.device)
        row, column = target // COLUMNS, target % COLUMNS
        in_table = kind[batch, row] == CELLS
        label = torch.where(
            in_table[:, None], words[batch, head[batch, row], column], words[batch, row, (column - 1).clamp_min(0)]
        )
        keyed = in_table & several[batch, row]
        number = torch.where(
            keyed, self.integers(self.plain, len(self.swapped), len(target)), self.integers(0, self.plain, len(target))
        )
        key = torch.where(keyed[:, None], words[batch, row, 0], -1)
        swapped = self.swapped[number][:, None]
        first, second = torch.where(swapped, key, label), torch.where(swapped, label, key)
        glued = self.glued[number]
        ends_second = (second >= 0).any(1, keepdim=True)
        first_mark = torch.where(ends_second, glued[:, :1], glued[:, 1:])
        parts = (self.before[number], first, self.between[number], second, self.after[number])
        marks = [torch.zeros_like(part) for part in parts]
        marks[1] = self._last(first) * first_mark
        marks[3] = self._last(second) * glued[:, 1:]
        return torch.cat(parts, 1), torch.cat(marks, 1), words[batch, row, column]
