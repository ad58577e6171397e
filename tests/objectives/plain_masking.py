"""A plain reference of `simfl.objectives.masking`: one page, word by word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simfl.objectives.masking import END, PROMPT_BOX, MaskingRules, Pages, mask_pages

NO_BOX = (0, 0, 0, 0)


class Word(NamedTuple):
    """A word of a page: its tokens, its box as rows of the model's embeddings, its position as special tokens."""

    tokens: tuple[int, ...]
    box: tuple[int, ...]
    position: tuple[int, ...]


class Page(NamedTuple):
    """Input tokens, their boxes, target tokens."""

    ids: list[int]
    boxes: list[tuple[int, ...]]
    target: list[int]


def replacement(task: str, rules: MaskingRules, number: int, word: Word) -> tuple[list[int], list[int]]:
    """Return the input tokens in place of a masked word, and its target tokens."""
    special = rules.special_tokens
    if task == "layout":
        first = special.layout[number]
        return [first, *word.tokens, special.layout_end[number]], [first, *word.position]
    if task == "text":
        end = [special.text_end[number]] if rules.published_code else []
        return [special.text[number], *word.position, *end], [special.text[number], *word.tokens]
    if task == "reading":
        return [special.text[number], *word.position, *word.tokens], [special.text[number], *word.tokens]
    return [special.both[number]], [special.both[number], *word.tokens, *word.position]


def reference(
    task: str, prompt: Sequence[int], words: Sequence[Word], chosen: Sequence[bool], rules: MaskingRules
) -> Page:
    """Return a page with the chosen words masked."""
    page, number = Page([*prompt], [PROMPT_BOX] * len(prompt), []), 0
    for word, wanted in zip(words, chosen, strict=True):
        tokens, box, target = list(word.tokens), word.box, list[int]()
        if wanted and number < rules.max_masked:
            masked, answer = replacement(task, rules, number, word)
            fits = len(page.target) + len(answer) < rules.max_target
            if fits or rules.published_code:
                tokens, box, target = masked, NO_BOX, answer if fits else []
        if len(page.ids) + len(tokens) >= rules.max_tokens:
            break
        number += box is NO_BOX
        page.ids.extend(tokens)
        boxes = [box] * len(tokens)
        if task == "reading" and box is NO_BOX:
            boxes[5:] = [word.box] * len(word.tokens)
        page.boxes.extend(boxes)
        page.target.extend(target)
    return Page([*page.ids, END], [*page.boxes, NO_BOX], [*page.target, END])


def pages_of_words(pages: Sequence[Sequence[Word]]) -> Pages:
    """Return the words of these pages as `Pages`."""
    every = [word for page in pages for word in page]
    return Pages(
        np.array([token for word in every for token in word.tokens], np.int32),
        np.cumsum([0] + [len(word.tokens) for word in every]),
        np.array([word.box for word in every], np.int16).reshape(-1, 4),
        np.array([word.position for word in every], np.int64).reshape(-1, 4),
        np.zeros(len(every), np.int64),
        np.cumsum([0] + [len(page) for page in pages]),
    )


def together(
    task: str,
    prompt: Sequence[int],
    pages: Sequence[Sequence[Word]],
    chosen: Sequence[Sequence[bool]],
    rules: MaskingRules,
) -> list[Page]:
    """Return the pages masked by the function under test."""
    wide = np.zeros((len(pages), max(map(len, pages))), bool)
    for row, some in enumerate(chosen):
        wide[row, : len(some)] = some
    found = mask_pages(task, prompt, pages_of_words(pages), np.arange(len(pages)), wide, rules)
    num_target = (found.target != -100).sum(1)
    assert not any(ids[length:].any() for ids, length in zip(found.ids, found.lengths, strict=True))
    rows = zip(found.ids, found.boxes, found.lengths, found.target, num_target, strict=True)
    return [
        Page(ids[:length].tolist(), [tuple(box) for box in boxes[:length].tolist()], target[:count].tolist())
        for ids, boxes, length, target, count in rows
    ]


def one(task: str, prompt: Sequence[int], words: Sequence[Word], chosen: Sequence[bool], rules: MaskingRules) -> Page:
    """Return one page, masked by the function under test."""
    (page,) = together(task, prompt, [words], [chosen], rules)
    return page
