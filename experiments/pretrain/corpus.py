"""Synthetic invoices as arrays: generated as text, copied to the device, and sampled there with their questions.

The invoices come from `provider_invoices.draw_documents`. They use the other half of the surnames and label wordings,
so they share no company, person or label with any client of the benchmark.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import torch
from encoding import QuestionBatch
from tables import WordTable
from torch import Tensor

from simfl.data.benchmarks.provider_invoices.documents import Recipe, draw_documents

NAME, COUNT = "pretrain", 48000
PARTS = ("words", "question", "answer")
LETTERS = re.compile(r"[^\W\d_]+")


def pack(count: int = COUNT) -> dict[str, np.ndarray]:
    """Return `count` invoices as arrays.

    `text` contains the distinct words as bytes, one a line. `words` (by document), `question` and `answer` (by
    question) are flat indices into it, each with an array of ends. `boxes` is [words, 4], and `document` is the
    document of each question.
    """
    index: dict[str, int] = {}
    flat: dict[str, list[int]] = {part: [] for part in PARTS}
    ends: dict[str, list[int]] = {part: [] for part in PARTS}
    boxes: list[int] = []
    document: list[int] = []

    def add(part: str, words: list[str]) -> None:
        flat[part] += [index.setdefault(word.lower(), len(index)) for word in words]
        ends[part].append(len(flat[part]))

    for number, page in enumerate(draw_documents(NAME, count, per_provider=1, recipe=Recipe(image_width=0))):
        add("words", page.words)
        boxes += page.boxes
        for question in page.questions:
            add("question", ["question:", *question.question.split(), "context:"])
            add("answer", question.answers[0].split())
            document.append(number)
    packed: dict[str, np.ndarray] = {part: np.array(flat[part], np.int32) for part in PARTS}
    packed |= {f"{part}_ends": np.array(ends[part], np.int64) for part in PARTS}
    packed["boxes"] = np.array(boxes, np.int16).reshape(-1, 4)
    packed["document"] = np.array(document, np.int32)
    packed["text"] = np.frombuffer("\n".join(index).encode(), np.uint8)
    return packed


def texts(packed: dict[str, np.ndarray]) -> list[str]:
    """Return the distinct words."""
    return packed["text"].tobytes().decode().split("\n")


class Corpus:
    """Invoices on the device of a word table. The last `held_out` documents are for evaluation only."""

    def __init__(self, packed: dict[str, np.ndarray], table: WordTable, seed: int, held_out: int = 512) -> None:
        device = table.tokens.device
        start = table.kinds["document"][0]
        self.flat = {part: torch.from_numpy(packed[part]).to(device) + start for part in PARTS}
        self.ends = {part: torch.from_numpy(packed[f"{part}_ends"]).to(device) for part in PARTS}
        self.boxes = torch.from_numpy(packed["boxes"]).to(device)
        self.document = torch.from_numpy(packed["document"]).long().to(device)
        self.widths = {part: int(np.diff(packed[f"{part}_ends"], prepend=0).max()) for part in PARTS}
        self.train = int((packed["document"] <= packed["document"].max() - held_out).sum())
        self.generator = torch.Generator(device).manual_seed(seed)

    def draw(self, batch: int, held_out: bool = False) -> QuestionBatch:
        """Sample `batch` questions with their documents, from the training or from the held-out documents."""
        low, high = (self.train, len(self.document)) if held_out else (0, self.train)
        rows = torch.randint(low, high, (batch,), generator=self.generator, device=self.document.device)
        question, _ = self._take("question", rows)
        answer, _ = self._take("answer", rows)
        words, position = self._take("words", self.document[rows])
        boxes = self.boxes[position].long() * (words >= 0)[..., None]
        return QuestionBatch(question, torch.zeros_like(question), words, torch.zeros_like(words), boxes, answer)

    def _take(self, part: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the words of these rows, −1 after the end, and their positions in the flat array."""
        start = torch.where(rows > 0, self.ends[part][(rows - 1).clamp_min(0)], 0)
        position = start[:, None] + torch.arange(self.widths[part], device=rows.device)
        inside = position < self.ends[part][rows][:, None]
        position = position.clamp_max(len(self.flat[part]) - 1)
        return torch.where(inside, self.flat[part][position].long(), -1), position


def count_words(count: int = 4000) -> str:
    """Return lines `word count` of the words that occur at least twice in `count` invoices and their questions."""
    found: Counter[str] = Counter()
    for page in draw_documents("words", count, per_provider=1, recipe=Recipe(image_width=0, noise=0.0)):
        found.update(
            LETTERS.findall(" ".join([*page.words, *(question.question for question in page.questions)]).lower())
        )
    return "".join(f"{word} {times}\n" for word, times in sorted(found.items()) if times > 1)
