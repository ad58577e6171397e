"""Pages with hidden words: what the model reads, and what it is to say (FeDocVQA, Nguyen et al. 2024).

w   a word's pieces        @   its place: left, top, right, bottom as <loc_0> … <loc_500>        i   its number

task     the model reads                                  it says          prompt
layout   <l_i> w </l_i>   without the word's box          <l_i> @          layout modeling.
text     <t_i> @          (code: and </t_i>)              <t_i> w          text modeling.
joint    <i>                                              <i> w @          joint text-layout modeling.
reading  <t_i> @ w                                        <t_i> w          text reading.

Words that are not hidden keep their pieces and boxes. The first three are the paper's. In `reading`, which is ours,
nothing is hidden: what stands there is to be said, which trains copying and nothing else.
Shapes: n pages at a time, of at most W words; T words in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simfl.errors import DataError

END, PAD, NO_LABEL = 1, 0, -100
PROMPT_BOX = (0, 0, 1000, 1000)  # of the prompt; what is hidden, and the end, has a box of zeros
PLACE = 4  # special pieces of a place
STEPS = 500  # of a place, across a page
TABLE_ROWS = 1024  # of the model's box tables
PROMPTS = {
    "text": "text modeling.",
    "layout": "layout modeling.",
    "joint": "joint text-layout modeling.",
    "reading": "text reading.",
}


class Pages(NamedTuple):
    """The words of many pages, page by page."""

    pieces: np.ndarray  # of all words, one after the other
    first: np.ndarray  # where a word's begin, [T + 1]
    box: np.ndarray  # as the model's rows, [T, 4]
    place: np.ndarray  # as special pieces, [T, 4]
    again: np.ndarray  # how many words on, or back, the same word stands next on the page, [T]; 0: nowhere else
    bounds: np.ndarray  # where a page's words begin, [pages + 1]


@dataclass(frozen=True)
class Hiding:
    """How much is hidden and said. `marks`: the special pieces (`models.marks.Marks`)."""

    marks: Any
    most: int  # words hidden on a page; those chosen later stay
    max_tokens: int  # read, with prompt and end; words beyond are left out
    max_target: int  # said, with the end
    code: bool  # as published: a closing sentinel for text; a word that cannot be said any more is hidden nevertheless


class Masked(NamedTuple):
    """Pieces read [n, L], their boxes [n, L, 4], how many they are [n], and the pieces to say [n, S]; padded."""

    ids: np.ndarray
    boxes: np.ndarray
    lengths: np.ndarray
    target: np.ndarray


class _Fate(NamedTuple):
    """Of each word [n, W]: whether it is read, hidden, said."""

    read: np.ndarray
    hidden: np.ndarray
    said: np.ndarray


def mask(
    task: str, prompt: Sequence[int], pages: Pages, document: np.ndarray, chosen: np.ndarray, hiding: Hiding
) -> Masked:
    """The pages `document` [n], each with its `chosen` words [n, W] hidden."""
    word = pages.bounds[document][:, None] + np.arange(chosen.shape[1])
    real = word < pages.bounds[document + 1][:, None]
    word = np.where(real, word, 0)
    size = np.where(real, pages.first[word + 1] - pages.first[word], 0) if len(pages.box) else np.zeros_like(word)
    instead, answer = _sizes(task, size, hiding)
    fate = _decide(chosen, real, size, instead, answer, len(prompt), hiding)
    number = np.cumsum(fate.hidden, 1) - 1
    return Masked(
        *_read(task, prompt, pages, word, size, np.where(fate.hidden, instead, size), number, fate, hiding.marks),
        _say(task, pages, word, size, answer, number, fate, hiding.marks),
    )


def _sizes(task: str, size: np.ndarray, hiding: Hiding) -> tuple[np.ndarray, np.ndarray]:
    """How many pieces stand in a word's place when it is hidden, and how many are said of it."""
    if task == "text":
        return np.full_like(size, 1 + PLACE + hiding.code), 1 + size
    if task == "layout":
        return size + 2, np.full_like(size, 1 + PLACE)
    if task == "reading":
        return size + 1 + PLACE, 1 + size
    return np.ones_like(size), 1 + size + PLACE


def _decide(
    chosen: np.ndarray, real: np.ndarray, size: np.ndarray, instead: np.ndarray, answer: np.ndarray, prompt: int,
    hiding: Hiding,
) -> _Fate:  # fmt: skip
    """Word by word, of all pages at once: what still fits depends on what came before."""
    fate = _Fate(*(np.zeros_like(real) for _ in _Fate._fields))
    open_, read = np.ones(len(real), bool), np.full(len(real), prompt)
    number, said = np.zeros_like(read), np.zeros_like(read)
    for k in range(real.shape[1]):
        wanted = chosen[:, k] & (number < hiding.most)
        fits = said + answer[:, k] < hiding.max_target
        hides = wanted if hiding.code else wanted & fits
        length = np.where(hides, instead[:, k], size[:, k])
        open_ &= real[:, k] & (read + length < hiding.max_tokens)
        fate.read[:, k], fate.hidden[:, k], fate.said[:, k] = open_, open_ & hides, open_ & wanted & fits
        number += fate.hidden[:, k]
        read += length * open_
        said += answer[:, k] * fate.said[:, k]
    return fate


def _read(
    task: str, prompt: Sequence[int], pages: Pages, word: np.ndarray, size: np.ndarray, length: np.ndarray,
    number: np.ndarray, fate: _Fate, marks: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Pieces, boxes, lengths."""
    start, lengths = _places(length * fate.read, len(prompt))
    ids = np.full((len(word), int(lengths.max(initial=0)) + 1), PAD, np.int32)
    boxes = np.zeros((*ids.shape, 4), np.int16)
    ids[:, : len(prompt)], boxes[:, : len(prompt)] = prompt, PROMPT_BOX
    ids[np.arange(len(word)), lengths] = END
    page, k = np.nonzero(fate.read & ~fate.hidden)
    row, column, piece, of = _spread(page, start[page, k], word[page, k], size[page, k], pages)
    ids[row, column], boxes[row, column] = pages.pieces[piece], pages.box[word[page, k]][of]
    page, k = np.nonzero(fate.hidden)
    at, i, w, long = start[page, k], number[page, k], word[page, k], size[page, k]
    if task == "layout":
        row, column, piece, _ = _spread(page, at + 1, w, long, pages)
        ids[row, column] = pages.pieces[piece]
        ids[page, at], ids[page, at + 1 + long] = marks.layout[i], marks.layout_end[i]
    elif task in ("text", "reading"):
        ids[page, at] = marks.text[i]
        ids[page[:, None], at[:, None] + 1 + np.arange(PLACE)] = pages.place[w]
        behind = at + 1 + PLACE
        if task == "reading":
            row, column, piece, of = _spread(page, behind, w, long, pages)
            ids[row, column], boxes[row, column] = pages.pieces[piece], pages.box[w][of]
        else:
            closed = length[page, k] > 1 + PLACE
            ids[page[closed], behind[closed]] = marks.text_end[i[closed]]
    else:
        ids[page, at] = marks.both[i]
    return ids, boxes, lengths + 1


def _say(
    task: str, pages: Pages, word: np.ndarray, size: np.ndarray, answer: np.ndarray, number: np.ndarray, fate: _Fate,
    marks: Any,
) -> np.ndarray:  # fmt: skip
    """The pieces to say."""
    start, lengths = _places(answer * fate.said, 0)
    target = np.full((len(word), int(lengths.max(initial=0)) + 1), NO_LABEL, np.int64)
    target[np.arange(len(word)), lengths] = END
    page, k = np.nonzero(fate.said)
    at, i, w, long = start[page, k], number[page, k], word[page, k], size[page, k]
    target[page, at] = {"layout": marks.layout, "joint": marks.both}.get(task, marks.text)[i]
    if task != "layout":
        row, column, piece, _ = _spread(page, at + 1, w, long, pages)
        target[row, column] = pages.pieces[piece]
    if task in ("layout", "joint"):
        behind = at + 1 + (long if task == "joint" else 0)
        target[page[:, None], behind[:, None] + np.arange(PLACE)] = pages.place[w]
    return target


def _places(lengths: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each word begins in its row [n, W], and where the row ends [n]."""
    ends = first + np.cumsum(lengths, 1)
    return ends - lengths, ends[:, -1] if lengths.shape[1] else np.full(len(lengths), first)


def _spread(
    page: np.ndarray, at: np.ndarray, word: np.ndarray, size: np.ndarray, pages: Pages
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of every piece of some words, its row, its column, its place among all pieces, and whose it is."""
    of = np.repeat(np.arange(len(word)), size)
    inside = np.arange(len(of)) - np.repeat(np.cumsum(size) - size, size)
    return page[of], at[of] + inside, pages.first[word][of] + inside, of


def pages_of(documents: Any, tokenizer: Any) -> Pages:
    """The words of every document of a table, each different one tokenised once, in lower case."""
    column = documents["words"].combine_chunks()
    flat = column.flatten().dictionary_encode()
    known = tokenizer.encode([word.lower() for word in flat.dictionary.to_pylist()])
    kind = flat.indices.to_numpy(zero_copy_only=False)
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    boxes = documents["boxes"].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    if len(boxes) != 4 * len(kind):
        raise DataError(f"self-pretraining: {len(kind)} words have {len(boxes) // 4} boxes")
    boxes, scale = boxes.reshape(-1, 4), tokenizer.box_scale
    spellings: dict[tuple[int, ...], int] = {}
    spelling = np.array([spellings.setdefault(tuple(p), len(spellings)) for p in known], np.int64)
    size = np.array([len(p) for p in known], np.int64)
    first, total = np.cumsum(size) - size, np.concatenate([[0], np.cumsum(size[kind])])
    inside = np.arange(total[-1]) - np.repeat(total[:-1], size[kind])
    pieces = np.array([piece for p in known for piece in p], np.int32)
    return Pages(
        pieces[np.repeat(first[kind], size[kind]) + inside],
        total,
        np.clip(boxes * scale + 1e-6 * scale, 0, TABLE_ROWS - 1).astype(np.int16),
        tokenizer.marks.place[np.clip(np.floor(boxes * STEPS + 0.5), 0, STEPS).astype(np.int64)],
        _again(np.repeat(np.arange(len(lengths)), lengths) * max(1, len(spellings)) + spelling[kind]),
        bounds,
    )


def _again(name: np.ndarray) -> np.ndarray:
    """How far from each word the next of the same name is, from the last to the first; 0 for one that is alone."""
    order = np.argsort(name, kind="stable")
    same = name[order]
    starts = np.flatnonzero(np.concatenate([[True], same[1:] != same[:-1]])[: len(same)])
    follower = np.roll(order, -1)
    follower[np.append(starts[1:], len(same))[: len(starts)] - 1] = order[starts]
    found = np.zeros(len(name), np.int64)
    found[order] = follower - order
    return found
