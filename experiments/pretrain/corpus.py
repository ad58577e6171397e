"""Made invoices as arrays: drawn with text alone, carried to the device, asked about there.

The invoices come from `provider_invoices.draw_documents`: another half of the surnames and label wordings than the
benchmark's, and so no company, person or label of any client.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import torch
from encoding import Asked
from tables import Table
from torch import Tensor

from simfl.data.benchmarks.provider_invoices.documents import Recipe, draw_documents

NAME, COUNT = "pretrain", 48000
PARTS = ("words", "question", "answer")
LETTERS = re.compile(r"[^\W\d_]+")


def pack(count: int = COUNT) -> dict[str, np.ndarray]:
    """`text` (the distinct words, as bytes, by line); flat rows of it with their ends: `words` by document, `question`
    and `answer` by question; `boxes` [words, 4]; `document` of each question.
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
        for asked in page.questions:
            add("question", ["question:", *asked.question.split(), "context:"])
            add("answer", asked.answers[0].split())
            document.append(number)
    packed = {part: np.array(flat[part], np.int32) for part in PARTS}
    packed |= {f"{part}_ends": np.array(ends[part], np.int64) for part in PARTS}
    packed["boxes"] = np.array(boxes, np.int16).reshape(-1, 4)
    packed["document"] = np.array(document, np.int32)
    packed["text"] = np.frombuffer("\n".join(index).encode(), np.uint8)
    return packed


def texts(packed: dict[str, np.ndarray]) -> list[str]:
    """The distinct words."""
    return packed["text"].tobytes().decode().split("\n")


class Corpus:
    """The arrays on the table's device. The last `held` documents are kept for measuring."""

    def __init__(self, packed: dict[str, np.ndarray], table: Table, seed: int, held: int = 512) -> None:
        device = table.pieces.device
        start = table.kinds["document"][0]
        self.flat = {part: torch.from_numpy(packed[part]).to(device) + start for part in PARTS}
        self.ends = {part: torch.from_numpy(packed[f"{part}_ends"]).to(device) for part in PARTS}
        self.boxes = torch.from_numpy(packed["boxes"]).to(device)
        self.document = torch.from_numpy(packed["document"]).long().to(device)
        self.widths = {part: int(np.diff(packed[f"{part}_ends"], prepend=0).max()) for part in PARTS}
        self.train = int((packed["document"] <= packed["document"].max() - held).sum())
        self.generator = torch.Generator(device).manual_seed(seed)

    def draw(self, batch: int, held: bool = False) -> Asked:
        """`vectorized` questions with their documents, of those kept for training or of the others."""
        low, high = (self.train, len(self.document)) if held else (0, self.train)
        rows = torch.randint(low, high, (batch,), generator=self.generator, device=self.document.device)
        question, _ = self._take("question", rows)
        answer, _ = self._take("answer", rows)
        words, place = self._take("words", self.document[rows])
        boxes = self.boxes[place].long() * (words >= 0)[..., None]
        return Asked(question, torch.zeros_like(question), words, torch.zeros_like(words), boxes, answer)

    def _take(self, part: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Words of these rows, −1 after the end; and where they lie in the flat array."""
        start = torch.where(rows > 0, self.ends[part][(rows - 1).clamp_min(0)], 0)
        place = start[:, None] + torch.arange(self.widths[part], device=rows.device)
        inside = place < self.ends[part][rows][:, None]
        place = place.clamp_max(len(self.flat[part]) - 1)
        return torch.where(inside, self.flat[part][place].long(), -1), place


def count_words(count: int = 4000) -> str:
    """Lines `word count`: words of letters found twice or more in `count` well read invoices and their questions."""
    found: Counter[str] = Counter()
    for page in draw_documents("words", count, per_provider=1, recipe=Recipe(image_width=0, noise=0.0)):
        found.update(LETTERS.findall(" ".join([*page.words, *(asked.question for asked in page.questions)]).lower()))
    return "".join(f"{word} {times}\n" for word, times in sorted(found.items()) if times > 1)
