"""Normalization of answers as in the evaluation of the VQA challenge (Antol et al. 2015, `vqaEval.py`).

Punctuation goes first, then case, number words, articles and missing apostrophes. VizWiz uses the same evaluation.
"""

from __future__ import annotations

import re
from functools import lru_cache

PUNCTUATION = r""";/[]"{}()=+\_-><@`,?!"""
DIGITS_AROUND_COMMA = re.compile(r"\d,\d")
PERIOD = re.compile(r"\.(?!\d)")  # the reference means to keep periods between digits, and keeps those before a digit
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS)} | {"none": "0"}
ARTICLES = ("a", "an", "the")

_NOT = (
    "ain", "aren", "couldn", "didn", "doesn", "don", "hadn", "hasn", "haven", "isn", "mightn", "mustn", "needn",
    "oughtn", "shan", "shouldn", "wasn", "weren", "won", "wouldn",
)  # fmt: skip
_ENDINGS = {  # contracted ending -> words before it
    "'ve": ["could", "might", "must", "not", "should", "they", "we", "what", "where", "who", "would", "you", "i"],
    "'d": ["he", "how", "it", "someone", "something", "there", "they", "where", "who", "you"],
    "'ll": ["how", "it", "somebody", "someone", "something", "they", "what", "who", "why", "you"],
    "'s": ["he", "how", "somebody", "someone", "that", "there", "what", "when", "where", "who", "why"],
    "'re": ["there", "they", "what", "why", "you"],
    "'d've": ["he", "it", "she", "somebody", "someone", "something", "there", "they", "we", "who", "you", "i"],
    "n't've": ["could", "had", "might", "should", "would"],
}


def _contractions() -> dict[str, str]:
    """Return contractions by their spellings without one or all apostrophes."""
    whole = [f"{word}'t" for word in _NOT] + [word + end for end, words in _ENDINGS.items() for word in words]
    found = {"cant": "can't", "im": "i'm", "maam": "ma'am", "oclock": "o'clock", "twas": "'twas", "yall": "y'all"}
    for text in whole:
        first, *rest = text.split("'")
        spellings = (
            [first + "".join(rest)] if len(rest) == 1 else [f"{first}{rest[0]}'{rest[1]}", f"{first}'{''.join(rest)}"]
        )
        found |= dict.fromkeys(spellings, text)
    return found


CONTRACTIONS = _contractions()


@lru_cache(maxsize=1 << 16)
def normalize_vqa_answer(text: str) -> str:
    """Return an answer as the evaluation of the VQA challenge compares it.

    A sign of `PUNCTUATION` next to a space, or in a text with a comma between digits, is dropped; any other becomes a
    space. Periods are dropped unless a digit follows.
    """
    text = text.replace("\n", " ").replace("\t", " ").strip()
    joined, drops_all = text, DIGITS_AROUND_COMMA.search(text) is not None
    for sign in PUNCTUATION:
        alone = drops_all or f"{sign} " in text or f" {sign}" in text
        joined = joined.replace(sign, "" if alone else " ")
    words = [NUMBERS.get(word, word) for word in PERIOD.sub("", joined).lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)
