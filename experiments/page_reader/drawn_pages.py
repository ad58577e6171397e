"""Pages for training: drawn by processes into files of fixed shape, and copied to the device as they are ready."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from drawing import GRID, NOTHING, SIDE, SLOTS, DrawnPage, draw_page, draw_text, reading_tasks, shown_tokens
from network import user_turn
from torch import Tensor

CHUNK = 16  # pages of a task of a drawing process
PATIENCE = 300.0  # seconds for which the first pages are waited for
TEXT_TOKENS = 288  # of a conversation without its image
WITH_WORDS = 0.15  # share of conversations whose first question has the words of the page
FIELDS: dict[str, tuple[tuple[int, ...], Any]] = {
    "pixels": ((SIDE, SIDE), np.uint8),
    "slots": ((GRID * GRID, SLOTS), np.uint8),  # class of the character in each cell
    "shown": ((GRID * GRID,), np.int32),  # token of each patch, or NOTHING
    "ids": ((TEXT_TOKENS,), np.int32),  # the conversation after the image
    "learned": ((TEXT_TOKENS,), np.bool_),  # answers and their ends
}


class Writer:
    """Turns pages into rows of tokens, with the tokenizer of the language model."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        (self.space,) = self.encode([" "])[0]
        words = (token[1:] for token in self.tokenizer.get_vocab() if token.startswith("Ġ"))
        self.vocabulary = sorted(w for w in words if w.isascii() and w.isalpha() and 2 < len(w) < 12)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of texts, without any that the tokenizer would add."""
        found: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return found

    def shown(self, page: DrawnPage) -> np.ndarray:
        """Return the token that each patch shows; spaces before numbers keep them apart and are shown as nothing."""
        encoded = self.tokenizer(
            [f" {word}" for word in page.words], add_special_tokens=False, return_offsets_mapping=True
        )
        words = [
            (np.array(ids), np.array([min(max(0, start - 1), len(places) - 1) for start, _ in offsets]), places)
            for ids, offsets, places in zip(encoded["input_ids"], encoded["offset_mapping"], page.places, strict=True)
        ]
        tokens = shown_tokens(words)
        tokens[tokens == self.space] = NOTHING
        return tokens

    def conversation(self, turns: list[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a conversation after its image [L], and which of them are answers or their ends."""
        prompts = [user_turn(text, "" if place == 0 else None) for place, (text, _) in enumerate(turns)]
        asked, answered = self.encode(prompts), self.encode([answer for _, answer in turns])
        newline = self.encode(["\n"])[0]
        ids, learned = np.zeros(TEXT_TOKENS, np.int32), np.zeros(TEXT_TOKENS, np.bool_)
        length = 0
        for prompt, answer in zip(asked, answered, strict=True):
            turn = [*prompt, *answer, self.tokenizer.eos_token_id, *newline]
            if length + len(turn) <= TEXT_TOKENS:
                ids[length : length + len(turn)] = turn
                learned[length + len(prompt) : length + len(turn) - len(newline)] = True
                length += len(turn)
        return ids, learned

    def row(self, stream: str, number: int) -> dict[str, np.ndarray]:
        """Return page `number` of a stream, an invoice or for odd numbers text, with a conversation about it."""
        generator = np.random.default_rng([7, number])
        invoice = number % 2 == 0
        page = draw_page(stream, number // 2) if invoice else draw_text(stream, number // 2, self.vocabulary)
        questions = [(text, answers[0]) for text, answers in page.questions]
        tasks = [*questions, *reading_tasks(page.words, generator, 5 if invoice else 12)]
        turns = [tasks[i] for i in generator.permutation(len(tasks))]
        if turns and invoice and generator.random() < WITH_WORDS:
            turns[0] = (f"{' '.join(page.words)}\n\n{turns[0][0]}", turns[0][1])
        ids, learned = self.conversation(turns)
        return {
            "pixels": page.pixels, "slots": page.slots, "shown": self.shown(page), "ids": ids, "learned": learned,
        }  # fmt: skip


def open_files(folder: Path, capacity: int, mode: Literal["r+", "w+"]) -> dict[str, np.ndarray]:
    """Return the arrays [capacity, …] of a folder, which processes share."""
    return {
        name: np.memmap(folder / name, dtype, mode, shape=(capacity, *shape)) for name, (shape, dtype) in FIELDS.items()
    }


_writer: Any = None
_files: dict[str, np.ndarray] = {}


def start_worker(language: Path, folder: Path, capacity: int) -> None:
    """Prepare a drawing process, which leaves the processors to the process that trains."""
    global _writer
    os.nice(10)
    torch.set_num_threads(1)
    _writer = Writer(language)
    _files.update(open_files(folder, capacity, "r+"))


def draw_chunk(chunk: int) -> int:
    """Draw pages into their rows of the files."""
    for number in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        for name, values in _writer.row("reader", number).items():
            _files[name][number] = values
    return chunk


@dataclass
class Pages:
    """Rows in the memory of the device, in the order in which they were drawn."""

    capacity: int
    device: torch.device
    ready: int = 0
    rows: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (shape, dtype) in FIELDS.items():
            kind = torch.from_numpy(np.zeros(0, dtype)).dtype
            self.rows[name] = torch.zeros(self.capacity, *shape, dtype=kind, device=self.device)

    def add(self, values: dict[str, np.ndarray]) -> None:
        """Append rows."""
        count = len(values["ids"])
        for name, array in values.items():
            self.rows[name][self.ready : self.ready + count] = torch.from_numpy(np.asarray(array)).to(self.device)
        self.ready += count

    def sample(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return random rows."""
        places = torch.randint(self.ready, (count,), device=self.device, generator=generator)
        return {name: rows[places] for name, rows in self.rows.items()}


class Drawing:
    """Processes that draw pages into files until the capacity is reached."""

    def __init__(self, language: Path, folder: Path, pages: Pages, processes: int) -> None:
        self.pages = pages
        self.files = open_files(folder, pages.capacity, "w+")
        context = multiprocessing.get_context("spawn")
        self.pool = context.Pool(processes, start_worker, (language, folder, pages.capacity))
        self.chunks: Iterator[int] = self.pool.imap_unordered(draw_chunk, range(pages.capacity // CHUNK))

    def collect(self, least: int = 0) -> None:
        """Copy the pages that are ready to the device; wait until at least this many are there.

        Raises:
            TimeoutError: No page was drawn in `PATIENCE` seconds.
        """
        while self.pages.ready < self.pages.capacity:
            waiting = self.pages.ready < least
            try:
                chunk = self.chunks.next(PATIENCE if waiting else 0.0)  # type: ignore[attr-defined]
            except multiprocessing.TimeoutError:
                if waiting:
                    raise TimeoutError(f"no page was drawn in {PATIENCE:g} s") from None
                return
            rows = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            self.pages.add({name: array[rows] for name, array in self.files.items()})

    def stop(self) -> None:
        """End the processes."""
        self.pool.terminate()
        self.pool.join()
