"""Words that are drawn: word lists, the kind of words of each client, and the words held out for tests.

The lists come from a pip package, most frequent words first, or from Debian's American dictionary (`wamerican`), which
is larger. simfl does not install the latter; the error names the command. It has no word frequencies, so its order is
random, by a hash of each word; names of people and of places are one list there.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from simfl.data.benchmarks.package_file import PackageFile
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.errors import DataError
from simfl.seeds import seed_for

ZXCVBN = PackageFile("zxcvbn", "4.5.0", "frequency_lists.py", "e7542100ba2abcdf")  # MIT
DEBIAN = "wamerican"
SHARE = "SIMFL_SHARE"  # environment variable that replaces /usr/share
NUM_COMMON = 12_000  # most frequent words of Wikipedia that are used
HELD_OUT_SHARE = 5  # one word in this many is in no training or validation picture
LICENCES = {"zxcvbn": "word list MIT", DEBIAN: "word list under SCOWL's licence (permissive)"}

WordLists = dict[str, list[str]]  # `common` words, first names as `names`, and `surnames`: 3 to 12 letters a to z


def words_file(source: str) -> Path:
    """Return the file with the words. Raise DataError, with the command that installs it, if it is missing."""
    if source == "zxcvbn":
        return ZXCVBN.path("word5")
    path = Path(os.environ.get(SHARE, "/usr/share")) / "dict/american-english"
    if not path.is_file():
        raise DataError(f"data.words: {path} is missing; install it with: apt install {DEBIAN}")
    return path


def words_source(source: str) -> str:
    """Return package and version of a source, for a data card."""
    return ZXCVBN.source if source == "zxcvbn" else DEBIAN


def word_lists(source: str = "zxcvbn") -> WordLists:
    """Return the lists of a source, each ordered from the most to the least frequently drawn word."""
    return _read_zxcvbn(words_file(source)) if source == "zxcvbn" else _read_dictionary(words_file(source))


@cache
def _read_zxcvbn(path: Path) -> WordLists:
    """Parse the package's Python file without running it: a mapping of texts that are split at commas."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    table = next(node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict))
    found = {
        ast.literal_eval(key): _select(ast.literal_eval(value.func.value).split(","))
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    }
    return {
        "common": found["english_wikipedia"][:NUM_COMMON],
        "names": found["female_names"][:1500] + found["male_names"][:900],
        "surnames": found["surnames"][:6000],
    }


@cache
def _read_dictionary(path: Path) -> WordLists:
    """Read one word a line; lower-case words are common, words whose first letter alone is a capital are names."""
    words = sorted(_select(path.read_text(encoding="utf-8").split()), key=lambda word: seed_for("word5", DEBIAN, word))
    names = [word.lower() for word in words if word == word.capitalize()]
    return {"common": [word for word in words if word.islower()], "names": names, "surnames": names}


def _select(words: list[str]) -> list[str]:
    return [word for word in words if word.isascii() and word.isalpha() and 3 <= len(word) <= 12]


def is_held_out(text: str) -> bool:
    """Return whether a word, regardless of case, occurs in test splits only."""
    return seed_for("word5", "word", text.lower()) % HELD_OUT_SHARE == 0


def draw_word(
    client: str, random: RandomStream, held_out: bool, longest: int | None = None, source: str = "zxcvbn"
) -> str:
    """Draw a word of a client's kind with at most `longest` characters, from the held-out words or from the others."""
    lists = word_lists(source)
    while is_held_out(text := KINDS[client](random, lists)) is not held_out or len(text) > (longest or len(text)):
        pass
    return text


def _frequent(random: RandomStream, words: list[str]) -> str:
    """Draw a word of a list; earlier words are more likely."""
    return words[int(len(words) * random.random() ** 2)]


def _print(random: RandomStream, lists: WordLists) -> str:
    text = _frequent(random, lists["common"])
    return text.capitalize() if random.random() < 0.3 else text


def _sign(random: RandomStream, lists: WordLists) -> str:
    while len(text := _frequent(random, lists["common"])) > 7:
        pass
    return text.upper()


def _hand(random: RandomStream, lists: WordLists) -> str:
    if random.random() < 0.3:
        return _frequent(random, lists["names"]).capitalize()
    return _frequent(random, lists["common"])


def _night(random: RandomStream, lists: WordLists) -> str:
    return _frequent(random, lists["surnames"]).capitalize()


def _receipt(random: RandomStream, lists: WordLists) -> str:
    return random.choice((_price, _price, _date, _code, _amount))(random)


def _price(random: RandomStream) -> str:
    price = f"{random.randint(0, 99)}.{random.randint(0, 99):02}"
    return random.choice(("", "", "$", "-")) + price


def _date(random: RandomStream) -> str:
    day, month, year = random.randint(1, 28), random.randint(1, 12), random.randint(4, 25)
    mark = random.choice("/.-")
    return f"{day:02}{mark}{month:02}{mark}{random.choice((f'{year:02}', f'20{year:02}'))}"


def _code(random: RandomStream) -> str:
    letters = "".join(random.choice("ABCDEFGHKLMNPRSTVWX") for _ in range(random.randint(1, 3)))
    return f"{letters}{random.choice(('', '-', '#'))}{random.randint(10, 99999)}"


def _amount(random: RandomStream) -> str:
    return random.choice((f"x{random.randint(1, 24)}", f"{random.randint(1, 25)}%", f"{random.randint(100, 999)}g"))


KINDS: dict[str, Callable[[RandomStream, WordLists], str]] = {
    "print": _print,
    "sign": _sign,
    "hand": _hand,
    "receipt": _receipt,
    "night": _night,
}
