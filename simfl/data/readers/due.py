"""DUE: questions on documents, tables and forms with the words of several OCR tools.

Borchmann et al. 2021 (DUE: end-to-end document understanding benchmark). Nguyen et al. 2024 (federated document visual
question answering) train on its DocVQA, WikiTableQuestions and TabFact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from simfl.constraints import Whole
from simfl.data.base import Data, Dataset
from simfl.data.io import pdf_pages, records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.readers import due_format as due_files
from simfl.data.readers.due_format import Ocr, Question
from simfl.errors import DataError

EDITION = 1
DPI = 300  # at which fldocvqa renders pages


@dataclass(frozen=True)
class Due(Data):
    """One data set of the DUE benchmark in its official layout: DocVQA, WikiTableQuestions, TabFact and others."""

    path: str  # the folder of the set, with train/, dev/ or val/, test/, pdfs/ or png/; ~ and $VARIABLES are followed
    tool: str | None = None  # whose words: tesseract, microsoft_cv, djvu2hocr…; null: the first of each document
    pages: Literal["first", "all"] = "first"  # whose words; the picture is of the first page either way
    boxes: Literal["page", "rendered"] = (
        "page"  # divided by the page's size as OCR has it; rendered: 300 dpi, as fldocvqa
    )
    values: Literal["first", "joined"] = "first"  # of several values that belong together: paper 000's, or all in a row
    fields: bool = False  # true: what is asked is the name of a field (Kleister, DeepForm), and becomes its kind too
    image_size: Whole = 224  # pages are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pages that are not there

    TRAIN_DOCUMENTS: ClassVar[dict[str, int]] = {"wtq": 1346, "docvqa": 10194, "tabfact": 13163}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = due_files.files(root)
        sources = sorted({path for pair in files.values() for path in pair})
        return kept(cache, "due", EDITION, self, sources, lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, tuple[Path, Path]]) -> Dataset:
        gathered = {split: self._gather(root, split, pair) for split, pair in files.items()}
        card = {
            "licence": "each set's own; DUE's annotations CC BY 4.0",
            "words": self.tool or "of the first tool of each document",
            "boxes": "shares of the page" if self.boxes == "page" else f"shares of page 0 at {DPI} dpi, cut at 1",
        }
        return finish("due", gathered, card)

    def _gather(self, root: Path, split: str, pair: tuple[Path, Path]) -> Gather:
        withheld = split == "test" and _withheld(pair[0])
        gather = Gather(Pictures(self.image_size, self.missing), need_answers=split != "test")
        for where, document, content in due_files.documents(split, pair):
            name = records.text(where, document, "name")
            page = self._page(gather, root, where, name, content)
            for question in due_files.questions(where, document):
                answers = [] if withheld else self._answers(question)
                gather.ask(question.id, page, question.key, answers, question.key if self.fields else "")
        if withheld:
            gather.noted["answers withheld: all are 0"] += 1
        return gather

    def _answers(self, question: Question) -> list[str]:
        told = [value for value in question.values if value]
        if self.values == "first" or len(told) == 1:
            return told[0] if told else []
        return [", ".join(value[0] for value in told)] if told else []

    def _page(self, gather: Gather, root: Path, where: str, name: str, content: records.Record) -> int | None:
        if (known := gather.known(name)) is not None:
            return known
        ocr = due_files.ocr(where, content, self.tool)
        kept = ocr.page == 0 if self.pages == "first" else np.ones(len(ocr.page), bool)
        words = [word for word, keep in zip(ocr.words, kept, strict=True) if keep]
        boxes = self._shares(where, root, name, ocr)[kept].astype(np.float32).reshape(-1)
        picture = _picture(root, name, self.image_size)
        return gather.page(where, name, picture, words, boxes)

    def _shares(self, where: str, root: Path, name: str, ocr: Ocr) -> np.ndarray:
        """The boxes [n, 4] as shares of a page, cut to [0, 1]."""
        if self.boxes == "rendered":
            width, height = _rendered(root / "pdfs" / f"{name}.pdf")
            return np.clip(ocr.boxes / [width, height, width, height], 0.0, 1.0)
        if len(ocr.words) and int(ocr.page.max()) >= len(ocr.pages):
            raise DataError(
                f"{where}: structures.pages tells {len(ocr.pages)} pages, words are on {ocr.page.max() + 1}"
            )
        places = ocr.pages[ocr.page] if len(ocr.words) else np.ones((0, 4))
        sides = np.maximum(places[:, 2:] - places[:, :2], 1e-9)
        return np.clip((ocr.boxes - np.tile(places[:, :2], 2)) / np.tile(sides, 2), 0.0, 1.0)


def _picture(root: Path, name: str, size: int) -> Path | Callable[[], bytes] | None:
    """The first page: its PNG where there is one, else what draws it from the PDF."""
    stem = name.removesuffix(".pdf")
    png = records.found(root, f"png/{stem}/0.png", f"png/{stem}/1.png", f"images/{stem}.png")
    pdf = root / "pdfs" / f"{stem}.pdf"
    if png is not None or not pdf.is_file():
        return png or pdf
    return partial(_drawn, pdf, size) if size else None


def _drawn(pdf: Path, size: int) -> bytes:
    try:
        with pdf_pages.opened(pdf) as document:
            return pdf_pages.draw(document[0], size)
    except pdf_pages.UnreadablePdf as error:
        raise DataError(f"{pdf}: {error}") from error


def _rendered(pdf: Path) -> tuple[int, int]:
    """Width and height in pixels of page 0 at 300 dpi."""
    try:
        with pdf_pages.opened(pdf) as document:
            width, height = document[0].get_size()
    except pdf_pages.UnreadablePdf as error:
        raise DataError(f"{pdf}: {error}") from error
    return int(np.ceil(width * DPI / 72)), int(np.ceil(height * DPI / 72))


def _withheld(path: Path) -> bool:
    """Whether the answers are placeholders: all are 0, as in the public test part of DocVQA."""
    told = [
        value
        for where, document in due_files.annotated("test", path)
        for question in due_files.questions(where, document)
        for value in question.values
    ]
    return bool(told) and all(value == ["0"] for value in told)
