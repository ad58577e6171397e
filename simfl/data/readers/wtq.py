"""WikiTableQuestions in its original release; simfl renders the tables as pages.

Pasupat and Liang 2015 (Compositional semantic parsing on semi-structured tables).

    csv/NNN-csv/N.csv                   a table: header, rows; escaped by backslashes
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

from simfl.constraints import Constraint, PositiveInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder, build_question_dataset
from simfl.data.io.table_page import lay_out_table
from simfl.errors import DataError

VERSION = 1
COLUMNS = ["id", "utterance", "context", "targetValue"]
ESCAPES = {r"\n": "\n", r"\p": "|", "\\\\": "\\"}
Fold = Annotated[int, Constraint("a whole number from 1 to 5", lambda n: 1 <= n <= 5)]


@dataclass(frozen=True)
class TableQuestion:
    """One line of a question file."""

    where: str  # file and row, for error messages
    id: str
    question: str
    table: str  # path of the table, relative to the root
    values: list[str]  # the answer; all values together are correct


@dataclass(frozen=True)
class Wtq(Data):
    """Questions on tables of Wikipedia: the original WikiTableQuestions, with its tables rendered as pages."""

    path: str  # folder with csv/ and data/; ~ and $VARIABLES are expanded
    fold: Fold = 1  # which of the five official divisions of the training questions into train and dev
    values: Literal["joined", "first"] = "joined"  # of an answer with several values: all, or the first (paper 000)
    max_rows: PositiveInt | None = None  # questions on longer tables are left out
    max_columns: PositiveInt | None = None  # questions on wider tables are left out
    image_size: PositiveInt = 448  # pages are rendered in grey, resized to this many pixels square

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 11321, "valid": 2831, "test": 4344}
    TABLES: ClassVar[int] = 2108

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = {
            "train": records.require(root / "data", f"random-split-{self.fold}-train.tsv"),
            "valid": records.require(root / "data", f"random-split-{self.fold}-dev.tsv"),
            "test": records.require(root / "data", "pristine-unseen-tables.tsv"),
        }
        return load_or_build(cache, "wtq", VERSION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        builders = {split: self._read_split(root, path) for split, path in files.items()}
        card = {
            "licence": "CC BY-SA 4.0",
            "tables": "rendered by simfl, with exact words and boxes",
            "answers": "several values joined by ', '" if self.values == "joined" else "the first of several values",
        }
        return build_question_dataset("wtq", builders, card)

    def _read_split(self, root: Path, path: Path) -> QuestionSplitBuilder:
        columns = [("targets", pa.list_(pa.string()))]
        builder = QuestionSplitBuilder(ImageStorage(self.image_size), example_columns=columns)
        pages: dict[str, int | None] = {}
        for line in read_questions(path):
            if line.table not in pages:
                pages[line.table] = self._add_table(builder, root, line)
            if pages[line.table] is None:
                builder.dropped["table too large"] += 1
                continue
            answer = ", ".join(line.values) if self.values == "joined" else line.values[0]
            builder.add_question(line.id, pages[line.table], line.question, [answer], targets=line.values)
        return builder

    def _add_table(self, builder: QuestionSplitBuilder, root: Path, line: TableQuestion) -> int | None:
        """Add the table of a question as a page and return its row; None if the table is too large."""
        header, *rows = read_table(line.where, records.inside(root, line.table, line.where))
        if (self.max_rows and len(rows) > self.max_rows) or (self.max_columns and len(header) > self.max_columns):
            return None
        page = lay_out_table(header, rows)
        return builder.add_page(line.where, line.table, partial(page.draw, self.image_size), page.words, page.boxes)


def read_questions(path: Path) -> Iterator[TableQuestion]:
    """Yield the questions of a file, without escapes."""
    lines = records.read_lines(path)
    where, header = next(lines, (f"{path}", ""))
    if header.split("\t") != COLUMNS:
        raise DataError(f"{where}: the columns are {header[:60]!r}, expected {', '.join(COLUMNS)}")
    for where, line in lines:
        cells = line.split("\t")
        if len(cells) != len(COLUMNS):
            raise DataError(f"{where}: {len(cells)} columns, expected {len(COLUMNS)}")
        id, question, table = (_unescape(cell) for cell in cells[:3])
        yield TableQuestion(where, id, question, table, [_unescape(value) for value in cells[3].split("|")])


def _unescape(text: str) -> str:
    return re.sub(r"\\[np\\]", lambda match: ESCAPES[match[0]], text)


def read_table(where: str, path: Path) -> list[list[str]]:
    """Return the header and the rows of a table; DataError if the file is missing or has no header."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file, escapechar="\\")]
    except FileNotFoundError:
        raise DataError(f"{where}: the table {path} is missing") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a table ({error})") from error
    if not rows or not rows[0]:
        raise DataError(f"{path}: the header is missing")
    return [row for row in rows if row]
