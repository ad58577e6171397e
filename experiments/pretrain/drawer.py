"""Documents drawn on the device: key-value lines, tables and noise as words with boxes, with one question each.

The question names a label (and, in a table of several rows, the first cell of the row); the answer is the words of the
value. Everything is vectorized over the batch and stays on the device. grid.py describes the parts of a document.
"""

from __future__ import annotations

import math

import torch
from device_random import DeviceRandom
from encoding import EncodedBatch, QuestionBatch, encode
from grid import CELLS, COLUMNS, HEAD, WORDS, Grid, draw_boxes, draw_grid, draw_order
from questions import split_template, templates
from tables import WordTable
from torch import Tensor

PROMPT = 34  # tokens reserved for the question when a value is chosen
VALUES = (  # weight, and the kinds of the words of a value
    (20, "amount"), (4, "currency amount"), (4, "amount currency"), (14, "date"), (3, "day month year"), (16, "code"),
    (3, "code code"), (4, "count"), (3, "percent"), (6, "name name"), (3, "name name name"), (6, "word"),
    (6, "word word"), (3, "common word"), (3, "common common common"), (5, "nonce"), (4, "nonce nonce"),
    (3, "name count"), (2, "mail"), (4, "group group group group"), (4, "count common"),
)  # fmt: skip
LABELS = ((6, "common"), (3, "word"), (1, "nonce"), (1, "name"))


class Drawer:
    """Generator of batches from a word table, with one random generator on the device of the table."""

    def __init__(self, table: WordTable, mark_ids: dict[str, int], seed: int) -> None:
        """Prepare the templates. `mark_ids` are the tokens of ":" and "?" at the end of a word."""
        self.table, self.marks = table, mark_ids
        self.device = table.tokens.device
        self.random = DeviceRandom(self.device, seed)
        first, stop = table.kinds["prompt"]
        index = {table.words[row]: row for row in range(first, stop)}
        banks = [[split_template(text) for text in bank] for bank in templates()]
        rows = [part for bank in banks for part in bank]
        self.plain = len(banks[0])  # templates below this index do not name a row
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
        """Return weights [V] and word ranges [V, 4, 2] (start, size; size 0 is no word)."""
        spans = torch.zeros(len(spec), WORDS, 2, dtype=torch.int64)
        for row, (_, text) in enumerate(spec):
            for column, kind in enumerate(text.split()):
                start, stop = self.table.kinds[kind]
                spans[row, column] = torch.tensor([start, stop - start])
        return torch.tensor([float(weight) for weight, _ in spec], device=self.device), spans.to(self.device)

    def _sample_words(self, kinds: tuple[Tensor, Tensor], *shape: int) -> Tensor:
        """Sample words [*shape, 4] of kinds chosen by weight."""
        weights, spans = kinds
        count = math.prod(shape)
        span = spans[self.random.choice(weights, count)].reshape(*shape, WORDS, 2)
        words = span[..., 0] + (self.random.uniform(*shape, WORDS) * span[..., 1]).long()
        return torch.where(span[..., 1] > 0, words, -1)

    def draw(self, batch: int, rows: int, length: int) -> EncodedBatch:
        """Draw `batch` documents of `rows` rows with a question each, encoded to `length` tokens."""
        grid = draw_grid(self.random, batch, rows)
        labels, values = self._labels(batch, rows), self._sample_words(self.value_kinds, batch, rows, COLUMNS)
        words = torch.where(grid.labels()[..., None], labels, values)
        words = torch.where(grid.present()[..., None], words, -1)
        colon = (self.random.uniform(batch, 1, 1) < 0.4) & grid.labels() & (grid.kind != HEAD)[..., None]
        marks = last_word(words) * (colon[..., None] * self.marks[":"])
        boxes = draw_boxes(self.random, grid, words, self.table.chars)
        rank = draw_order(self.random, batch, rows).flatten(1).argsort(1)
        question, question_marks, answer = self._question(self._target(grid, words, marks, rank, length), words, grid)
        cell = rank[..., None].expand(-1, -1, WORDS)
        words = words.flatten(1, 2).gather(1, cell).flatten(1)
        marks = marks.flatten(1, 2).gather(1, cell).flatten(1)
        boxes = boxes.flatten(1, 2).gather(1, cell[..., None].expand(-1, -1, -1, 4)).flatten(1, 2)
        return encode(self.table, QuestionBatch(question, question_marks, words, marks, boxes, answer), length)

    def _labels(self, batch: int, rows: int) -> Tensor:
        """Sample label words [B, R, 4, 4]: one to three words, some of them shared within a document."""
        weights, spans = self.label_kinds
        span = spans[self.random.choice(weights, batch * rows * COLUMNS * 3)][:, 0]
        words = (span[:, 0] + (self.random.uniform(len(span)) * span[:, 1]).long()).reshape(batch, rows, COLUMNS, 3)
        pool = words[:, 0, 0, :2].reshape(batch, 1, 1, 2)
        shared = torch.where(self.random.uniform(batch, rows, COLUMNS) < 0.5, pool[..., 0], pool[..., 1])
        words[..., 1] = torch.where(self.random.uniform(batch, rows, COLUMNS) < 0.4, shared, words[..., 1])
        number = torch.bucketize(
            self.random.uniform(batch, rows, COLUMNS), torch.tensor([0.45, 0.85], device=self.device)
        )
        words = torch.where(torch.arange(3, device=self.device) <= number[..., None], words, -1)
        return torch.cat([words, torch.full_like(words[..., :1], -1)], -1)

    def _target(self, grid: Grid, words: Tensor, marks: Tensor, rank: Tensor, length: int) -> Tensor:
        """Choose the cell to ask for, [B] as row·4 + column: a value with a unique name whose last token is kept."""
        pairs = grid.pairs() & (grid.column_index % 2 == 1)
        table = (grid.kind == CELLS)[..., None] & (~grid.several()[..., None] | (grid.column_index > 0))
        allowed = ((pairs | table) & grid.present() & ~grid.labels()).flatten(1).float()
        num_tokens = (self.table.length[words.clamp_min(0)] * (words >= 0) + (marks > 0)).sum(-1).flatten(1)
        reach = num_tokens.gather(1, rank).cumsum(1).gather(1, rank.argsort(1))
        score = self.random.uniform(*allowed.shape) + allowed + (reach <= length - PROMPT).float() * allowed
        return score.argmax(1)

    def _question(self, target: Tensor, words: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Return prompt words and marks [B, Q], and answer words [B, 4]."""
        batch = torch.arange(len(target), device=self.device)
        row, column = target // COLUMNS, target % COLUMNS
        in_table = grid.kind[batch, row] == CELLS
        above, left = words[batch, grid.head[batch, row], column], words[batch, row, (column - 1).clamp_min(0)]
        label = torch.where(in_table[:, None], above, left)
        keyed = in_table & grid.several()[batch, row]
        with_key = self.random.integers(self.plain, len(self.swapped), len(target))
        number = torch.where(keyed, with_key, self.random.integers(0, self.plain, len(target)))
        key = torch.where(keyed[:, None], words[batch, row, 0], -1)
        swapped, glued = self.swapped[number][:, None], self.glued[number]
        first, second = torch.where(swapped, key, label), torch.where(swapped, label, key)
        first_mark = torch.where((second >= 0).any(1, keepdim=True), glued[:, :1], glued[:, 1:])
        parts = (self.before[number], first, self.between[number], second, self.after[number])
        marks = [torch.zeros_like(part) for part in parts]
        marks[1], marks[3] = last_word(first) * first_mark, last_word(second) * glued[:, 1:]
        return torch.cat(parts, 1), torch.cat(marks, 1), words[batch, row, column]


def last_word(words: Tensor) -> Tensor:
    """Return 1 at the last present word of each row [..., W], 0 elsewhere."""
    here = (words >= 0).long()
    following = torch.cat([here[..., 1:], torch.zeros_like(here[..., :1])], -1)
    return here * (1 - following)
