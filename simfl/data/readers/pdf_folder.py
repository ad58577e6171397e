"""Folders of PDFs: unlabelled pages for pretraining, or questions answered by the outlines of the PDFs.

A heading of the outline becomes an answer only if it is printed on the page that it points to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simfl.constraints import NonNegativeFloat, PositiveInt
from simfl.data.base import Data, Dataset
from simfl.data.io import pdf, printed_values, records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder, build_question_dataset
from simfl.errors import ConfigError, DataError, nearest
from simfl.seeds import rng

VERSION = 1
QUESTION = "Which section starts on this page?"
SPLITS = ("train", "valid", "test", "unseen")


@dataclass(frozen=True)
class PdfFolder(Data):
    """Pages of any PDFs, unlabelled or with questions on their headings; each top folder is a provider."""

    path: str  # folder with PDFs, in subfolders too; ~ and $VARIABLES are expanded
    questions: Literal["none", "headings"] = "none"  # none: one example a page without question and answer
    valid: NonNegativeFloat = 0.1  # share of the files for validation, drawn by their names
    test: NonNegativeFloat = 0.1  # share of the files for testing, drawn by their names
    unseen: tuple[str, ...] = ()  # providers whose files belong to the split `unseen`
    pages: PositiveInt | None = None  # read only the first so many pages of a file
    image_size: PositiveInt = 224  # pages are stored in colour, resized to this many pixels square

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        if self.valid + self.test >= 1:
            raise ConfigError(f"data.valid, data.test: {self.valid}, {self.test} given, their sum must be below 1")
        root = records.resolve_folder(self.path)
        files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.suffix.lower() == ".pdf"}
        if not files:
            raise DataError(f"data.path: {root} has no PDF")
        providers = {_provider(name) for name in files}
        for provider in self.unseen:
            if provider not in providers:
                raise ConfigError(f"data.unseen: no folder {provider!r} in {root}; {nearest(provider, providers)}")
        files = dict(sorted(files.items()))
        return load_or_build(cache, "pdf_folder", VERSION, self, files.values(), lambda: self.build(files))

    def build(self, files: Mapping[str, Path], name: str = "pdf_folder") -> Dataset:
        """Build the data set of these files by name, whose part before the first slash is the provider."""
        need_answers = self.questions != "none"
        images = ImageStorage(self.image_size)
        builders = {split: QuestionSplitBuilder(images, need_answers=need_answers) for split in SPLITS}
        for file, path in files.items():
            builder = builders[self._split(file)]
            try:
                with pdf.open_pdf(path) as document:
                    self._add_document(builder, document, file)
            except pdf.UnreadablePdf:
                builder.dropped["unreadable file"] += 1
        return build_question_dataset(name, builders, {"licence": "the files' own", "files": len(files)})

    def _split(self, name: str) -> str:
        if _provider(name) in self.unseen:
            return "unseen"
        draw = float(rng("pdf_folder", "split", name).random())
        return "test" if draw < self.test else "valid" if draw < self.test + self.valid else "train"

    def _add_document(self, builder: QuestionSplitBuilder, document: pdf.Document, name: str) -> None:
        headings: dict[int, list[str]] = defaultdict(list)
        for heading, page in pdf.read_outline(document) if self.questions == "headings" else ():
            headings[page].append(heading)
        for number in range(min(len(document), self.pages or len(document))):
            if self.questions == "headings" and not headings[number]:
                builder.dropped["page without a heading"] += 1
            else:
                self._add_page(builder, document[number], name, number, headings[number])

    def _add_page(
        self, builder: QuestionSplitBuilder, page: pdf.Page, name: str, number: int, headings: list[str]
    ) -> None:
        text = pdf.extract_text(page)
        answers = [shown for heading in headings if (shown := printed_values.find_text(text.words, heading))]
        if not text.words:
            builder.dropped["page without text"] += 1
        elif headings and not answers:
            builder.dropped["heading not printed"] += 1
        else:
            image = pdf.render_page(page, self.image_size)
            id = f"{name}-{number}"
            row = builder.add_page(name, id, image, text.words, text.boxes, provider=_provider(name))
            question, field = (QUESTION, "heading") if answers else ("", "page")
            builder.add_question(id, row, question, list(dict.fromkeys(answers)), field)


def _provider(name: str) -> str:
    """Return the top folder of a file; empty if it is in none."""
    return name.partition("/")[0] if "/" in name else ""
