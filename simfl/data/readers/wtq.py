"""WikiTableQuestions in its original release; simfl draws the tables as pages.

Pasupat and Liang 2015 (Compositional semantic parsing on semi-structured tables).

    csv/NNN-csv/N.csv                   a table: header, rows; backslashes escape
    data/random-split-F-{train,dev}.tsv, data/pristine-unseen-tables.tsv     id, utterance, context, targetValue
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pyarrow as pa

from simfl.constraints import Count, Limit
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import Gather, Pictures, finish, kept
from simfl.data.readers.table_page import TablePage, lay_out
from simfl.errors import DataError

EDITION = 1
COLUMNS = ["id", "utterance", "context", "targetValue"]
ESCAPES = {r"\n": "\n", r"\p": "|", "\\\\": "\\"}
Fold = Annotated[int, Limit("a whole number from 1 to 5", lambda n: 1 <= n <= 5)]


@dataclass(frozen=True)
class Wtq(Data):
    """Questions on tables of Wikipedia: the original WikiTableQuestions, its tables drawn as pages."""

    path: str  # a folder with csv/ and data/; ~ and $VARIABLES are followed
    fold: Fold = 1  # which of the five official divisions of the training questions into train and dev
    values: Literal["joined", "first"] = (
        "joined"  # of several values that are right together: all in a row, or paper 000's
    )
    max_rows: Count | None = None  # questions on longer tables are left out
    max_columns: Count | None = None  # questions on wider tables are left out
    image_size: Count = 448  # pages are drawn in grey, squeezed to this many pixels square

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 11321, "valid": 2831, "test": 4344}
    TABLES: ClassVar[int] = 2108

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        lists = {
            "train": records.need(root / "data", f"random-split-{self.fold}-train.tsv"),
            "valid": records.need(root / "data", f"random-split-{self.fold}-dev.tsv"),
            "test": records.need(root / "data", "pristine-unseen-tables.tsv"),
        }
        return kept(cache, "wtq", EDITION, self, lists.values(), lambda: self._build(root, lists))

    def _build(self, root: Path, lists: dict[str, Path]) -> Dataset:
        gathered = {split: self._gather(root, path) for split, path in lists.items()}
        card = {
            "licence": "CC BY-SA 4.0",
            "tables": "drawn by simfl; words and boxes as drawn",
            "answers": "several values joined by ', '" if self.values == "joined" else "the first of several values",
        }
        return finish("wtq", gathered, card)

    def _gather(self, root: Path, path: Path) -> Gather:
        gather = Gather(Pictures(self.image_size), more=[("targets", pa.list_(pa.string()))])
        pages: dict[str, int | None] = {}
        for where, id, question, context, target in questions(path):
            if context not in pages:
                pages[context] = self._page(gather, where, root / context, context)
            if pages[context] is None:
                gather.dropped["table too large"] += 1
                continue
            answer = ", ".join(target) if self.values == "joined" else target[0]
            gather.ask(id, pages[context], question, [answer], targets=target)
        return gather

    def _page(self, gather: Gather, where: str, path: Path, context: str) -> int | None:
        header, *rows = table(where, path)
        if (self.max_rows and len(rows) > self.max_rows) or (self.max_columns and len(header) > self.max_columns):
            return None
        return add(gather, where, context, lay_out(header, rows), self.image_size)


def add(gather: Gather, where: str, name: str, page: TablePage, size: int) -> int | None:
    """The row of a drawn table among the pages."""
    return gather.page(where, name, partial(page.draw, size), page.words, page.boxes)


def questions(path: Path) -> Iterator[tuple[str, str, str, str, list[str]]]:
    """File and row, id, question, table and values of each question; escapes are undone."""
    given = records.lines(path)
    where, head = next(given, (f"{path}", ""))
    if head.split("\t") != COLUMNS:
        raise DataError(f"{where}: the columns are {head[:60]!r}, {', '.join(COLUMNS)} are needed")
    for where, line in given:
        parts = line.split("\t")
        if len(parts) != len(COLUMNS):
            raise DataError(f"{where}: {len(parts)} columns, {len(COLUMNS)} are needed")
        id, question, context = (_plain(part) for part in parts[:3])
        yield where, id, question, context, [_plain(value) for value in parts[3].split("|")]


def _plain(text: str) -> str:
    return re.sub(r"\\[np\\]", lambda found: ESCAPES[found[0]], text)


def table(where: str, path: Path) -> list[list[str]]:
    """Header and rows of a table. DataError if it is missing or has no header."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file, escapechar="\\")]
    except FileNotFoundError:
        raise DataError(f"{where}: the table {path} is not there") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a table ({error})") from error
    if not rows or not rows[0]:
        raise DataError(f"{path}: a header is needed")
    return [row for row in rows if row]
