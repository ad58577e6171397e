"""Any folder of PDFs: pages to pretrain on without labels, or questions answered by the PDFs' own outlines.

A heading of the outline becomes an answer only where it is printed on the page that it points to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simfl.constraints import Amount, Count
from simfl.data.base import Data, Dataset
from simfl.data.io import pdf_pages, records
from simfl.data.io import printed_forms as printed
from simfl.data.io.gather import Gather, Pictures, finish, kept
from simfl.data.io.pdf_pages import UnreadablePdf
from simfl.errors import ConfigError, DataError, nearest
from simfl.seeds import rng

EDITION = 1
QUESTION = "Which section starts on this page?"


@dataclass(frozen=True)
class PdfFolder(Data):
    """Pages of any PDFs, unlabelled or asked for their headings; the uppermost folder of a file is its provider."""

    path: str  # a folder with PDFs, folders within it included; ~ and $VARIABLES are followed
    questions: Literal["none", "headings"] = "none"  # none: an example a page with neither question nor answer
    valid: Amount = 0.1  # share of the files, drawn by their names
    test: Amount = 0.1  # likewise
    unseen: tuple[str, ...] = ()  # providers whose files are in the split `unseen`
    pages: Count | None = None  # at most so many of a file, the first ones
    image_size: Count = 224  # pages are stored in colour, squeezed to this many pixels square

    def load(self, cache: Path) -> Dataset:
        if self.valid + self.test >= 1:
            raise ConfigError(f"data.valid, data.test: {self.valid}, {self.test} given, below 1 together")
        root = records.folder(self.path)
        files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.suffix.lower() == ".pdf"}
        if not files:
            raise DataError(f"data.path: {root} has no PDF")
        known = {_provider(name) for name in files}
        for provider in self.unseen:
            if provider not in known:
                raise ConfigError(f"data.unseen: no folder {provider!r} in {root}; {nearest(provider, known)}")
        files = dict(sorted(files.items()))
        return kept(cache, "pdf_folder", EDITION, self, files.values(), lambda: self.build(files))

    def build(self, files: Mapping[str, Path], name: str = "pdf_folder") -> Dataset:
        """The data set of these files by name, whose part before the first slash is the provider."""
        names = ("train", "valid", "test", "unseen")
        labelled = self.questions != "none"
        gathered = {split: Gather(Pictures(self.image_size), need_answers=labelled) for split in names}
        for file, path in files.items():
            gather = gathered[self._split(file)]
            try:
                with pdf_pages.opened(path) as document:
                    self._read(gather, document, file)
            except UnreadablePdf:
                gather.dropped["unreadable file"] += 1
        return finish(name, gathered, {"licence": "the files' own", "files": len(files)})

    def _split(self, name: str) -> str:
        if _provider(name) in self.unseen:
            return "unseen"
        place = float(rng("pdf_folder", "split", name).random())
        return "test" if place < self.test else "valid" if place < self.test + self.valid else "train"

    def _read(self, gather: Gather, document: Any, name: str) -> None:
        titles = defaultdict(list)
        for title, page in pdf_pages.outline(document) if self.questions == "headings" else ():
            titles[page].append(title)
        for number in range(min(len(document), self.pages or len(document))):
            if self.questions == "headings" and not titles[number]:
                gather.dropped["page without a heading"] += 1
                continue
            text = pdf_pages.words(document[number])
            answers = [shown for title in titles[number] if (shown := printed.text(text.words, title))]
            if not text.words:
                gather.dropped["page without text"] += 1
            elif titles[number] and not answers:
                gather.dropped["heading not printed"] += 1
            else:
                picture = pdf_pages.draw(document[number], self.image_size)
                key, provider = f"{name}-{number}", _provider(name)
                row = gather.page(name, key, picture, text.words, text.boxes, provider=provider)
                question, field = (QUESTION, "heading") if answers else ("", "page")
                gather.ask(key, row, question, list(dict.fromkeys(answers)), field)


def _provider(name: str) -> str:
    """The uppermost folder of a file, or nothing."""
    return name.partition("/")[0] if "/" in name else ""
