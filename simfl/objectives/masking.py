"""Masking of the words of pages for self-pretraining (FeDocVQA, Nguyen et al. 2024).

w   tokens of a word       @   its position: left, top, right, bottom as <loc_0> … <loc_500>       i   number of mask

task     the input contains                               the target is    prompt
layout   <l_i> w </l_i>   without the word's box          <l_i> @          layout modeling.
text     <t_i> @          (published code: and </t_i>)    <t_i> w          text modeling.
joint    <i>                                              <i> w @          joint text-layout modeling.
reading  <t_i> @ w                                        <t_i> w          text reading.

Words that are not masked keep their tokens and boxes. The first three tasks are the paper's. In `reading`, which is an
addition, nothing is hidden: the model copies the word.

Shapes: n pages, processed together, of at most W words each; T words in all documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from simfl.objectives.pages import read_words

END, PAD, NO_LABEL = 1, 0, -100
PROMPT_BOX = (0, 0, 1000, 1000)  # box of the prompt; masked words and the end token have a box of zeros
POSITION = 4  # special tokens of a position
STEPS = 500  # steps of a coordinate across a page
TABLE_ROWS = 1024  # rows of the model's box embeddings
PROMPTS = {
    "text": "text modeling.",
    "layout": "layout modeling.",
    "joint": "joint text-layout modeling.",
    "reading": "text reading.",
}


class SpecialTokens(Protocol):
    """Ids of the special tokens, int64 arrays (`simfl.models.tokenizer.SpecialTokenIds`)."""

    @property
    def both(self) -> np.ndarray:
        """Return <i> of the joint task."""

    @property
    def layout(self) -> np.ndarray:
        """Return <l_i>."""

    @property
    def layout_end(self) -> np.ndarray:
        """Return </l_i>."""

    @property
    def text(self) -> np.ndarray:
        """Return <t_i>."""

    @property
    def text_end(self) -> np.ndarray:
        """Return </t_i>."""

    @property
    def place(self) -> np.ndarray:
        """Return <loc_i>."""


class Pages(NamedTuple):
    """The words of many pages, page by page."""

    tokens: np.ndarray  # of all words, concatenated
    first: np.ndarray  # index of each word's first token, [T + 1]
    box: np.ndarray  # rows of the box embeddings, [T, 4]
    position: np.ndarray  # as special tokens, [T, 4]
    repeat: np.ndarray  # offset to the next occurrence of the same word on the page, cyclic, [T]; 0: unique
    bounds: np.ndarray  # index of each page's first word, [pages + 1]


@dataclass(frozen=True)
class MaskingRules:
    """Limits of inputs and targets."""

    special_tokens: SpecialTokens
    max_masked: int  # masked words per page; words chosen later stay unmasked
    max_tokens: int  # tokens of the input, with prompt and end token; the rest of the page is cut
    max_target: int  # tokens of the target, with end token
    published_code: (
        bool  # a closing sentinel for text; words that no longer fit into the target are masked all the same
    )


class Masked(NamedTuple):
    """Masked pages, padded: input tokens [n, L], their boxes [n, L, 4], their number [n], and target tokens [n, S]."""

    ids: np.ndarray
    boxes: np.ndarray
    lengths: np.ndarray
    target: np.ndarray
    num_words: int  # words of all pages
    num_cut: int  # words that the limit of tokens cuts


class _Decision(NamedTuple):
    """Masks [n, W] of the words in the input, of the masked words, and of the words in the target."""

    included: np.ndarray
    masked: np.ndarray
    predicted: np.ndarray


class _Words(NamedTuple):
    """The words of some pages and their sizes, each [n, W]."""

    pages: Pages
    word: np.ndarray  # index among all words
    size: np.ndarray  # tokens
    masked_size: np.ndarray  # input tokens if masked
    target_size: np.ndarray  # target tokens if masked


def mask_pages(
    task: str, prompt: Sequence[int], pages: Pages, document: np.ndarray, chosen: np.ndarray, rules: MaskingRules
) -> Masked:
    """Return the pages `document` [n] with their `chosen` words, bool [n, W], masked."""
    word = pages.bounds[document][:, None] + np.arange(chosen.shape[1])
    real = word < pages.bounds[document + 1][:, None]
    word = np.where(real, word, 0)
    size = np.where(real, pages.first[word + 1] - pages.first[word], 0) if len(pages.box) else np.zeros_like(word)
    words = _Words(pages, word, size, *_masked_sizes(task, size, rules))
    decision = _decide(words, chosen, real, len(prompt), rules)
    ids, boxes, lengths = _inputs(task, prompt, words, decision, rules.special_tokens)
    target, num_words = _targets(task, words, decision, rules.special_tokens), int(real.sum())
    return Masked(ids, boxes, lengths, target, num_words, num_words - int(decision.included.sum()))


def _masked_sizes(task: str, size: np.ndarray, rules: MaskingRules) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of input and of target tokens of a word that is masked."""
    if task == "text":
        return np.full_like(size, 1 + POSITION + rules.published_code), 1 + size
    if task == "layout":
        return size + 2, np.full_like(size, 1 + POSITION)
    if task == "reading":
        return size + 1 + POSITION, 1 + size
    return np.ones_like(size), 1 + size + POSITION


def _decide(words: _Words, chosen: np.ndarray, real: np.ndarray, prompt: int, rules: MaskingRules) -> _Decision:
    """Decide word by word, for all pages at once: the space that is left depends on earlier words."""
    decision = _Decision(*(np.zeros_like(real) for _ in _Decision._fields))
    open_, num_read = np.ones(len(real), bool), np.full(len(real), prompt)
    num_masked, num_target = np.zeros_like(num_read), np.zeros_like(num_read)
    for k in range(real.shape[1]):
        wanted = chosen[:, k] & (num_masked < rules.max_masked)
        fits = num_target + words.target_size[:, k] < rules.max_target
        masked = wanted if rules.published_code else wanted & fits
        length = np.where(masked, words.masked_size[:, k], words.size[:, k])
        open_ &= real[:, k] & (num_read + length < rules.max_tokens)
        decision.included[:, k] = open_
        decision.masked[:, k] = open_ & masked
        decision.predicted[:, k] = open_ & wanted & fits
        num_masked += decision.masked[:, k]
        num_read += length * open_
        num_target += words.target_size[:, k] * decision.predicted[:, k]
    return decision


def _inputs(
    task: str, prompt: Sequence[int], words: _Words, decision: _Decision, special: SpecialTokens
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return input tokens, boxes and lengths."""
    pages, length = words.pages, np.where(decision.masked, words.masked_size, words.size)
    start, lengths = _offsets(length * decision.included, len(prompt))
    ids = np.full((len(length), int(lengths.max(initial=0)) + 1), PAD, np.int32)
    boxes = np.zeros((*ids.shape, 4), np.int16)
    ids[:, : len(prompt)], boxes[:, : len(prompt)] = prompt, PROMPT_BOX
    ids[np.arange(len(length)), lengths] = END
    page, k = np.nonzero(decision.included & ~decision.masked)
    row, column, token, of = _spread(page, start[page, k], words.word[page, k], words.size[page, k], pages)
    ids[row, column], boxes[row, column] = pages.tokens[token], pages.box[words.word[page, k]][of]
    page, k = np.nonzero(decision.masked)
    at, i, word, size = start[page, k], _mask_numbers(decision)[page, k], words.word[page, k], words.size[page, k]
    if task == "layout":
        row, column, token, _ = _spread(page, at + 1, word, size, pages)
        ids[row, column] = pages.tokens[token]
        ids[page, at], ids[page, at + 1 + size] = special.layout[i], special.layout_end[i]
    elif task in ("text", "reading"):
        ids[page, at] = special.text[i]
        ids[page[:, None], at[:, None] + 1 + np.arange(POSITION)] = pages.position[word]
        after = at + 1 + POSITION
        if task == "reading":
            row, column, token, of = _spread(page, after, word, size, pages)
            ids[row, column], boxes[row, column] = pages.tokens[token], pages.box[word][of]
        else:
            closed = length[page, k] > 1 + POSITION
            ids[page[closed], after[closed]] = special.text_end[i[closed]]
    else:
        ids[page, at] = special.both[i]
    return ids, boxes, lengths + 1


def _targets(task: str, words: _Words, decision: _Decision, special: SpecialTokens) -> np.ndarray:
    """Return the target tokens."""
    pages = words.pages
    start, lengths = _offsets(words.target_size * decision.predicted, 0)
    target = np.full((len(start), int(lengths.max(initial=0)) + 1), NO_LABEL, np.int64)
    target[np.arange(len(start)), lengths] = END
    page, k = np.nonzero(decision.predicted)
    at, i, word, size = start[page, k], _mask_numbers(decision)[page, k], words.word[page, k], words.size[page, k]
    target[page, at] = {"layout": special.layout, "joint": special.both}.get(task, special.text)[i]
    if task != "layout":
        row, column, token, _ = _spread(page, at + 1, word, size, pages)
        target[row, column] = pages.tokens[token]
    if task in ("layout", "joint"):
        after = at + 1 + (size if task == "joint" else 0)
        target[page[:, None], after[:, None] + np.arange(POSITION)] = pages.position[word]
    return target


def _mask_numbers(decision: _Decision) -> np.ndarray:
    """Return the number of each masked word on its page, [n, W]."""
    return np.cumsum(decision.masked, 1) - 1


def _offsets(lengths: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first column of each word [n, W], and the end of each row [n]."""
    ends = first + np.cumsum(lengths, 1)
    return ends - lengths, ends[:, -1] if lengths.shape[1] else np.full(len(lengths), first)


def _spread(
    page: np.ndarray, at: np.ndarray, word: np.ndarray, size: np.ndarray, pages: Pages
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the row, column, index among all tokens, and word of every token of some words."""
    of = np.repeat(np.arange(len(word)), size)
    inside = np.arange(len(of)) - np.repeat(np.cumsum(size) - size, size)
    return page[of], at[of] + inside, pages.first[word][of] + inside, of


def build_pages(documents: Any, tokenizer: Any) -> Pages:
    """Return the words of all documents of a table in lower case; each distinct word is tokenized once."""
    words = read_words(documents, "self-pretraining")
    known = tokenizer.encode([word.lower() for word in words.texts])
    kind, boxes, scale = words.kinds, words.boxes, tokenizer.box_scale
    spellings: dict[tuple[int, ...], int] = {}
    spelling = np.array([spellings.setdefault(tuple(ids), len(spellings)) for ids in known], np.int64)
    size = np.array([len(ids) for ids in known], np.int64)
    first, total = np.cumsum(size) - size, np.concatenate([[0], np.cumsum(size[kind])])
    inside = np.arange(total[-1]) - np.repeat(total[:-1], size[kind])
    tokens = np.array([token for ids in known for token in ids], np.int32)
    return Pages(
        tokens[np.repeat(first[kind], size[kind]) + inside],
        total,
        np.clip(boxes * scale + 1e-6 * scale, 0, TABLE_ROWS - 1).astype(np.int16),
        tokenizer.special_tokens.place[np.clip(np.floor(boxes * STEPS + 0.5), 0, STEPS).astype(np.int64)],
        _repeats(
            np.repeat(np.arange(len(words.bounds) - 1), np.diff(words.bounds)) * max(1, len(spellings)) + spelling[kind]
        ),
        words.bounds,
    )


def _repeats(name: np.ndarray) -> np.ndarray:
    """Return the offset from each word to the next of the same name, from the last to the first; 0 if unique."""
    order = np.argsort(name, kind="stable")
    same = name[order]
    starts = np.flatnonzero(np.concatenate([[True], same[1:] != same[:-1]])[: len(same)])
    follower = np.roll(order, -1)
    follower[np.append(starts[1:], len(same))[: len(starts)] - 1] = order[starts]
    offsets = np.zeros(len(name), np.int64)
    offsets[order] = follower - order
    return offsets
