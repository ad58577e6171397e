"""TabFact in its original release: statements that a table entails or refutes; simfl draws the tables as pages.

Chen et al. 2020 (TabFact: a large-scale dataset for table-based fact verification).

    all_csv/NAME.html.csv                    header and rows, columns divided by #
    {train,val,test}_examples.json           table -> [statements, 1 or 0 for each, caption]; also in tokenized_data/
    {simple,complex,small}_test_id.json      tables of the test's parts; also in data/
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from simfl.constraints import Count, Fraction
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import Gather, Pictures, finish, kept
from simfl.data.readers.table_page import lay_out
from simfl.data.readers.wtq import add
from simfl.errors import DataError
from simfl.seeds import rng

EDITION = 1


@dataclass(frozen=True)
class TabFact(Data):
    """Statements about tables of Wikipedia, true or false: the original TabFact, its tables drawn as pages."""

    path: str  # a folder with all_csv/ and the example files; ~ and $VARIABLES are followed
    train: Literal["train", "val"] = "train"  # val: where training statements are missing, those of validation are used
    valid: Fraction = 0.1  # with `train: val`, the share of its tables that is kept for validation
    answers: tuple[str, str] = ("no", "yes")  # what a refuted and an entailed statement are answered with
    max_rows: Count | None = None  # statements about longer tables are left out
    max_columns: Count | None = None  # statements about wider tables are left out
    image_size: Count = 448  # pages are drawn in grey, squeezed to this many pixels square

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 92283, "valid": 12792, "test": 12779}
    TABLES: ClassVar[dict[str, int]] = {"train": 13182, "valid": 1696, "test": 1695}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = {
            name: self._file(root, name) for name in ("train", "val", "test") if name != "train" or name == self.train
        }
        parts = {
            part: records.found(root, f"{part}_test_id.json", f"data/{part}_test_id.json")
            for part in ("simple", "complex")
        }
        sources = [*files.values(), *(path for path in parts.values() if path)]
        return kept(cache, "tabfact", EDITION, self, sources, lambda: self._build(root, files, parts))

    def _file(self, root: Path, name: str) -> Path:
        return records.need(root, f"{name}_examples.json", f"tokenized_data/{name}_examples.json")

    def _build(self, root: Path, files: dict[str, Path], parts: dict[str, Path | None]) -> Dataset:
        tables = root / "all_csv"
        batch_part = {table: part for part, path in parts.items() if path for table in records.json_file(path)}
        examples = {name: dict(records.mapping(str(path), records.json_file(path))) for name, path in files.items()}
        if self.train == "val":
            examples["train"], examples["val"] = self._divided(examples["val"])
        names = {"train": "train", "valid": "val", "test": "test"}
        gathered = {
            split: self._gather(tables, files.get(n, tables), examples[n], batch_part) for split, n in names.items()
        }
        card = {
            "licence": "statements MIT, tables of Wikipedia CC BY-SA",
            "tables": "drawn by simfl; words and boxes as drawn",
            "train": "the validation statements: training ones are missing" if self.train == "val" else "official",
        }
        return finish("tabfact", gathered, card)

    def _divided(self, told: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The tables of one file for training and for validation, drawn by their names."""
        names = sorted(told)
        few = set(rng("tabfact", "valid").permutation(len(names))[: max(1, round(self.valid * len(names)))].tolist())
        held = [{name: told[name] for i, name in enumerate(names) if (i in few) is valid} for valid in (False, True)]
        return held[0], held[1]

    def _gather(self, tables: Path, path: Path, told: dict[str, Any], batch_part: dict[str, str]) -> Gather:
        gather = Gather(Pictures(self.image_size))
        for name in sorted(told):
            where = f"{path} table {name}"
            statements = list(_statements(where, told[name]))
            page = self._page(gather, where, tables / name, name, told[name][2])
            if page is None:
                gather.dropped["table too large"] += len(statements)
                continue
            for number, (statement, label) in enumerate(statements):
                gather.ask(f"{name}-{number}", page, statement, [self.answers[label]], batch_part.get(name, ""))
        return gather

    def _page(self, gather: Gather, where: str, path: Path, name: str, title: str) -> int | None:
        if not path.is_file():
            raise DataError(f"{where}: the table {path} is not there")
        header, *rows = [line.split("#") for _, line in records.lines(path)] or [[]]
        if (self.max_rows and len(rows) > self.max_rows) or (self.max_columns and len(header) > self.max_columns):
            return None
        return add(gather, where, name, lay_out(header, rows, title), self.image_size)


def _statements(where: str, entry: Any) -> Iterator[tuple[str, int]]:
    if not (isinstance(entry, list) and len(entry) == 3 and all(isinstance(part, list) for part in entry[:2])):
        raise DataError(f"{where}: statements, labels and a caption are needed")
    statements, labels, caption = entry
    if len(statements) != len(labels) or not isinstance(caption, str):
        raise DataError(f"{where}: {len(statements)} statements have {len(labels)} labels")
    for number, (statement, label) in enumerate(zip(statements, labels, strict=True)):
        if label not in (0, 1) or not isinstance(statement, str):
            raise DataError(f"{where} statement {number}: the label is {label!r}, allowed: 0, 1")
        yield statement, label
