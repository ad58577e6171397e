"""Pictures of words as plain files with a list of what stands on them: the raw releases.

tab      PICTURE<tab>TEXT           deep-text-recognition-benchmark, PaddleOCR
space    PICTURE TEXT               TEXT may hold spaces
comma    PICTURE, "TEXT"            ICDAR 2003 to 2015, `gt.txt`
name     PICTURE [NUMBER]           MJSynth: the text is the middle of `182_slinking_71711.jpg`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simfl.constraints import Count
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import kept
from simfl.data.io.words import Alphabet, Words, finish
from simfl.errors import ConfigError, DataError

EDITION = 1
Form = Literal["tab", "space", "comma", "name"]


@dataclass(frozen=True)
class WordLists(Data):
    """Pictures of words with lists of their texts; each list is a source, and may be a client."""

    path: str  # the folder that the lists' names start from; ~ and $VARIABLES are followed
    train: tuple[str, ...] = ()  # names of list files
    valid: tuple[str, ...] = ()  # likewise
    test: tuple[str, ...] = ()  # likewise
    form: Form = "tab"  # of a line: picture, then text, divided by a tab, a space, a comma; name: MJSynth's
    images: str = ""  # the folder that pictures' names start from; empty: the folder of each list
    alphabet: Alphabet = "any"  # words with other characters are left out; printable: ASTER's 94
    limit: Count | None = None  # at most so many of each list, the first ones

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        named = {split: [root / name for name in getattr(self, split)] for split in ("train", "valid", "test")}
        lists = {split: paths for split, paths in named.items() if paths}
        if not lists:
            raise ConfigError("data.train, data.valid, data.test: none given, the names of list files are needed")
        sources = [path for paths in lists.values() for path in paths]
        for path in sources:
            if not path.is_file():
                raise DataError(f"data.path: the list {path} is not there")
        return kept(cache, "word_lists", EDITION, self, sources, lambda: self._build(root, lists))

    def _build(self, root: Path, lists: Mapping[str, list[Path]]) -> Dataset:
        gathered = {split: Words(self.alphabet) for split in lists}
        for split, paths in lists.items():
            for path in paths:
                self._read(gathered[split], root, path)
        return finish("word_lists", gathered, "each source's own")

    def _read(self, words: Words, root: Path, path: Path) -> None:
        folder = root / self.images if self.images else path.parent
        source = path.relative_to(root).with_suffix("").as_posix()
        for number, (where, line) in enumerate(records.lines(path)):
            if number == self.limit:
                return
            name, text = take_apart(where, line, self.form)
            picture = folder / name
            words.add(f"{source}/{name}", picture.read_bytes() if picture.is_file() else None, text, source)


def take_apart(where: str, line: str, form: Form) -> tuple[str, str]:
    """The picture and the text of a line; DataError if it has another form."""
    if form == "name":
        name = line.split()[0]
        found = re.fullmatch(r"[^_]*_(.+)_[^_]*", Path(name).stem)
        text = found[1] if found else None
    else:
        name, divider, text = line.partition({"tab": "\t", "space": " ", "comma": ","}[form])
        text = text.strip() if divider else None
        if text is not None and form == "comma":
            text = re.sub(r'\\(["\\])', r"\1", text[1:-1]) if re.fullmatch(r'".*"', text) else text
    if text is None:
        raise DataError(f"{where}: {line[:40]!r} is not of the form {form}")
    return name.strip(), text
