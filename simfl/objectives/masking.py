"""Pages with hidden words: what the model reads, and what it is to say (FeDocVQA, Nguyen et al. 2024).

w   a word's pieces        @   its place: left, top, right, bottom as <loc_0> … <loc_500>        i   its number

task     the model reads                                  it says          prompt
layout   <l_i> w </l_i>   without the word's box          <l_i> @          layout modeling.
text     <t_i> @          (code: and </t_i>)              <t_i> w          text modeling.
joint    <i>                                              <i> w @          joint text-layout modeling.

Words that are not hidden keep their pieces and boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

END = 1
PROMPT_BOX, NO_BOX = (0, 0, 1000, 1000), (0, 0, 0, 0)
STEPS = 500  # of a place, across a page
TABLE_ROWS = 1024  # of the model's box tables


class Word(NamedTuple):
    """A word of a page: its pieces, its box as the model's rows, its place as special pieces."""

    pieces: tuple[int, ...]
    box: tuple[int, ...]
    place: tuple[int, ...]


@dataclass(frozen=True)
class Hiding:
    """How much is hidden and said. `marks`: the special pieces (`models.marks.Marks`)."""

    marks: Any
    most: int  # words hidden on a page; those chosen later stay
    max_tokens: int  # read, with prompt and end; words beyond are left out
    max_target: int  # said, with the end
    code: bool  # as published: a closing sentinel for text; a word that cannot be said any more is hidden nevertheless


class Masked(NamedTuple):
    """Pieces read, their boxes, pieces to say."""

    ids: list[int]
    boxes: list[tuple[int, ...]]
    target: list[int]


Exchange = tuple[list[int], list[int]]  # what stands in a word's place, and what is said of it


def _layout(hiding: Hiding, number: int, word: Word) -> Exchange:
    marks = hiding.marks
    return [marks.layout[number], *word.pieces, marks.layout_end[number]], [marks.layout[number], *word.place]


def _text(hiding: Hiding, number: int, word: Word) -> Exchange:
    marks = hiding.marks
    end = [marks.text_end[number]] if hiding.code else []
    return [marks.text[number], *word.place, *end], [marks.text[number], *word.pieces]


def _joint(hiding: Hiding, number: int, word: Word) -> Exchange:
    return [hiding.marks.both[number]], [hiding.marks.both[number], *word.pieces, *word.place]


TASKS: dict[str, tuple[str, Callable[[Hiding, int, Word], Exchange]]] = {
    "text": ("text modeling.", _text),
    "layout": ("layout modeling.", _layout),
    "joint": ("joint text-layout modeling.", _joint),
}


def mask(task: str, prompt: Sequence[int], words: Sequence[Word], chosen: Sequence[bool], hiding: Hiding) -> Masked:
    """A page with the chosen words hidden."""
    exchange, page, number = TASKS[task][1], Masked([*prompt], [PROMPT_BOX] * len(prompt), []), 0
    for word, hide in zip(words, chosen, strict=True):
        shown, box, said = list(word.pieces), word.box, list[int]()
        if hide and number < hiding.most:
            instead, answer = exchange(hiding, number, word)
            fits = len(page.target) + len(answer) < hiding.max_target
            if fits or hiding.code:
                shown, box, said = instead, NO_BOX, answer if fits else []
        if len(page.ids) + len(shown) >= hiding.max_tokens:
            break
        number += box is NO_BOX
        page.ids.extend(shown)
        page.boxes.extend([box] * len(shown))
        page.target.extend(said)
    return Masked([*page.ids, END], [*page.boxes, NO_BOX], [*page.target, END])


def words_of(documents: Any, tokenizer: Any) -> list[list[Word]]:
    """The words of every document of a table, each different one tokenised once, in lower case."""
    texts = documents["words"].to_pylist()
    every = sorted({word.lower() for page in texts for word in page or ()})
    pieces = {word: tuple(found) for word, found in zip(every, tokenizer.encode(every), strict=True)}
    pages = []
    for page, flat in zip(texts, documents["boxes"].to_pylist(), strict=True):
        boxes = np.array(flat or [], np.float64).reshape(-1, 4)
        scale = tokenizer.box_scale
        rows = np.clip(boxes * scale + 1e-6 * scale, 0, TABLE_ROWS - 1).astype(int).tolist()
        steps = np.clip(np.floor(boxes * STEPS + 0.5), 0, STEPS).astype(int)
        places = tokenizer.marks.place[steps].tolist()
        pages.append(
            [
                Word(pieces[w.lower()], tuple(row), tuple(at))
                for w, row, at in zip(page or (), rows, places, strict=True)
            ]
        )
    return pages
