"""Comparison of two runs: settings, manifests, tables and checkpoints, and the first difference between them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from simfl import config
from simfl.debug.divergence import compare_states, find_divergence, shorten
from simfl.debug.rerun import equal_values
from simfl.errors import SimflError
from simfl.runs.folder import RUN
from simfl.runs.results import Run
from simfl.runs.tables import TABLES, TableRow

KEYS = {  # of each table: the columns that identify a row
    "rounds": ("phase", "round"),
    "ledger": ("phase", "round", "client", "direction", "part"),
    "clients": ("phase", "round", "client"),
    "evaluations": ("phase", "round", "split", "model", "by", "group", "metric"),
    "samples": ("phase", "round", "split", "model", "row"),
    "scores": ("phase", "round", "split", "model", "client", "row"),
    "times": ("phase", "round", "client"),
}
AFTER_ROUND = ("evaluations", "samples", "scores")  # tables about the state after a round; round 0: before the first
ORDER = {
    "times": 0,
    "clients": 1,
    "rounds": 3,
    **dict.fromkeys(AFTER_ROUND, 4),
}  # within a round; downloads are 0, uploads 2
MAX_ROWS = 3  # shown of each table
NO_DIVERGENCE = (
    "the repeated runs are equal up to this round and equal to the record:"
    " the recorded difference was not caused by the settings"
)
NOT_COMPARED = ("resumes", "experiment_sha256")  # the course of a run; what is compared as settings


class RowPosition(NamedTuple):
    """The position of a row in the course of a run. Round 0 is before the first; `order` is the order in a round."""

    phase: int
    round: int
    order: int


@dataclass
class RunDiff:
    """The differences of two runs. The runs are equal if all rows and the newest common checkpoint are equal."""

    settings: list[str] = field(default_factory=list)  # lines about the experiments
    manifests: list[str] = field(default_factory=list)  # lines about versions, data and hardware
    rows: list[str] = field(default_factory=list)  # lines about the tables
    checkpoints: list[str] = field(default_factory=list)  # lines about the checkpoints
    first: RowPosition | None = None  # of the first row that differs
    divergence: list[str] = field(default_factory=list)  # lines about the first difference of the repeated runs

    @property
    def equal(self) -> bool:
        """Return whether rows and checkpoints are equal."""
        return not (self.rows or self.checkpoints)


def compare(a: Run, b: Run, again: bool = True, on_message: Callable[[str], None] = lambda text: None) -> RunDiff:
    """Compare the files of two runs; if they differ and `again`, repeat both runs to find the first difference."""
    found = RunDiff(settings=list(_settings(a, b)), manifests=list(_manifests(a, b)))
    positions = []
    for name in TABLES:
        differing = list(_rows(a, b, name))
        if differing:
            positions += [position for position, _ in differing]
            found.rows.append(f"{name}: {len(differing)} rows differ, of {len(a.table(name))} | {len(b.table(name))}")
            found.rows += [f"  {line}" for line in shorten([line for _, line in differing], MAX_ROWS)]
    found.first = min(positions, default=None)
    found.checkpoints = list(_checkpoints(a, b))
    if not found.equal and again:
        found.divergence = _repeat(a, b, found.first, on_message)
    return found


def diff_lines(diff: RunDiff) -> list[str]:
    """Format the differences; run A is left of each bar, run B right of it."""
    lines = _section("settings", diff.settings) + _section("environment", diff.manifests)
    lines += _section("tables", diff.rows) + _section("checkpoints", diff.checkpoints)
    lines += _section("first difference", diff.divergence, equal="") if not diff.equal else []
    return [*lines, "the runs are equal" if diff.equal else "the runs differ"]


def differing_paths(a: object, b: object, path: str = "") -> Iterator[str]:
    """Yield `path: a | b` for every leaf in which two nested values differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from differing_paths(a.get(key), b.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differing_paths(x, y, f"{path}.{i}".lstrip("."))
    elif a != b:
        yield f"{path}: {json.dumps(a)} | {json.dumps(b)}"


def row_position(table: str, row: TableRow) -> RowPosition:
    """Return the position of a row of a table."""
    order = (0 if row["direction"] == "download" else 2) if table == "ledger" else ORDER[table]
    return RowPosition(row["phase"], row["round"], order)


def _settings(a: Run, b: Run) -> Iterator[str]:
    mine, theirs = (config.read_yaml(run.folder / RUN) for run in (a, b))
    yield from differing_paths(mine, theirs)


def _manifests(a: Run, b: Run) -> Iterator[str]:
    mine, theirs = (
        {key: value for key, value in run.manifest.to_json().items() if key not in NOT_COMPARED} for run in (a, b)
    )
    yield from differing_paths(mine, theirs)


def _rows(a: Run, b: Run, name: str) -> Iterator[tuple[RowPosition, str]]:
    """Yield the rows in which a table differs, in the order of the run; values that differ as `column a | b`."""
    tables = a.table(name), b.table(name)
    if tables[0].equals(tables[1]):
        return
    keys = KEYS[name]
    mine, theirs = ({tuple(row[k] for k in keys): row for row in table.to_pylist()} for table in tables)
    if name == "scores" and {key[:2] for key in mine} != {key[:2] for key in theirs}:
        return  # written at the end only, and the runs end after different rounds
    lines = []
    for key in mine.keys() | theirs.keys():
        x, y = mine.get(key), theirs.get(key)
        where = ", ".join(f"{k} {v}" for k, v in zip(keys, key, strict=True) if v not in ("", None))
        if name in AFTER_ROUND:
            where = where.replace("round", "after round", 1)
        if x is None or y is None:
            lines.append((row_position(name, x or y or {}), f"{where}: only in {'A' if y is None else 'B'}"))
            continue
        differing = [f"{k} {x.get(k)!r} | {y.get(k)!r}" for k in {**x, **y} if not equal_values(x.get(k), y.get(k))]
        if differing:
            lines.append((row_position(name, x), f"{where}: {', '.join(differing)}"))
    yield from sorted(lines)


def _checkpoints(a: Run, b: Run) -> Iterator[str]:
    """Yield lines about the newest checkpoint that both runs have. DamagedFile if it is damaged."""
    common = sorted(set(a.steps) & set(b.steps))
    if not common:
        return
    lines = shorten(list(compare_states(a.snapshot(common[-1]), b.snapshot(common[-1]))))
    if lines:
        yield f"after round {common[-1]}:"
        yield from (f"  {line}" for line in lines)


def _repeat(a: Run, b: Run, first: RowPosition | None, on_message: Callable[[str], None]) -> list[str]:
    """Repeat both runs up to the first row that differs, or the last round of both."""
    try:
        phase, round = (first.phase, max(first.round, 1)) if first else _last_common_round(a, b)
        on_message(f"repeating round {round} of phase {phase} of both runs")
        with tempfile.TemporaryDirectory(prefix="simfl-diff-") as scratch:
            return find_divergence(a, b, phase, round, Path(scratch), on_message) or [NO_DIVERGENCE]
    except SimflError as error:
        return [f"the runs cannot be repeated: {error}"]


def _last_common_round(a: Run, b: Run) -> tuple[int, int]:
    step = min(len(a.rounds()), len(b.rounds())) - 1
    row = a.rounds().to_pylist()[max(step, 0)]
    return row["phase"], row["round"]


def _section(title: str, lines: list[str], equal: str = "equal") -> list[str]:
    if not lines:
        return [f"{title}: {equal}"] if equal else []
    return [f"{title}:", *(f"  {line}" for line in lines)]
