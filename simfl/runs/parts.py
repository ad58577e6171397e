"""Parts of a run's tables: one Parquet file per table and checkpoint, and an index of them with their hashes.

    tables/rounds/000012.parquet     rows of the rounds up to the checkpoint after round 12
           index.jsonl               one line per part: its table, step, size and hash; lines are only appended

A checkpoint and the summary of a run store how many lines of the index they cover, and the hash of these lines. Every
part is verified when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from simfl import files
from simfl.errors import DamagedFile
from simfl.json_files import JsonLines, JsonObject, encode_line
from simfl.runs import tables
from simfl.runs.tables import Table, TableRow

INDEX = "index.jsonl"


@dataclass(frozen=True)
class Coverage:
    """The parts that a checkpoint covers: the first lines of the index."""

    parts: int = 0
    sha256: str = hashlib.sha256().hexdigest()  # of the lines

    def to_json(self) -> JsonObject:
        """Return the coverage as JSON."""
        return asdict(self)

    @staticmethod
    def from_json(content: object) -> Coverage:
        """Return the coverage from JSON; ValueError if it is none."""
        if not isinstance(content, dict) or content.keys() != Coverage().to_json().keys():
            raise ValueError("the number and the hash of the table parts are missing")
        return Coverage(**content)


@dataclass(frozen=True)
class Part:
    """A line of the index."""

    table: str
    step: int  # of the checkpoint that it was written for
    bytes: int
    sha256: str


@dataclass
class TableParts:
    """The parts of all tables of a run that a checkpoint covers, and those that are written after it."""

    folder: Path  # `tables` of the run folder
    parts: list[Part] = field(default_factory=list)
    _digest: Any = field(default_factory=hashlib.sha256)  # of the lines of the index

    @staticmethod
    def open(folder: Path, coverage: Coverage | None) -> TableParts:
        """Open the parts that a checkpoint covers; None: all complete lines of the index.

        Raises:
            DamagedFile: The index is not what the run wrote, or a part is missing or of another size.
        """
        index, found = JsonLines(folder / INDEX), TableParts(folder)
        for values, line in islice(index.numbered(), None if coverage is None else coverage.parts):
            found.parts.append(_part(index, values))
            found._digest.update(line)
        if coverage not in (None, found.coverage):
            missing = coverage.parts - len(found.parts) if coverage is not None else 0
            reason = f"{missing} of its lines are missing" if missing else "the content does not match its hash"
            raise DamagedFile(f"{index.path}: damaged: {reason}")
        for part in found.parts:
            found._check_size(part)
        return found

    @property
    def coverage(self) -> Coverage:
        """All parts, as a checkpoint stores them."""
        return Coverage(len(self.parts), self._digest.hexdigest())

    def write(self, step: int, rows: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
        """Write one part of each table that has rows, and then their lines in the index; all are synced to the disk.

        Args:
            step: Finished rounds of the run.
            rows: The rows by table.
        """
        added = [self._write_part(name, step, more) for name, more in rows.items() if more]
        if not added:
            return
        lines = [asdict(part) for part in added]
        is_new = not self.parts
        JsonLines(self.folder / INDEX).append(*lines, sync=True)
        if is_new:
            files.sync_folder(self.folder)
        self.parts += added
        for line in lines:
            self._digest.update(encode_line(line))

    def of(self, table: str) -> list[Part]:
        """Return the parts of a table in the order in which they were written."""
        return [part for part in self.parts if part.table == table]

    def read(self, part: Part) -> Table:
        """Read a part. DamagedFile if it is missing or was altered."""
        return tables.from_bytes(self._path(part), self._content(part))

    def rows(self, table: str) -> Iterator[TableRow]:
        """Yield the rows of a table; one part is in memory at a time."""
        for part in self.of(table):
            yield from self.read(part).to_pylist()

    def joined(self, table: str) -> Table:
        """Return all parts of a table as one. Columns that a part lacks are null."""
        return tables.concat(self.read(part) for part in self.of(table))

    def verify(self) -> None:
        """Read every part. DamagedFile if one is missing or was altered."""
        for part in self.parts:
            self._content(part)

    def drop_others(self) -> str:
        """Delete the parts and the lines of the index that are not covered: rounds that will be repeated.

        Returns:
            One line if the end of the index was cut off by a crash; else an empty string.
        """
        index = JsonLines(self.folder / INDEX)
        if not index.path.exists():
            return ""
        kept = {self._path(part) for part in self.parts}
        for path in self.folder.glob("*/*.parquet"):
            if path not in kept:
                path.unlink()
        for _ in islice(index.numbered(), len(self.parts)):
            pass
        rest = index.unread()
        if rest:
            index.truncate()
        return "" if rest.endswith(b"\n") or not rest else f"{index.path}: an incomplete line was removed"

    def _write_part(self, name: str, step: int, rows: Sequence[Mapping[str, object]]) -> Part:
        content = tables.to_bytes(rows)
        part = Part(name, step, len(content), hashlib.sha256(content).hexdigest())
        path = self._path(part)
        files.make_folder(path.parent)
        files.write(path, lambda file: file.write(content))
        files.sync_folder(path.parent)
        return part

    def _path(self, part: Part) -> Path:
        return self.folder / part.table / f"{part.step:06d}.parquet"

    def _check_size(self, part: Part) -> None:
        path = self._path(part)
        try:
            size = path.stat().st_size
        except OSError:
            raise DamagedFile(f"{path}: this part of a table is missing") from None
        if size != part.bytes:
            raise DamagedFile(f"{path}: damaged: {size} bytes found, {part.bytes} expected")

    def _content(self, part: Part) -> bytes:
        path = self._path(part)
        try:
            content = path.read_bytes()
        except OSError:
            raise DamagedFile(f"{path}: this part of a table is missing") from None
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise DamagedFile(f"{path}: damaged: the content does not match its hash")
        return content


def _part(index: JsonLines, values: JsonObject) -> Part:
    try:
        part = Part(values["table"], int(values["step"]), int(values["bytes"]), values["sha256"])
    except (KeyError, TypeError, ValueError):
        raise DamagedFile(f"{index.path}: line {index.number} describes no part of a table") from None
    if not str(part.table).isidentifier():
        raise DamagedFile(f"{index.path}: line {index.number}: {part.table!r} is not the name of a table")
    return part
