"""Word tables for the drawer: every OCR word that can be printed, with its tokens, as arrays on the device.

The tokens of a word do not depend on its neighbours (see tokenizer.py), so a drawn sequence of words is encoded exactly
as the `docvqa` objective would encode it. Numbers, dates, codes and nonce words are generated here from named seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from words import business, everyday

from simfl.seeds import rng

MAX_TOKENS = 16  # per word
CURRENCIES = ("eur", "usd", "gbp", "chf", "€", "$", "£")
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    *(
        "december",
        "jan",
        "feb",
        "mar",
        "apr",
        "jun",
        "jul",
        "aug",
        "sep",
        "oct",
        "nov",
        "dec",
        "januar",
        "februar",
        "märz",
    ),
    *("mai", "juni", "juli", "oktober", "dezember", "janvier", "février", "mars", "avril", "juin", "juillet", "août"),
    *("septembre", "octobre", "novembre", "décembre", "januari", "februari", "maart", "augustus"),
)  # english and its short forms, then the different spellings of german, french and dutch


@dataclass(frozen=True)
class WordTable:
    """N words with `tokens` [N, MAX_TOKENS] (int16, 0 beyond `length`), and `length` and `chars` [N] (int64).

    `kinds` gives the first index and the end of each kind of word.
    """

    words: tuple[str, ...]
    tokens: Tensor
    length: Tensor
    chars: Tensor
    kinds: dict[str, tuple[int, int]]

    def save(self) -> dict[str, np.ndarray]:
        """Return the table as arrays for a file."""
        bounds = np.array([bound for pair in self.kinds.values() for bound in pair])
        return {
            "table_words": np.frombuffer("\n".join(self.words).encode(), np.uint8),
            "table_kinds": np.frombuffer("\n".join(self.kinds).encode(), np.uint8),
            "table_bounds": bounds.reshape(-1, 2),
            "table_pieces": self.tokens.numpy(),
        }

    @staticmethod
    def load(saved: Mapping[str, np.ndarray]) -> WordTable:
        """Return the table from the arrays of `save`."""
        words, names = (tuple(saved[f"table_{part}"].tobytes().decode().split("\n")) for part in ("words", "kinds"))
        kinds = {name: (int(low), int(high)) for name, (low, high) in zip(names, saved["table_bounds"], strict=True)}
        return WordTable.create(words, torch.from_numpy(saved["table_pieces"]), kinds)

    @staticmethod
    def create(words: tuple[str, ...], tokens: Tensor, kinds: dict[str, tuple[int, int]]) -> WordTable:
        """Create a table of these words."""
        return WordTable(words, tokens, (tokens > 0).sum(1), torch.tensor([len(word) for word in words]), kinds)

    def to(self, device: torch.device) -> WordTable:
        """Return the table on a device."""
        return WordTable(self.words, self.tokens.to(device), self.length.to(device), self.chars.to(device), self.kinds)


def _amount(draw: np.random.Generator) -> str:
    value = math.exp(draw.uniform(math.log(0.5), math.log(99999)))
    text = f"{value:,.2f}" if draw.random() < 0.6 else f"{value:.2f}"
    if draw.random() < 0.5:
        text = text.translate(str.maketrans(",.", ".,"))
    roll = draw.random()
    return text if roll < 0.85 else f"{draw.choice(['$', '€', '£'])}{text}" if roll < 0.95 else f"-{text}"


def _date(draw: np.random.Generator) -> str:
    day, month, year = int(draw.integers(1, 29)), int(draw.integers(1, 13)), int(draw.integers(1990, 2036))
    forms = (
        f"{year}-{month:02d}-{day:02d}",
        f"{day:02d}.{month:02d}.{year}",
        f"{day:02d}/{month:02d}/{year}",
        f"{day}.{month}.{year}",
        f"{month:02d}/{day:02d}/{year}",
        f"{day:02d}-{month:02d}-{year}",
        f"{day:02d}/{month:02d}/{year % 100:02d}",
        f"{year}/{month:02d}/{day:02d}",
    )
    return str(draw.choice(forms))


def _letters(draw: np.random.Generator, low: int, high: int) -> str:
    return "".join(chr(97 + c) for c in draw.integers(0, 26, int(draw.integers(low, high))))


def _digits(draw: np.random.Generator, low: int, high: int) -> str:
    return "".join(str(d) for d in draw.integers(0, 10, int(draw.integers(low, high))))


def _code(draw: np.random.Generator) -> str:
    year = str(draw.integers(1990, 2036))
    forms = (
        _digits(draw, 4, 10),
        _letters(draw, 1, 4) + _digits(draw, 3, 8),
        f"{_letters(draw, 1, 4)}-{_digits(draw, 3, 7)}",
        f"{year}-{_digits(draw, 3, 6)}",
        f"{_letters(draw, 1, 4)}-{year}-{_digits(draw, 2, 5)}",
        f"{_letters(draw, 1, 3)}/{year[2:]}/{_digits(draw, 3, 6)}",
        f"{year}/{_digits(draw, 3, 6)}",
        f"#{_digits(draw, 3, 7)}",
        f"{_digits(draw, 2, 5)}-{_digits(draw, 2, 5)}",
        f"{_digits(draw, 2, 4)}.{_digits(draw, 3, 6)}",
        f"+{_digits(draw, 2, 5)}",
    )
    return str(draw.choice(forms))


def _nonce(draw: np.random.Generator) -> str:
    vowels, consonants = "aeiouy", "bcdfghjklmnprstvwz"
    return "".join(
        draw.choice(list(consonants)) + draw.choice(list(vowels)) for _ in range(draw.integers(1, 4))
    ) + _letters(draw, 0, 3)


def _mail(draw: np.random.Generator) -> str:
    ending = draw.choice(["com", "org", "net", "de", "fr", "nl", "example"])
    return f"{_nonce(draw)}@{_nonce(draw)}.{ending}" if draw.random() < 0.6 else f"www.{_nonce(draw)}.{ending}"


def _generate(name: str, count: int, form: Callable[[np.random.Generator], str]) -> list[str]:
    draw = rng("pretrain", "words", name)
    return sorted({form(draw) for _ in range(count)})


def kinds(scale: float = 1.0) -> dict[str, list[str]]:
    """Return the words of each kind; `scale` reduces the number of generated ones, for tests."""
    faker = everyday()
    common = [word for word in business() if word.isalpha()]
    return {
        "common": common,
        "word": sorted({word for table in ("lorem", "company", "job", "color") for word in faker[table]}),
        "name": sorted({word for table in ("person", "address") for word in faker[table]}),
        "nonce": _generate("nonce", int(20000 * scale), _nonce),
        "amount": _generate("amount", int(80000 * scale), _amount),
        "date": _generate("date", int(30000 * scale), _date),
        "code": _generate("code", int(80000 * scale), _code),
        "group": _generate("group", int(10000 * scale), lambda draw: _digits(draw, 2, 5)),
        "mail": _generate("mail", int(10000 * scale), _mail),
        "count": [str(number) for number in range(1, 400)],
        "day": [f"{day}{mark}" for day in range(1, 32) for mark in ("", ".")],
        "year": [str(year) for year in range(1990, 2036)],
        "percent": [f"{rate}%" for rate in range(31)] + [f"{rate},{half}%" for rate in range(30) for half in (0, 5)],
        "currency": list(CURRENCIES),
        "month": list(MONTHS),
    }


def build(
    tokenizer: Tokenizer, words: dict[str, list[str]], prompt: Iterable[str], documents: Sequence[str] = ()
) -> WordTable:
    """Build the table of the words of each kind, of `prompt` words, and of `documents` words.

    Words with more than MAX_TOKENS tokens or with unknown characters are dropped, except document words, which are cut.
    """
    tokenizer.enable_padding(length=MAX_TOKENS, pad_id=0)
    rows: list[str] = []
    blocks: list[np.ndarray] = []
    ranges: dict[str, tuple[int, int]] = {}
    for kind, members in (*words.items(), ("prompt", list(dict.fromkeys(prompt))), ("document", list(documents))):
        encoded = [found.ids for found in tokenizer.encode_batch_fast(members, add_special_tokens=False)]
        keep = [kind == "document" or (len(ids) <= MAX_TOKENS and 2 not in ids) for ids in encoded]
        start = len(rows)
        rows += [word for word, kept in zip(members, keep, strict=True) if kept]
        chosen = [ids[:MAX_TOKENS] for ids, kept in zip(encoded, keep, strict=True) if kept]
        blocks.append(np.array(chosen, np.int16).reshape(-1, MAX_TOKENS))
        ranges[kind] = (start, len(rows))
    tokenizer.no_padding()
    return WordTable.create(tuple(rows), torch.from_numpy(np.concatenate(blocks)), ranges)
