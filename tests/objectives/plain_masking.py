"""Masking one page, word by word: what `simfl.objectives.masking` does for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simfl.objectives.masking import END, PROMPT_BOX, Hiding, Pages, mask

NO_BOX = (0, 0, 0, 0)


class Word(NamedTuple):
    """A word of a page: its pieces, its box as the model's rows, its place as special pieces."""

    pieces: tuple[int, ...]
    box: tuple[int, ...]
    place: tuple[int, ...]


class Page(NamedTuple):
    """Pieces read, their boxes, pieces to say."""

    ids: list[int]
    boxes: list[tuple[int, ...]]
    target: list[int]


def exchange(task: str, hiding: Hiding, number: int, word: Word) -> tuple[list[int], list[int]]:
    """What stands in a word's place, and what is said of it."""
    marks = hiding.marks
    if task == "layout":
        mark = marks.layout[number]
        return [mark, *word.pieces, marks.layout_end[number]], [mark, *word.place]
    if task == "text":
        end = [marks.text_end[number]] if hiding.code else []
        return [marks.text[number], *word.place, *end], [marks.text[number], *word.pieces]
    if task == "reading":
        return [marks.text[number], *word.place, *word.pieces], [marks.text[number], *word.pieces]
    return [marks.both[number]], [marks.both[number], *word.pieces, *word.place]


def plainly(task: str, prompt: Sequence[int], words: Sequence[Word], chosen: Sequence[bool], hiding: Hiding) -> Page:
    """A page with the chosen words hidden."""
    page, number = Page([*prompt], [PROMPT_BOX] * len(prompt), []), 0
    for word, hide in zip(words, chosen, strict=True):
        shown, box, said = list(word.pieces), word.box, list[int]()
        if hide and number < hiding.most:
            instead, answer = exchange(task, hiding, number, word)
            fits = len(page.target) + len(answer) < hiding.max_target
            if fits or hiding.code:
                shown, box, said = instead, NO_BOX, answer if fits else []
        if len(page.ids) + len(shown) >= hiding.max_tokens:
            break
        number += box is NO_BOX
        page.ids.extend(shown)
        boxes = [box] * len(shown)
        if task == "reading" and box is NO_BOX:
            boxes[5:] = [word.box] * len(word.pieces)
        page.boxes.extend(boxes)
        page.target.extend(said)
    return Page([*page.ids, END], [*page.boxes, NO_BOX], [*page.target, END])


def pages_of_words(pages: Sequence[Sequence[Word]]) -> Pages:
    """The same words as many pages at once."""
    every = [word for page in pages for word in page]
    return Pages(
        np.array([piece for word in every for piece in word.pieces], np.int32),
        np.cumsum([0] + [len(word.pieces) for word in every]),
        np.array([word.box for word in every], np.int16).reshape(-1, 4),
        np.array([word.place for word in every], np.int64).reshape(-1, 4),
        np.zeros(len(every), np.int64),
        np.cumsum([0] + [len(page) for page in pages]),
    )


def together(
    task: str, prompt: Sequence[int], pages: Sequence[Sequence[Word]], chosen: Sequence[Sequence[bool]], hiding: Hiding
) -> list[Page]:
    """`plainly` of every page, by the function that masks many at once."""
    wide = np.zeros((len(pages), max(map(len, pages))), bool)
    for row, some in enumerate(chosen):
        wide[row, : len(some)] = some
    found = mask(task, prompt, pages_of_words(pages), np.arange(len(pages)), wide, hiding)
    said = (found.target != -100).sum(1)
    assert not any(ids[length:].any() for ids, length in zip(found.ids, found.lengths, strict=True))
    return [
        Page(ids[:length].tolist(), [tuple(box) for box in boxes[:length].tolist()], target[:count].tolist())
        for ids, boxes, length, target, count in zip(*found, said, strict=True)
    ]


def one(task: str, prompt: Sequence[int], words: Sequence[Word], chosen: Sequence[bool], hiding: Hiding) -> Page:
    """Of one page."""
    (page,) = together(task, prompt, [words], [chosen], hiding)
    return page
