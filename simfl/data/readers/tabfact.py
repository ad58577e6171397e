"""TabFact in its original release: statements that a table entails or refutes; simfl renders the tables as pages.

Chen et al. 2020 (TabFact: a large-scale dataset for table-based fact verification).

    all_csv/NAME.html.csv                    header and rows, columns separated by #
    {train,val,test}_examples.json           table -> [statements, 1 or 0 for each, caption]; also in tokenized_data/
    {simple,complex,small}_test_id.json      tables of the test's parts; also in data/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from simfl.constraints import Fraction, PositiveInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder, build_question_dataset
from simfl.data.io.table_page import lay_out_table
from simfl.errors import DataError
from simfl.seeds import rng

VERSION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}
Statements = Mapping[str, object]  # table -> its entry in an example file


@dataclass(frozen=True)
class TableStatements:
    """Statements about one table."""

    where: str  # file and table, for error messages
    table: str
    caption: str
    statements: list[tuple[str, int]]  # 1: entailed, 0: refuted


@dataclass(frozen=True)
class TabFact(Data):
    """Statements about tables of Wikipedia, true or false: the original TabFact, its tables rendered as pages."""

    path: str  # folder with all_csv/ and the example files; ~ and $VARIABLES are expanded
    train: Literal["train", "val"] = "train"  # val: use validation statements if the training file is not available
    valid: Fraction = 0.1  # with `train: val`, the share of its tables used for validation
    answers: tuple[str, str] = ("no", "yes")  # answers of a refuted and of an entailed statement
    max_rows: PositiveInt | None = None  # statements about longer tables are left out
    max_columns: PositiveInt | None = None  # statements about wider tables are left out
    image_size: PositiveInt = 448  # pages are rendered in grey, resized to this many pixels square

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 92283, "valid": 12792, "test": 12779}
    TABLES: ClassVar[dict[str, int]] = {"train": 13182, "valid": 1696, "test": 1695}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        needed = [name for name in NAMES.values() if name != "train" or name == self.train]
        files = {
            name: records.require(root, f"{name}_examples.json", f"tokenized_data/{name}_examples.json")
            for name in needed
        }
        found = {
            part: records.find(root, f"{part}_test_id.json", f"data/{part}_test_id.json")
            for part in ("simple", "complex")
        }
        parts = {part: path for part, path in found.items() if path}
        sources = [*files.values(), *parts.values()]
        return load_or_build(cache, "tabfact", VERSION, self, sources, lambda: self._build(root, files, parts))

    def _build(self, root: Path, files: dict[str, Path], parts: dict[str, Path]) -> Dataset:
        part_of = {
            str(table): part
            for part, path in parts.items()
            for table in records.as_list(str(path), records.read_json(path))
        }
        content: dict[str, Statements] = {name: records.read_json_mapping(path) for name, path in files.items()}
        if self.train == "val":
            content["train"], content["val"] = self._divide(content["val"])
        builders = {
            split: self._read_split(root / "all_csv", files.get(name, root / "all_csv"), content[name], part_of)
            for split, name in NAMES.items()
        }
        card = {
            "licence": "statements MIT, tables of Wikipedia CC BY-SA",
            "tables": "rendered by simfl, with exact words and boxes",
            "train": "the validation statements" if self.train == "val" else "official",
        }
        return build_question_dataset("tabfact", builders, card)

    def _divide(self, content: Statements) -> tuple[Statements, Statements]:
        """Divide the tables of one file into training and validation, drawn by their names."""
        names = sorted(content)
        num_valid = max(1, round(self.valid * len(names)))
        valid = set(rng("tabfact", "valid").permutation(len(names))[:num_valid].tolist())
        return (
            {name: content[name] for i, name in enumerate(names) if i not in valid},
            {name: content[name] for i, name in enumerate(names) if i in valid},
        )

    def _read_split(
        self, folder: Path, path: Path, content: Statements, part_of: Mapping[str, str]
    ) -> QuestionSplitBuilder:
        builder = QuestionSplitBuilder(ImageStorage(self.image_size))
        for table in sorted(content):
            entry = _parse_entry(f"{path} table {table}", table, content[table])
            page = self._add_table(builder, records.inside(folder, table), entry)
            if page is None:
                builder.dropped["table too large"] += len(entry.statements)
                continue
            for number, (statement, label) in enumerate(entry.statements):
                answer, part = self.answers[label], part_of.get(table, "")
                builder.add_question(f"{table}-{number}", page, statement, [answer], part)
        return builder

    def _add_table(self, builder: QuestionSplitBuilder, path: Path, entry: TableStatements) -> int | None:
        """Add a table as a page and return its row; None if the table is too large."""
        if not path.is_file():
            raise DataError(f"{entry.where}: the table {path} is missing")
        header, *rows = [line.split("#") for _, line in records.read_lines(path)] or [[]]
        if (self.max_rows and len(rows) > self.max_rows) or (self.max_columns and len(header) > self.max_columns):
            return None
        page = lay_out_table(header, rows, entry.caption)
        return builder.add_page(entry.where, entry.table, partial(page.draw, self.image_size), page.words, page.boxes)


def _parse_entry(where: str, table: str, entry: object) -> TableStatements:
    if not (isinstance(entry, list) and len(entry) == 3 and all(isinstance(part, list) for part in entry[:2])):
        raise DataError(f"{where}: expected statements, labels and a caption")
    statements, labels, caption = entry
    if len(statements) != len(labels) or not isinstance(caption, str):
        raise DataError(f"{where}: {len(statements)} statements have {len(labels)} labels")
    return TableStatements(where, table, caption, list(_labelled(where, statements, labels)))


def _labelled(where: str, statements: list[object], labels: list[object]) -> Iterator[tuple[str, int]]:
    for number, (statement, label) in enumerate(zip(statements, labels, strict=True)):
        if not isinstance(label, int) or label not in (0, 1) or not isinstance(statement, str):
            raise DataError(f"{where} statement {number}: the label is {label!r}, allowed: 0, 1")
        yield statement, label
