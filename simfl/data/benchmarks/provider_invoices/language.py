"""What a language brings to an invoice: wordings, names, goods, and how it writes dates and money."""

from __future__ import annotations

from dataclasses import dataclass

Halves = tuple[tuple[str, ...], tuple[str, ...]]  # wordings of the benchmark's providers; of all others


@dataclass(frozen=True)
class Language:
    """One language. Lists are written by hand for this project; people, places and companies are made up from them."""

    code: str
    labels: dict[str, Halves]  # a printed label: title, number, date, due, customer, item, ...
    months: tuple[str, ...]  # January first
    date_formats: tuple[str, ...]  # keys of `dates.FORMATS`
    separators: tuple[str, ...]  # thousands then decimal, for example ",."
    currencies: tuple[str, ...]  # "EUR €"
    tax_rates: tuple[int, ...]  # per mille; 0: no tax is charged, and none is printed
    first_names: tuple[str, ...]
    surnames: tuple[str, ...]  # even positions belong to the benchmark, odd ones to all others
    trades: tuple[str, ...]
    legal_forms: tuple[str, ...]
    streets: tuple[str, ...]  # "{} is replaced by the number"
    cities: tuple[str, ...]
    nouns: tuple[str, ...]  # goods

    def names(self, half: int) -> tuple[str, ...]:
        """The surnames of one half; no name is in both."""
        return self.surnames[half::2]


def halves(text: str) -> Halves:
    """`"a; b / c; d"` as `(("a", "b"), ("c", "d"))`."""
    first, second = text.split(" / ")
    return tuple(first.split("; ")), tuple(second.split("; "))


def label_table(text: str) -> dict[str, Halves]:
    """Lines of `name: wording; wording / wording; wording`."""
    lines = (line.strip().split(": ", 1) for line in text.strip().splitlines())
    return {name: halves(wordings) for name, wordings in lines}


def phrases(text: str) -> tuple[str, ...]:
    """A list separated by commas."""
    return tuple(part.strip() for part in text.replace("\n", " ").split(","))
