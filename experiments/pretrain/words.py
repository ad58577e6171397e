"""Public words for the tokenizer and the drawer: the lists of this folder, and the word tables of the Faker package.

    words.txt           written by hand
    invoice_words.txt   counts of words in 4,000 synthetic invoices, written by prepare.py

Faker has its tables as class attributes. Only the strings are read; its random functions are never called, so the
result depends on the pinned version only.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

LOCALES = ("en_US", "en_GB", "de_DE", "fr_FR", "nl_NL", "es_ES", "it_IT")
TABLES = ("lorem", "person", "address", "company", "job", "color")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")


def business() -> list[str]:
    """Return the words of words.txt in order, without duplicates."""
    lines = Path(__file__).with_name("words.txt").read_text(encoding="utf8").splitlines()
    return list(dict.fromkeys(word for line in lines if not line.startswith("#") for word in line.split()))


def invoice_words() -> list[tuple[str, int]]:
    """Return the words of invoice_words.txt with their counts."""
    lines = Path(__file__).with_name("invoice_words.txt").read_text(encoding="utf8").splitlines()
    return [(word, int(count)) for word, count in (line.split() for line in lines)]


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key in value for text in _strings(key)]
    if isinstance(value, list | tuple):
        return [text for part in value for text in _strings(part)]
    return []


def everyday() -> dict[str, list[str]]:
    """Return the words of Faker by table: lower case, at least two letters, Latin-1, sorted."""
    found: dict[str, set[str]] = {table: set() for table in TABLES}
    for table in TABLES:
        for locale in LOCALES:
            try:
                provider = importlib.import_module(f"faker.providers.{table}.{locale}").Provider
            except ModuleNotFoundError:
                continue
            texts = [
                text for name, value in sorted(vars(provider).items()) if name[0] != "_" for text in _strings(value)
            ]
            words = (word.lower() for text in texts if "{{" not in text for word in _WORD.findall(text))
            found[table].update(
                word for word in words if len(word) > 1 and word.isascii() | (max(map(ord, word)) < 256)
            )
    return {table: sorted(words) for table, words in found.items()}
