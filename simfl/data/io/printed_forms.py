"""Where a value stands among the words of a page, and how it is printed there.

A value is found only at the borders of words, so that 12.50 is not found in 112.50.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal

EDGES = ".,;:!?()[]{}\"'*|“”„‚’"
NUMBER = re.compile(
    r"[-+−]?\d{1,3}(?:(?P<group>[.,'’ ])\d{3})*(?:(?P<point>[.,])\d{2,4})?[-−]?|[-+−]? ?\d+[.,]\d{2,4}[-−]?"
)
CURRENCY = "€$£ EURUSDCHFGBPeur"
MONTHS = tuple(  # English, German, French
    names.split()
    for names in (
        "January February March April May June July August September October November December",
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    )
)


def text(words: Sequence[str], value: str) -> str | None:
    """The text as printed, whatever the case, or None."""
    found = _place(words, value)
    if found is None:
        return None
    shown = " ".join(words[found : found + len(value.split())])
    start = shown.casefold().find(value.casefold())
    return shown[start : start + len(value)] if start >= 0 else shown.strip(EDGES + " ")


def _place(words: Sequence[str], value: str) -> int | None:
    """The first word of the text, marks at the edges of words aside."""
    tokens = [_bare(token).casefold() for token in value.split()]
    bare = [_bare(word).casefold() for word in words]
    starts = (start for start in range(len(bare) - len(tokens) + 1) if bare[start : start + len(tokens)] == tokens)
    return next(starts, None) if any(tokens) else None


def compact(words: Sequence[str], value: str) -> str | None:
    """A code that may be printed in groups, such as an IBAN."""
    wanted = "".join(value.split()).upper()
    for start in range(len(words)):
        joined = ""
        for end in range(start, min(start + 10, len(words))):
            joined += _bare(words[end]).upper()
            if joined == wanted:
                return " ".join(words[start : end + 1]).strip(EDGES + " ")
            if not wanted.startswith(joined):
                break
    return None


def amount(words: Sequence[str], value: Decimal) -> str | None:
    """An amount with its decimals, in any of the usual spellings; without its currency. Two decimals go before four."""
    found = []
    for start in range(len(words)):
        for length in (1, 2, 3):
            shown = " ".join(words[start : start + length]).strip(CURRENCY + ";:()*")
            if start + length <= len(words) and shown and number(shown) == value:
                found.append(shown)
    return min(found, key=lambda shown: len(re.split("[.,]", shown)[-1]), default=None)


def number(shown: str) -> Decimal | None:
    """The amount that a text is, or None; a number without decimals is none."""
    found = NUMBER.fullmatch(shown.rstrip(".,"))
    if found is None:
        return None
    digits = re.sub(r"[^\d.,]", "", shown.rstrip(".,"))
    point = max(digits.rfind("."), digits.rfind(","))
    if point < 0 or len(digits) - point - 1 not in (2, 4) or (found["group"] is not None and found["point"] is None):
        return None
    plain = re.sub(r"[.,]", "", digits[:point]) + "." + digits[point + 1 :]
    return Decimal(plain) * (-1 if re.search(r"[-−]", shown) else 1)


def day(words: Sequence[str], value: date) -> str | None:
    """The first place of a date in any of the usual spellings; month before day only where it can be nothing else."""
    places = {form: place for form in _spellings(value) if (place := _place(words, form)) is not None}
    return text(words, min(places, key=lambda form: places[form])) if places else None


def _spellings(value: date) -> Iterator[str]:
    d, m, y = value.day, value.month, value.year
    yield from (f"{y:04}-{m:02}-{d:02}", f"{y:04}{m:02}{d:02}", f"{y:04}/{m:02}/{d:02}")
    for mark in "./-":
        yield from (f"{d:02}{mark}{m:02}{mark}{y}", f"{d}{mark}{m}{mark}{y}", f"{d:02}{mark}{m:02}{mark}{y % 100:02}")
    for months in MONTHS:
        name = months[m - 1]
        for month in dict.fromkeys((name, name[:3])):
            yield from (f"{d} {month} {y}", f"{d:02} {month} {y}", f"{month} {d} {y}", f"{month} {d:02} {y}")
    if d > 12:
        yield f"{m:02}/{d:02}/{y}"


def _bare(word: str) -> str:
    return word.strip(EDGES)
