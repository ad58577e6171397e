"""Rows of tables that wait for the checkpoint that covers their rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from simfl.runs import tables
from simfl.runs.parts import TableParts
from simfl.runs.tables import Table, TableRow

Rows = dict[str, Sequence[TableRow]]  # rows by table
Blocks = dict[str, list[Sequence[TableRow]]]  # rows by table, in the pieces in which they came
Result = TypeVar("Result")

BATCH_ROWS = 10_000  # rows of all tables that are handed to the thread at once
PART_ROWS = 1 << 20  # rows of one table that are written before the checkpoint, to free their memory


class WaitingRows:
    """Rows in memory. A thread turns them into Arrow tables and writes these as parts, one task after the other.

    Parts that no checkpoint covers are dropped when the run is resumed, so they may be written at any time.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Start without rows. `names`: names of the tables."""
        self._new: Blocks = {name: [] for name in names}
        self._tables: dict[str, list[Table]] = {name: [] for name in names}  # used by the thread until `wait` returns
        self._num_new = 0
        self._thread = ThreadPoolExecutor(1, "rows")  # starts when it gets work
        self._tasks: list[Future[Any]] = []

    def add(self, rows: Mapping[str, Sequence[TableRow]], parts: TableParts, step: int) -> None:
        """Add rows of the rounds up to `step`; RunError if the disk has refused earlier ones."""
        for name, more in rows.items():
            if len(more):
                self._new[name].append(more)
                self._num_new += len(more)
        if self._num_new >= BATCH_ROWS:
            self._hand_over(parts, step)

    def start_writing(self, parts: TableParts, step: int, then: Callable[[], Result]) -> Future[Result]:
        """Let the thread write all rows so far as parts of the tables, synced to the disk, and then call `then`.

        Rows that the disk refuses stay in memory.
        """
        return self._submit(partial(self._write, self._take(), parts, step, then))

    def __bool__(self) -> bool:
        """Return whether rows wait in memory."""
        self.wait()
        return any(self._new.values()) or any(self._tables.values())

    def rows(self, name: str) -> list[TableRow]:
        """Return the rows of a table that wait in memory."""
        self.wait()
        old = [row for content in self._tables[name] for row in content.to_pylist()]
        return old + [row for rows in self._new[name] for row in rows]

    def wait(self) -> None:
        """Wait for the thread; RunError if the disk has refused rows."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.result()

    def submit(self, task: Callable[[], object]) -> None:
        """Let the thread do a task; RunError if the disk has refused an earlier one."""
        done, self._tasks = [one for one in self._tasks if one.done()], [one for one in self._tasks if not one.done()]
        for one in done:
            one.result()
        self._submit(task)

    def close(self) -> None:
        """Wait for the thread and end it; errors for which no caller has asked are dropped."""
        self._thread.shutdown()

    def _submit(self, task: Callable[[], Result]) -> Future[Result]:
        future = self._thread.submit(task)
        self._tasks.append(future)
        return future

    def _take(self) -> Blocks:
        new, self._new, self._num_new = self._new, {name: [] for name in self._new}, 0
        return new

    def _hand_over(self, parts: TableParts, step: int) -> None:
        self.submit(partial(self._convert, self._take(), parts, step))

    def _convert(self, new: Blocks, parts: TableParts, step: int) -> None:
        for name, blocks in new.items():
            self._tables[name] += map(tables.table, blocks)
            if sum(map(len, self._tables[name])) >= PART_ROWS:
                parts.write(step, {name: tables.concat(self._tables[name])})
                self._tables[name] = []

    def _write(self, new: Blocks, parts: TableParts, step: int, then: Callable[[], Result]) -> Result:
        for name, blocks in new.items():
            self._tables[name] = [self._joined(name, blocks)]
        parts.write(step, {name: joined for name, (joined,) in self._tables.items()})
        self._tables = {name: [] for name in self._tables}
        return then()

    def _joined(self, name: str, new: list[Sequence[TableRow]]) -> Table:
        rest = [row for rows in new if isinstance(rows, list) for row in rows]
        blocks = [tables.table(rows) for rows in new if not isinstance(rows, list)]
        return tables.concat([*self._tables[name], *blocks, *([tables.table(rest)] if rest else [])])
