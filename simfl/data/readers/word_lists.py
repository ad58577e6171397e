"""Word images as plain files with lists of their texts, as raw releases have them.

tab      IMAGE<tab>TEXT           deep-text-recognition-benchmark, PaddleOCR
space    IMAGE TEXT               TEXT may contain spaces
comma    IMAGE, "TEXT"            ICDAR 2003 to 2015, `gt.txt`
name     IMAGE [NUMBER]           MJSynth: the text is the middle of `182_slinking_71711.jpg`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simfl.constraints import PositiveInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.word_images import Alphabet, WordSplitBuilder, build_word_dataset
from simfl.errors import ConfigError, DataError

VERSION = 1
LineFormat = Literal["tab", "space", "comma", "name"]


@dataclass(frozen=True)
class WordLists(Data):
    """Word images with lists of their texts; each list is a source, and may be a client."""

    path: str  # folder that the names of the lists are relative to; ~ and $VARIABLES are expanded
    train: tuple[str, ...] = ()  # names of the training lists
    valid: tuple[str, ...] = ()  # names of the validation lists
    test: tuple[str, ...] = ()  # names of the test lists
    form: LineFormat = "tab"  # of a line: image, then text, separated by a tab, a space, a comma; name: MJSynth's
    images: str = ""  # folder that the image names are relative to; empty: the folder of each list
    alphabet: Alphabet = "any"  # words with other characters are left out; printable: ASTER's 94
    limit: PositiveInt | None = None  # read only the first so many lines of each list

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        named = {split: [root / name for name in getattr(self, split)] for split in ("train", "valid", "test")}
        lists = {split: paths for split, paths in named.items() if paths}
        if not lists:
            raise ConfigError("data.train, data.valid, data.test: all are empty, give the names of list files")
        sources = [path for paths in lists.values() for path in paths]
        for path in sources:
            if not path.is_file():
                raise DataError(f"data.path: the list {path} is missing")
        return load_or_build(cache, "word_lists", VERSION, self, sources, lambda: self._build(root, lists))

    def _build(self, root: Path, lists: Mapping[str, list[Path]]) -> Dataset:
        builders = {split: WordSplitBuilder(self.alphabet) for split in lists}
        for split, paths in lists.items():
            for path in paths:
                self._add_list(builders[split], root, path)
        return build_word_dataset("word_lists", builders, "each source's own")

    def _add_list(self, builder: WordSplitBuilder, root: Path, path: Path) -> None:
        folder = root / self.images if self.images else path.parent
        source = path.relative_to(root).with_suffix("").as_posix()
        for number, (where, line) in enumerate(records.read_lines(path)):
            if number == self.limit:
                return
            name, text = parse_line(where, line, self.form)
            image = records.inside(folder, name, where)
            builder.add(f"{source}/{name}", image.read_bytes() if image.is_file() else None, text, source)


def parse_line(where: str, line: str, form: LineFormat) -> tuple[str, str]:
    """Return the image name and the text of a line; DataError if the line has another format."""
    if form == "name":
        name = line.split()[0]
        match = re.fullmatch(r"[^_]*_(.+)_[^_]*", Path(name).stem)
        text = match[1] if match else None
    else:
        name, separator, text = line.partition({"tab": "\t", "space": " ", "comma": ","}[form])
        text = text.strip() if separator else None
        if text is not None and form == "comma":
            text = re.sub(r'\\(["\\])', r"\1", text[1:-1]) if re.fullmatch(r'".*"', text) else text
    if text is None:
        raise DataError(f"{where}: {line[:40]!r} does not have the format {form}")
    return name.strip(), text
