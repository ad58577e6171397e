"""Parts of a run's tables: one Parquet file per table and checkpoint, and an index of them with their hashes.

    tables/rounds/000012.parquet     rows of the rounds up to the checkpoint after round 12
           rounds/000032-1.parquet   32 such parts, merged
           index.jsonl               one line per part: its table, step, size and hash; lines are only appended

A checkpoint and the summary of a run store how many lines of the index they cover, and the hash of these lines. Every
part is verified when it is read.

The newest 32 parts of a table that have the same level are merged into one of the next level, so that a run of any
length has few files and each row is rewritten a few times at most. The line of a merged part says how many parts before
it are replaced; their files are deleted once every checkpoint on the disk covers that line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from simfl import files
from simfl.errors import DamagedFile
from simfl.json_files import JsonLines, JsonObject, encode_line
from simfl.runs import tables
from simfl.runs.tables import Table, TableRow

INDEX = "index.jsonl"
FAN_IN = 32  # parts that are merged into one
MAX_MERGED_BYTES = 64 << 20  # of the parts together; larger ones are not merged
MERGED = "merged"  # key of the table in the line of a merged part
LINE = re.compile(  # of the index, as `Part.line` and `encode_line` write it
    r'\{"(?:table|merged)": "([a-z_]+)", "step": (\d+), "bytes": (\d+), "sha256": "([0-9a-f]{64})"'
    r'(?:, "level": (\d+), "replaces": (\d+))?, "crc": "[0-9a-f]{8}"\}\n'
)


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


Match = tuple[str, str, str, str, str, str]  # table, step, bytes, sha256; level and number of replaced parts or empty


class Part(NamedTuple):
    """A line of the index."""

    table: str
    step: int  # of the checkpoint that it was written for
    bytes: int
    sha256: str
    level: int = 0  # of a merged part: one above the level of the parts that it replaces
    replaces: int = 0  # number of parts of the table before it

    @property
    def name(self) -> str:
        """Path of the file in the folder of the tables."""
        return f"{self.table}/{self.step:06d}{f'-{self.level}' if self.level else ''}.parquet"

    def line(self) -> JsonObject:
        """Return the line of the index; that of a merged part is refused by versions that cannot read it."""
        values = self._asdict()
        if not self.level:
            return {name: values[name] for name in ("table", "step", "bytes", "sha256")}
        return {MERGED: values.pop("table"), **values}


@dataclass
class TableParts:
    """The parts of all tables of a run that a checkpoint covers, and those that are written after it."""

    folder: Path  # `tables` of the run folder
    by_table: dict[str, list[Part]] = field(default_factory=dict)  # parts that are not replaced, in order
    lines: int = 0  # of the index
    _size: int = 0  # of the lines, in bytes
    _replaced: list[tuple[int, Part]] = field(default_factory=list)  # line of the index, and a part that it replaces
    _digest: Any = field(default_factory=hashlib.sha256)  # of the lines of the index

    @staticmethod
    def open(folder: Path, coverage: Coverage | None) -> TableParts:
        """Open the parts that a checkpoint covers; None: all complete lines of the index.

        Raises:
            DamagedFile: The index is not what the run wrote, or a part is missing or of another size.
        """
        index, found = JsonLines(folder / INDEX), TableParts(folder)
        if coverage is None or not found._add_covered(index, coverage):
            for values, line in index.numbered():
                if coverage is not None and found.lines == coverage.parts:
                    break
                found._append(_part(index, found.lines + 1, values))
                found._count(line)
        if coverage not in (None, found.coverage):
            missing = coverage.parts - found.lines if coverage is not None else 0
            reason = f"{missing} of its lines are missing" if missing else "the content does not match its hash"
            raise DamagedFile(f"{index.path}: damaged: {reason}")
        for part in found.all():
            found._check_size(part)
        return found

    def _add_covered(self, index: JsonLines, coverage: Coverage) -> bool:
        """Add the covered lines of an index, all at once; return whether they have the hash of the checkpoint.

        A run of 20,000 rounds has 66,000 lines, of which 200 parts are left.
        """
        *lines, _ = index.unread().split(b"\n", coverage.parts)
        content = b"".join(line + b"\n" for line in lines)
        matches: list[Match] = LINE.findall(content.decode(errors="replace"))
        if hashlib.sha256(content).hexdigest() != coverage.sha256 or len(matches) != coverage.parts:
            return False
        live, replaced = dict[str, list[Match]](), list[tuple[int, Match]]()
        for number, match in enumerate(matches, 1):
            parts = live.setdefault(match[0], [])
            if match[-1] not in ("", "0"):
                count = int(match[-1])
                if count > len(parts):
                    return False
                replaced += [(number, old) for old in parts[-count:]]
                del parts[-count:]
            parts.append(match)
        stems = {Path(name).stem.partition("-")[0] for name in self._files()}
        steps = {int(stem) for stem in stems if stem.isdigit()}
        self.by_table = {table: list(map(_matched, parts)) for table, parts in live.items()}
        self._replaced = [(number, _matched(match)) for number, match in replaced if int(match[1]) in steps]
        self.lines = len(matches)
        self._count(content)
        return True

    def _files(self) -> set[str]:
        """Return the names of the files of parts, whether the index has them or not."""
        return {path.relative_to(self.folder).as_posix() for path in self.folder.glob("*/*.parquet")}

    def _count(self, lines: bytes) -> None:
        """Add lines of the index to its size and hash."""
        self._size += len(lines)
        self._digest.update(lines)

    def _append(self, part: Part) -> None:
        """Add the part of the next line of the index, and drop those that it replaces."""
        self.lines += 1
        parts = self.by_table.setdefault(part.table, [])
        if part.replaces > len(parts):
            raise DamagedFile(f"{self.folder / INDEX}: line {self.lines} replaces more parts than there are")
        if part.replaces:
            self._replaced += [(self.lines, old) for old in parts[-part.replaces :]]
            del parts[-part.replaces :]
        parts.append(part)

    def all(self) -> list[Part]:
        """Return the parts of all tables."""
        return [part for parts in self.by_table.values() for part in parts]

    @property
    def coverage(self) -> Coverage:
        """All lines of the index, as a checkpoint stores them."""
        return Coverage(self.lines, self._digest.hexdigest())

    def write(self, step: int, rows: Mapping[str, Table | Sequence[Mapping[str, object]]]) -> None:
        """Write one part of each table that has rows, and then their lines in the index; all are synced to the disk.

        Parts of a table are merged once there are many.

        Args:
            step: Finished rounds of the run.
            rows: The rows by table.
        """
        added = [self._write_part(name, step, tables.table(more)) for name, more in rows.items() if len(more)]
        if not added:
            return
        is_new = not self.lines
        self._add(added)
        if is_new:
            files.sync_folder(self.folder)
        while merged := [part for name in rows if (part := self._merged(name, step))]:
            self._add(merged)

    def _add(self, added: Sequence[Part]) -> None:
        """Append the lines of parts that are on the disk."""
        JsonLines(self.folder / INDEX).append(*(part.line() for part in added), sync=True)
        for part in added:
            self._append(part)
            self._count(encode_line(part.line()))

    def _merged(self, table: str, step: int) -> Part | None:
        """Merge the newest parts of a table if there are enough of the same level; return the new part."""
        newest = self.of(table)[-FAN_IN:]
        if len(newest) < FAN_IN or newest[0].level != newest[-1].level:
            return None
        if sum(part.bytes for part in newest) > MAX_MERGED_BYTES:
            return None
        content = tables.table_bytes(tables.concat(self.read(part) for part in newest))
        return self._write_file(table, step, content, newest[0].level + 1, FAN_IN)

    def drop_replaced(self, lines: int) -> None:
        """Delete the files of parts that are replaced by the first `lines` lines of the index."""
        for line, part in self._replaced:
            if line <= lines:
                self._path(part).unlink(missing_ok=True)
        self._replaced = [(line, part) for line, part in self._replaced if line > lines]

    @property
    def has_replaced(self) -> bool:
        """Return whether there may be files of parts that others replace."""
        return bool(self._replaced)

    def of(self, table: str) -> list[Part]:
        """Return the parts of a table in the order in which they were written."""
        return self.by_table.get(table, [])

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
        for part in self.all():
            self._content(part)

    def drop_others(self) -> str:
        """Delete the parts and the lines of the index that are not covered: rounds that will be repeated.

        Returns:
            One line if the end of the index was cut off by a crash; else an empty string.
        """
        index = JsonLines(self.folder / INDEX)
        if not index.path.exists():
            return ""
        kept = {part.name for part in self.all()} | {part.name for _, part in self._replaced}
        found = self._files()
        for name in found - kept:
            (self.folder / name).unlink()
        index.position, index.number = self._size, self.lines
        rest = index.unread()
        if rest:
            index.truncate()
        return "" if rest.endswith(b"\n") or not rest else f"{index.path}: an incomplete line was removed"

    def _write_part(self, name: str, step: int, rows: Table) -> Part:
        return self._write_file(name, step, tables.table_bytes(rows))

    def _write_file(self, name: str, step: int, content: bytes, level: int = 0, replaces: int = 0) -> Part:
        part = Part(name, step, len(content), hashlib.sha256(content).hexdigest(), level, replaces)
        path = self._path(part)
        files.make_folder(path.parent)
        files.write(path, lambda file: file.write(content))
        files.sync_folder(path.parent)
        return part

    def _path(self, part: Part) -> Path:
        return self.folder / part.name

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


def _matched(match: Match) -> Part:
    table, step, num_bytes, sha256, level, replaces = match
    return Part(table, int(step), int(num_bytes), sha256, int(level or 0), int(replaces or 0))


def _part(index: JsonLines, number: int, values: JsonObject) -> Part:
    try:
        table = values[MERGED] if MERGED in values else values["table"]
        further = [int(values[name]) for name in ("level", "replaces")] if MERGED in values else []
        part = Part(table, int(values["step"]), int(values["bytes"]), values["sha256"], *further)
    except (KeyError, TypeError, ValueError):
        raise DamagedFile(f"{index.path}: line {number} describes no part of a table") from None
    if not str(part.table).isidentifier():
        raise DamagedFile(f"{index.path}: line {number}: {part.table!r} is not the name of a table")
    return part
