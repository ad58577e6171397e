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

from simfl.constraints import NonNegativeInt
from simfl.data.base import Data, Dataset
from simfl.data.io import pdf, records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.images import MissingImages
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder, build_question_dataset
from simfl.data.readers import due_format
from simfl.data.readers.due_format import DueDocument, DueFiles, DueOcr, DueQuestion
from simfl.errors import DataError

VERSION = 1
DPI = 300  # resolution at which fldocvqa renders pages


@dataclass(frozen=True)
class Due(Data):
    """One data set of the DUE benchmark in its official layout: DocVQA, WikiTableQuestions, TabFact and others."""

    path: str  # folder of the set, with train/, dev/ or val/, test/, pdfs/ or png/; ~ and $VARIABLES are expanded
    tool: str | None = None  # OCR tool: tesseract, microsoft_cv, djvu2hocr…; null: the first of each document
    pages: Literal["first", "all"] = "first"  # pages whose words are used; the image is always the first page
    boxes: Literal["page", "rendered"] = "page"  # relative to OCR's page size, or to page 0 at 300 dpi (fldocvqa)
    values: Literal["first", "joined"] = "first"  # of an answer with several values: the first (paper 000), or all
    fields: bool = False  # true: the question is the name of a field (Kleister, DeepForm), which is also its kind
    image_size: NonNegativeInt = 224  # pages are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing pages

    TRAIN_DOCUMENTS: ClassVar[dict[str, int]] = {"wtq": 1346, "docvqa": 10194, "tabfact": 13163}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = due_format.find_files(root)
        sources = sorted({path for pair in files.values() for path in (pair.annotations, pair.contents)})
        return load_or_build(cache, "due", VERSION, self, sources, lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, DueFiles]) -> Dataset:
        builders = {split: self._read_split(root, split, pair) for split, pair in files.items()}
        card = {
            "licence": "each set's own; DUE's annotations CC BY 4.0",
            "words": self.tool or "of the first tool of each document",
            "boxes": "shares of the page" if self.boxes == "page" else f"shares of page 0 at {DPI} dpi, clipped to 1",
        }
        return build_question_dataset("due", builders, card)

    def _read_split(self, root: Path, split: str, files: DueFiles) -> QuestionSplitBuilder:
        withheld = split == "test" and _answers_are_placeholders(files.annotations)
        builder = QuestionSplitBuilder(ImageStorage(self.image_size, self.missing), need_answers=split != "test")
        for document in due_format.read_documents(split, files):
            page = self._add_page(builder, root, document)
            for question in due_format.read_questions(document.where, document.annotations):
                answers = [] if withheld else self._answers(question)
                builder.add_question(question.id, page, question.key, answers, question.key if self.fields else "")
        if withheld:
            builder.noted["answers withheld: all are 0"] += 1
        return builder

    def _answers(self, question: DueQuestion) -> list[str]:
        values = [value for value in question.values if value]
        if self.values == "first" or len(values) == 1:
            return values[0] if values else []
        return [", ".join(value[0] for value in values)] if values else []

    def _add_page(self, builder: QuestionSplitBuilder, root: Path, document: DueDocument) -> int | None:
        if (row := builder.page_row(document.name)) is not None:
            return row
        ocr = due_format.read_ocr(document.where, document.contents, self.tool)
        used = ocr.page == 0 if self.pages == "first" else np.ones(len(ocr.page), bool)
        words = [word for word, is_used in zip(ocr.words, used, strict=True) if is_used]
        boxes = self._relative_boxes(root, document, ocr)[used].astype(np.float32).reshape(-1)
        image = _page_image(root, document.name, self.image_size)
        return builder.add_page(document.where, document.name, image, words, boxes)

    def _relative_boxes(self, root: Path, document: DueDocument, ocr: DueOcr) -> np.ndarray:
        """Return the boxes [n, 4] as shares of a page, clipped to [0, 1], left, top, right, bottom."""
        if self.boxes == "rendered":
            width, height = _rendered_size(records.inside(root / "pdfs", f"{document.name}.pdf", document.where))
            return records.ordered_corners(np.clip(ocr.boxes / [width, height, width, height], 0.0, 1.0))
        if len(ocr.words) and int(ocr.page.max()) >= len(ocr.pages):
            num_pages = f"structures.pages has {len(ocr.pages)} pages"
            raise DataError(f"{document.where}: {num_pages}, but words are on {ocr.page.max() + 1}")
        page_boxes = ocr.pages[ocr.page] if len(ocr.words) else np.ones((0, 4))
        sides = np.maximum(page_boxes[:, 2:] - page_boxes[:, :2], 1e-9)
        shares = (ocr.boxes - np.tile(page_boxes[:, :2], 2)) / np.tile(sides, 2)
        return records.ordered_corners(np.clip(shares, 0.0, 1.0))


def _page_image(root: Path, name: str, size: int) -> Path | Callable[[], bytes] | None:
    """Return the first page: its PNG if there is one, otherwise a function that renders the PDF."""
    stem = name.removesuffix(".pdf")
    png = records.find(root, f"png/{stem}/0.png", f"png/{stem}/1.png", f"images/{stem}.png")
    path = records.inside(root / "pdfs", f"{stem}.pdf")
    if png is not None or not path.is_file():
        return png or path
    return partial(_render_first_page, path, size) if size else None


def _render_first_page(path: Path, size: int) -> bytes:
    try:
        with pdf.open_pdf(path) as document:
            return pdf.render_page(document[0], size)
    except pdf.UnreadablePdf as error:
        raise DataError(f"{path}: {error}") from error


def _rendered_size(path: Path) -> tuple[int, int]:
    """Return width and height in pixels of page 0 at 300 dpi."""
    try:
        with pdf.open_pdf(path) as document:
            width, height = document[0].get_size()
    except pdf.UnreadablePdf as error:
        raise DataError(f"{path}: {error}") from error
    return int(np.ceil(width * DPI / 72)), int(np.ceil(height * DPI / 72))


def _answers_are_placeholders(path: Path) -> bool:
    """Return True if all answers of the test split are 0, as in the public files of DocVQA."""
    values = [
        value
        for where, document in due_format.read_annotations("test", path)
        for question in due_format.read_questions(where, document)
        for value in question.values
    ]
    return bool(values) and all(value == ["0"] for value in values)
