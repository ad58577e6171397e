"""Invoices as ZUGFeRD or Factur-X PDFs: the answers are in the embedded XML, the words on the pages.

The value of a field becomes an answer only if it is printed on a page, and the question refers to that page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path

from simfl.constraints import NonNegativeFloat, PositiveInt
from simfl.data.base import Data, Dataset
from simfl.data.io import pdf, printed_values, records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder, build_question_dataset
from simfl.data.readers.invoice_xml import InvoiceHeader, parse_header
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng

VERSION = 1
QUESTIONS = {
    "number": "What is the invoice number?",
    "date": "What is the date of the invoice?",
    "seller": "Who is the seller?",
    "buyer": "Who is the buyer?",
    "total": "What is the total amount, tax included?",
    "tax": "What is the total amount of tax?",
    "net": "What is the total amount without tax?",
    "due": "Which amount is due?",
    "iban": "To which IBAN is the amount to be paid?",
    "due_date": "When is the payment due?",
}
Value = str | Decimal | date


@dataclass(frozen=True)
class Zugferd(Data):
    """Hybrid invoices (ZUGFeRD, Factur-X): ten fields, answered by the XML in the PDF; sellers are providers."""

    path: str  # folder with PDFs, in subfolders too; ~ and $VARIABLES are expanded
    train: NonNegativeFloat = 0.0  # share of the sellers whose invoices are for training, drawn by their names
    valid: NonNegativeFloat = 0.0  # share of the sellers for validation; the others are for testing
    image_size: PositiveInt = 224  # pages are stored in colour, resized to this many pixels square

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        if self.train + self.valid > 1:
            given = f"{self.train}, {self.valid} given"
            raise ConfigError(f"data.train, data.valid: {given}, their sum must be at most 1")
        root = records.resolve_folder(self.path)
        files = sorted(root.rglob("*.pdf"), key=lambda path: path.relative_to(root).as_posix())
        if not files:
            raise DataError(f"data.path: {root} has no PDF")
        return load_or_build(cache, "zugferd", VERSION, self, files, lambda: self._build(root, files))

    def _build(self, root: Path, files: list[Path]) -> Dataset:
        images = ImageStorage(self.image_size)
        builders = {split: QuestionSplitBuilder(images) for split in ("train", "valid", "test")}
        for path in files:
            self._add_file(builders, path, path.relative_to(root).as_posix())
        card = {"licence": "the invoices' own", "answers": "from the embedded XML, as printed on the page"}
        return build_question_dataset("zugferd", builders, card)

    def _add_file(self, builders: dict[str, QuestionSplitBuilder], path: Path, name: str) -> None:
        try:
            with pdf.open_pdf(path) as document:
                header = _read_header(document)
                if header is None:
                    builders["test"].dropped["file without readable invoice XML"] += 1
                    return
                seller = header.texts.get("seller", "").partition("\n")[0]
                self._add_invoice(builders[self._split(seller)], document, name, seller, header)
        except pdf.UnreadablePdf:
            builders["test"].dropped["unreadable file"] += 1

    def _split(self, seller: str) -> str:
        draw = float(rng("zugferd", "split", seller.casefold()).random())
        return "train" if draw < self.train else "valid" if draw < self.train + self.valid else "test"

    def _add_invoice(
        self, builder: QuestionSplitBuilder, document: pdf.Document, name: str, seller: str, header: InvoiceHeader
    ) -> None:
        pages = [pdf.extract_text(document[i]) for i in range(len(document))]
        for field, value in _values(header):
            number, answer = _find_value(pages, field, value)
            if answer is None:
                builder.dropped[f"{field} not printed"] += 1
                continue
            image, page = pdf.render_page(document[number], self.image_size), pages[number]
            row = builder.add_page(name, f"{name}-{number}", image, page.words, page.boxes, provider=seller)
            builder.add_question(f"{name}-{field}", row, QUESTIONS[field], [answer], field)


def _read_header(document: pdf.Document) -> InvoiceHeader | None:
    """Return the header of the first attachment that is an invoice."""
    attachments = pdf.read_attachments(document)
    headers = (parse_header(content) for name, content in attachments if name.lower().endswith(".xml"))
    return next((header for header in headers if header is not None), None)


def _values(header: InvoiceHeader) -> Iterator[tuple[str, Value]]:
    values: dict[str, Value] = {**header.texts, **header.amounts, **header.dates}
    return ((field, values[field]) for field in QUESTIONS if field in values)


def _find_value(pages: list[pdf.PageText], field: str, value: Value) -> tuple[int, str | None]:
    """Return the first page that prints the value and the printed form, which is None if no page does."""
    printed = ((number, _printed(page.words, field, value)) for number, page in enumerate(pages))
    return next(((number, answer) for number, answer in printed if answer), (0, None))


def _printed(words: list[str], field: str, value: Value) -> str | None:
    if isinstance(value, Decimal):
        return printed_values.find_amount(words, value)
    if isinstance(value, date):
        return printed_values.find_date(words, value)
    if field == "iban":
        return printed_values.find_code(words, value)
    full = printed_values.find_text(words, " ".join(value.split()))
    return full or printed_values.find_text(words, value.partition("\n")[0])
