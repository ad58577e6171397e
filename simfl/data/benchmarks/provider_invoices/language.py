"""The contribution of a language to an invoice: wordings, names, goods, and formats of dates and money."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

Halves = tuple[tuple[str, ...], tuple[str, ...]]  # wordings of the benchmark's providers; wordings of all others


@dataclass(frozen=True)
class Language:
    """One language of invoices."""

    code: str
    labels: dict[str, Halves]  # a printed label: title, number, date, due, customer, item, ...
    months: tuple[str, ...]  # January first
    date_formats: tuple[str, ...]  # keys of `DATE_FORMATS`
    separators: tuple[str, ...]  # thousands then decimal, for example ",."
    currencies: tuple[str, ...]  # "EUR €"
    tax_rates: tuple[int, ...]  # per mille; 0: no tax is charged, and none is printed
    first_names: tuple[str, ...]
    surnames: tuple[str, ...]  # even positions belong to the benchmark, odd ones to all others
    trades: tuple[str, ...]
    legal_forms: tuple[str, ...]
    streets: tuple[str, ...]  # "{}" is replaced by the number
    cities: tuple[str, ...]
    nouns: tuple[str, ...]  # goods

    def names(self, half: int) -> tuple[str, ...]:
        """Return the surnames of one half. No name is in both halves."""
        return self.surnames[half::2]


def parse_halves(text: str) -> Halves:
    """Parse `"a; b / c; d"` into `(("a", "b"), ("c", "d"))`."""
    first, second = text.split(" / ")
    return tuple(first.split("; ")), tuple(second.split("; "))


def parse_labels(text: str) -> dict[str, Halves]:
    """Parse lines of `name: wording; wording / wording; wording`."""
    lines = (line.strip().split(": ", 1) for line in text.strip().splitlines())
    return {name: parse_halves(wordings) for name, wordings in lines}


def parse_list(text: str) -> tuple[str, ...]:
    """Parse a list separated by commas."""
    return tuple(part.strip() for part in text.replace("\n", " ").split(","))


DateFormat = Callable[[date, str], str]  # takes the date and the name of its month

DATE_FORMATS: dict[str, DateFormat] = {
    "y4-m-d": lambda d, month: f"{d.year}-{d.month:02}-{d.day:02}",
    "d/m/y4": lambda d, month: f"{d.day:02}/{d.month:02}/{d.year}",
    "m/d/y4": lambda d, month: f"{d.month:02}/{d.day:02}/{d.year}",
    "d/m/y2": lambda d, month: f"{d.day:02}/{d.month:02}/{d.year % 100:02}",
    "d.m.y4": lambda d, month: f"{d.day:02}.{d.month:02}.{d.year}",
    "d.m.y2": lambda d, month: f"{d.day:02}.{d.month:02}.{d.year % 100:02}",
    "d-m-y4": lambda d, month: f"{d.day:02}-{d.month:02}-{d.year}",
    "d-m-y2": lambda d, month: f"{d.day:02}-{d.month:02}-{d.year % 100:02}",
    "d-mon-y2": lambda d, month: f"{d.day:02}-{month[:3]}-{d.year % 100:02}",
    "d month y4": lambda d, month: f"{d.day} {month} {d.year}",
    "d. month y4": lambda d, month: f"{d.day}. {month} {d.year}",
    "d. mon y4": lambda d, month: f"{d.day}. {month[:3]}. {d.year}",
    "month d, y4": lambda d, month: f"{month} {d.day}, {d.year}",
    "mon d, y4": lambda d, month: f"{month[:3]} {d.day}, {d.year}",
}
