"""Invoices as ZUGFeRD or Factur-X PDFs: the answers are in the embedded XML, the words on the pages.

The value of a field becomes an answer only where it is found printed on a page, and is asked of that page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simfl.constraints import Amount, Count
from simfl.data.base import Data, Dataset
from simfl.data.io import pdf_pages, records
from simfl.data.io import printed_forms as printed
from simfl.data.io.gather import Gather, Pictures, finish, kept
from simfl.data.io.pdf_pages import Text, UnreadablePdf
from simfl.data.readers import invoice_xml
from simfl.data.readers.invoice_xml import Header
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng

EDITION = 1
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


@dataclass(frozen=True)
class Zugferd(Data):
    """Hybrid invoices (ZUGFeRD, Factur-X): ten fields, answered by the XML in the PDF; sellers are providers."""

    path: str  # a folder with PDFs, folders within it included; ~ and $VARIABLES are followed
    train: Amount = 0.0  # share of the sellers whose invoices are for training, drawn by their names
    valid: Amount = 0.0  # likewise for validation; the others are the test
    image_size: Count = 224  # pages are stored in colour, squeezed to this many pixels square

    def load(self, cache: Path) -> Dataset:
        if self.train + self.valid > 1:
            raise ConfigError(f"data.train, data.valid: {self.train}, {self.valid} given, at most 1 together")
        root = records.folder(self.path)
        files = sorted(root.rglob("*.pdf"), key=lambda path: path.relative_to(root).as_posix())
        if not files:
            raise DataError(f"data.path: {root} has no PDF")
        return kept(cache, "zugferd", EDITION, self, files, lambda: self._build(root, files))

    def _build(self, root: Path, files: list[Path]) -> Dataset:
        gathered = {split: Gather(Pictures(self.image_size)) for split in ("train", "valid", "test")}
        for path in files:
            self._read(gathered, path, path.relative_to(root).as_posix())
        card = {"licence": "the invoices' own", "answers": "from the embedded XML, as printed on the page"}
        return finish("zugferd", gathered, card)

    def _read(self, gathered: dict[str, Gather], path: Path, name: str) -> None:
        try:
            with pdf_pages.opened(path) as document:
                header = _header(document)
                if header is None:
                    gathered["test"].dropped["file without readable invoice XML"] += 1
                    return
                seller = header.texts.get("seller", "").partition("\n")[0]
                self._ask(gathered[self._split(seller)], document, name, seller, header)
        except UnreadablePdf:
            gathered["test"].dropped["unreadable file"] += 1

    def _split(self, seller: str) -> str:
        place = float(rng("zugferd", "split", seller.casefold()).random())
        return "train" if place < self.train else "valid" if place < self.train + self.valid else "test"

    def _ask(self, gather: Gather, document: Any, name: str, seller: str, header: Header) -> None:
        pages = [pdf_pages.words(document[i]) for i in range(len(document))]
        for field, value in _values(header):
            page, answer = _found(pages, field, value)
            if answer is None:
                gather.dropped[f"{field} not printed"] += 1
                continue
            picture = pdf_pages.draw(document[page], self.image_size)
            shown = pages[page]
            row = gather.page(name, f"{name}-{page}", picture, shown.words, shown.boxes, provider=seller)
            gather.ask(f"{name}-{field}", row, QUESTIONS[field], [answer], field)


def _header(document: Any) -> Header | None:
    """Of the first attachment that is an invoice."""
    told = (invoice_xml.read(content) for name, content in pdf_pages.attachments(document) if _is_xml(name))
    return next((header for header in told if header is not None), None)


def _is_xml(name: str) -> bool:
    return name.lower().endswith(".xml")


def _values(header: Header) -> Iterator[tuple[str, Any]]:
    told: dict[str, Any] = {**header.texts, **header.amounts, **header.dates}
    return ((field, told[field]) for field in QUESTIONS if field in told)


def _found(pages: list[Text], field: str, value: Any) -> tuple[int, str | None]:
    """The first page that shows the value, and how; None if none does."""
    shown = ((number, _shown(page.words, field, value)) for number, page in enumerate(pages))
    return next(((number, answer) for number, answer in shown if answer), (0, None))


def _shown(words: list[str], field: str, value: Any) -> str | None:
    if field in invoice_xml.AMOUNTS:
        return printed.amount(words, value)
    if field in invoice_xml.DATES:
        return printed.day(words, value)
    if field == "iban":
        return printed.compact(words, value)
    return printed.text(words, " ".join(value.split())) or printed.text(words, value.partition("\n")[0])
