"""A question with its answers, and numbers as they are printed and computed with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Asked:
    """One question of a page and its right answers."""

    field: str  # its kind
    question: str
    answers: tuple[str, ...]


def number(text: str) -> Decimal | None:
    """The number that a cell holds, or None."""
    return Decimal(text) if NUMBER.fullmatch(text) else None


def printed(value: Decimal) -> str:
    """A number with at most three decimals, four where it is below 1, without zeros at its end."""
    places = 4 if abs(value) < 1 else 3 if abs(value) < 100 else 1
    text = f"{round(value, places):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
