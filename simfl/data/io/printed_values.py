"""Search of a known value among the words of a page. Each function returns the value as the page prints it.

Matches start and end at word borders, so 12.50 does not match 112.50.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal

PUNCTUATION = ".,;:!?()[]{}\"'*|“”„‚’"
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


def find_text(words: Sequence[str], value: str) -> str | None:
    """Return the text as printed, ignoring case, or None."""
    start = _index(words, value)
    if start is None:
        return None
    shown = " ".join(words[start : start + len(value.split())])
    offset = shown.casefold().find(value.casefold())
    return shown[offset : offset + len(value)] if offset >= 0 else shown.strip(PUNCTUATION + " ")


def _index(words: Sequence[str], value: str) -> int | None:
    """Return the index of the value's first word, ignoring case and punctuation around words, or None."""
    tokens = [token.strip(PUNCTUATION).casefold() for token in value.split()]
    bare = [word.strip(PUNCTUATION).casefold() for word in words]
    starts = (start for start in range(len(bare) - len(tokens) + 1) if bare[start : start + len(tokens)] == tokens)
    return next(starts, None) if any(tokens) else None


def find_code(words: Sequence[str], value: str) -> str | None:
    """Return a code that may be printed in groups, such as an IBAN, or None."""
    wanted = "".join(value.split()).upper()
    for start in range(len(words)):
        joined = ""
        for end in range(start, min(start + 10, len(words))):
            joined += words[end].strip(PUNCTUATION).upper()
            if joined == wanted:
                return " ".join(words[start : end + 1]).strip(PUNCTUATION + " ")
            if not wanted.startswith(joined):
                break
    return None


def find_amount(words: Sequence[str], value: Decimal) -> str | None:
    """Return an amount with decimals in any common notation, without its currency; prefer two decimals to four."""
    found = []
    for start in range(len(words)):
        for length in (1, 2, 3):
            shown = " ".join(words[start : start + length]).strip(CURRENCY + ";:()*")
            if start + length <= len(words) and shown and parse_amount(shown) == value:
                found.append(shown)
    return min(found, key=lambda shown: len(re.split("[.,]", shown)[-1]), default=None)


def parse_amount(shown: str) -> Decimal | None:
    """Parse a printed amount; None if the text is not an amount with decimals."""
    match = NUMBER.fullmatch(shown.rstrip(".,"))
    if match is None:
        return None
    digits = re.sub(r"[^\d.,]", "", shown.rstrip(".,"))
    point = max(digits.rfind("."), digits.rfind(","))
    if point < 0 or len(digits) - point - 1 not in (2, 4) or (match["group"] is not None and match["point"] is None):
        return None
    plain = re.sub(r"[.,]", "", digits[:point]) + "." + digits[point + 1 :]
    return Decimal(plain) * (-1 if re.search(r"[-−]", shown) else 1)


def find_date(words: Sequence[str], value: date) -> str | None:
    """Return the first occurrence of a date in any common notation, or None.

    Month before day counts only if the day is above 12.
    """
    indices = {form: index for form in _date_forms(value) if (index := _index(words, form)) is not None}
    return find_text(words, min(indices, key=lambda form: indices[form])) if indices else None


def _date_forms(value: date) -> Iterator[str]:
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
