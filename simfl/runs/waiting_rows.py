"""Rows of tables that wait for the checkpoint that covers their rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from simfl.runs import tables
from simfl.runs.parts import TableParts
from simfl.runs.tables import Table, TableRow

Rows = dict[str, Sequence[TableRow]]  # rows by table

BATCH_ROWS = 10_000  # rows of all tables that are handed to the thread at once
PART_ROWS = 1 << 20  # rows of one table that are written before the checkpoint, to free their memory


class WaitingRows:
    """Rows in memory. A thread turns them into Arrow tables, and writes parts of tables that grow too large.

    Parts that no checkpoint covers are dropped when the run is resumed, so they may be written at any time.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Start without rows. `names`: names of the tables."""
        self._new: dict[str, list[Sequence[TableRow]]] = {name: [] for name in names}
        self._tables: dict[str, list[Table]] = {name: [] for name in names}  # used by the thread until `wait` returns
        self._num_new = 0
        self._thread = ThreadPoolExecutor(1, "rows")  # starts when it gets work
        self._tasks: list[Future[None]] = []

    def add(self, rows: Mapping[str, Sequence[TableRow]], parts: TableParts, step: int) -> None:
        """Add rows of the rounds up to `step`; RunError if the disk has refused earlier ones."""
        for name, more in rows.items():
            if len(more):
                self._new[name].append(more)
                self._num_new += len(more)
        if self._num_new >= BATCH_ROWS:
            self._hand_over(parts, step)

    def write(self, parts: TableParts, step: int) -> None:
        """Write all rows as parts of the tables, synced to the disk, and keep none."""
        self.wait()
        found = {name: self._joined(name) for name in self._new}
        parts.write(step, found)
        for name in found:
            self._new[name], self._tables[name] = [], []
        self._num_new = 0

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

    def submit(self, task: Callable[[], None]) -> None:
        """Let the thread do a task; RunError if the disk has refused an earlier one."""
        done, self._tasks = [one for one in self._tasks if one.done()], [one for one in self._tasks if not one.done()]
        for one in done:
            one.result()
        self._tasks.append(self._thread.submit(task))

    def _hand_over(self, parts: TableParts, step: int) -> None:
        new, self._new, self._num_new = self._new, {name: [] for name in self._new}, 0
        self.submit(partial(self._convert, new, parts, step))

    def _convert(self, new: Mapping[str, Sequence[Sequence[TableRow]]], parts: TableParts, step: int) -> None:
        for name, blocks in new.items():
            self._tables[name] += map(tables.table, blocks)
            if sum(map(len, self._tables[name])) >= PART_ROWS:
                parts.write(step, {name: tables.concat(self._tables[name])})
                self._tables[name] = []

    def _joined(self, name: str) -> Table:
        rest = [row for rows in self._new[name] if isinstance(rows, list) for row in rows]
        blocks = [tables.table(rows) for rows in self._new[name] if not isinstance(rows, list)]
        return tables.concat([*self._tables[name], *blocks, *([tables.table(rest)] if rest else [])])
