"""What a scanner with its own habits makes of printed words."""

from __future__ import annotations

from functools import cache

import numpy as np

from simfl.data.benchmarks.provider_invoices.dice import Dice

CONFUSIONS = {
    "0": "O8D", "1": "lI7", "2": "Z7", "3": "8B", "4": "A9", "5": "S6", "6": "b8", "7": "1T", "8": "B3", "9": "g4",
    "a": "oe", "b": "h6", "c": "eo", "d": "cl", "e": "co", "f": "t", "g": "q9", "h": "b", "i": "l1", "k": "h",
    "l": "1I", "m": "rn", "n": "ru", "o": "0c", "p": "q", "r": "n", "s": "5", "t": "f", "u": "v", "v": "y", "y": "v",
    "B": "8", "D": "O", "E": "F", "G": "6", "I": "l", "O": "0", "S": "5", "T": "7", "Z": "2", ".": ",", ",": ".",
}  # fmt: skip


def noise_rate(group: int, groups: int, most: float) -> float:
    """The share of characters that a group's scanner misreads: 0 for the first, growing as the square to `most`."""
    return most * (group / max(1, groups - 1)) ** 2


@cache
def habits(namespace: str, seed: int, group: int) -> dict[str, str]:
    """What each character is misread as by one group's scanner, always the same."""
    dice = Dice(namespace, seed, "scanner", group)
    return {char: dice.pick(others) for char, others in CONFUSIONS.items()}


def misread(words: list[str], table: dict[str, str], rate: float, generator: np.random.Generator) -> list[str]:
    """The words with about `rate` of their characters replaced as `table` says; characters it lacks stay."""
    if not rate:
        return words
    text = "\n".join(words)
    hit = np.flatnonzero(generator.random(len(text)) < rate)
    chars = list(text)
    for i in hit.tolist():
        chars[i] = table.get(chars[i], chars[i])
    return "".join(chars).split("\n")
