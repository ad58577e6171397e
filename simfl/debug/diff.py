"""Two runs side by side: settings, what they were made of, tables and commits, and where they first part."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simfl import config
from simfl.debug.divergence import brief, divergence, states
from simfl.debug.rerun import Row, same
from simfl.errors import SimflError
from simfl.runs.record import TABLES
from simfl.runs.results import Run

KEYS = {
    "rounds": ("phase", "round"),
    "ledger": ("phase", "round", "client", "direction", "part"),
    "clients": ("phase", "round", "client"),
    "evaluations": ("phase", "round", "split", "model", "by", "group", "metric"),
    "samples": ("phase", "round", "split", "model", "row"),
    "scores": ("phase", "round", "split", "model", "client", "row"),
}
SCORED = ("evaluations", "samples", "scores")  # after a round; after 0: before the first
ORDER = {"clients": 1, "rounds": 3, **dict.fromkeys(SCORED, 4)}  # within a round; messages go before or after
SHOWN = 3  # rows of each table
NOT_AGAIN = "run again here, both are equal and as recorded up to there: what differs was not made by the settings"
UNLIKE = ("resumes",)  # of the manifest: says how a run went, not what it is


@dataclass(frozen=True)
class Place:
    """Where a row belongs in the course of a run: round 0 is before the first, `order` is the order within a round."""

    phase: int
    round: int
    order: int


@dataclass
class Comparison:
    """What two runs have in common. They are equal if every row of every table and every common commit is."""

    settings: list[str] = field(default_factory=list)  # lines about the experiments
    made_of: list[str] = field(default_factory=list)  # lines about the manifests
    rows: list[str] = field(default_factory=list)  # lines about the tables
    commits: list[str] = field(default_factory=list)  # lines about the commits
    first: Place | None = None  # of the first row that differs
    closer: list[str] = field(default_factory=list)  # what running both again found

    @property
    def equal(self) -> bool:
        return not (self.rows or self.commits)


def compare(a: Run, b: Run, again: bool = True, say: Callable[[str], None] = lambda text: None) -> Comparison:
    """Compare what lies on the disk; then, if they differ and `again`, run both again to find where they part."""
    found = Comparison(settings=list(_settings(a, b)), made_of=list(_manifests(a, b)))
    places = []
    for name in TABLES:
        differing = list(_rows(a, b, name))
        if differing:
            places += [place for place, _ in differing]
            found.rows.append(f"{name}: {len(differing)} rows differ, of {len(a.table(name))} | {len(b.table(name))}")
            found.rows += [f"  {line}" for line in brief([line for _, line in differing], SHOWN)]
    found.first = min(places, key=lambda p: (p.phase, p.round, p.order), default=None)
    found.commits = list(_commits(a, b))
    if not found.equal and again:
        found.closer = _closer(a, b, found.first, say)
    return found


def _settings(a: Run, b: Run) -> Iterator[str]:
    mine, theirs = (config.read_yaml(run.folder / "experiment.yaml") for run in (a, b))
    yield from paths_apart(mine, theirs)


def _manifests(a: Run, b: Run) -> Iterator[str]:
    mine, theirs = ({k: v for k, v in run.manifest.items() if k not in UNLIKE} for run in (a, b))
    yield from paths_apart(mine, theirs)


def paths_apart(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """`path: a | b` for every leaf in which two nested values differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from paths_apart(a.get(key), b.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from paths_apart(x, y, f"{path}.{i}".lstrip("."))
    elif a != b:
        yield f"{path}: {json.dumps(a)} | {json.dumps(b)}"


def _rows(a: Run, b: Run, name: str) -> Iterator[tuple[Place, str]]:
    """The rows in which a table differs, in the order of the run; cells that differ as `column a | b`."""
    tables = a.table(name), b.table(name)
    if tables[0].equals(tables[1]):
        return
    keys = KEYS[name]
    mine, theirs = ({tuple(row[k] for k in keys): row for row in table.to_pylist()} for table in tables)
    if name == "scores" and {key[:2] for key in mine} != {key[:2] for key in theirs}:
        return  # made at the end alone, and the runs end after different rounds
    lines = []
    for key in mine.keys() | theirs.keys():
        x, y = mine.get(key), theirs.get(key)
        where = ", ".join(f"{k} {v}" for k, v in zip(keys, key, strict=True) if v not in ("", None))
        if name in SCORED:
            where = where.replace("round", "after round", 1)
        if x is None or y is None:
            lines.append((place(name, x or y or {}), f"{where}: only in {'A' if y is None else 'B'}"))
            continue
        apart = [f"{k} {x.get(k)!r} | {y.get(k)!r}" for k in {**x, **y} if not same(x.get(k), y.get(k))]
        if apart:
            lines.append((place(name, x), f"{where}: {', '.join(apart)}"))
    yield from sorted(lines, key=lambda line: (line[0].phase, line[0].round, line[0].order, line[1]))


def place(name: str, row: Row) -> Place:
    """Where a row belongs."""
    order = (0 if row["direction"] == "download" else 2) if name == "ledger" else ORDER[name]
    return Place(row["phase"], row["round"], order)


def _commits(a: Run, b: Run) -> Iterator[str]:
    """Lines about the newest commit that both have."""
    common = sorted(set(a.steps) & set(b.steps))
    if not common:
        return
    try:
        lines = brief(list(states(a.snapshot(common[-1]), b.snapshot(common[-1]))))
    except SimflError as error:
        lines = [str(error)]
    if lines:
        yield f"after round {common[-1]}:"
        yield from (f"  {line}" for line in lines)


def _closer(a: Run, b: Run, first: Place | None, say: Callable[[str], None]) -> list[str]:
    """Run both again up to the first row that differs, or the last round of both."""
    try:
        phase, round = (first.phase, max(first.round, 1)) if first else _last_common_round(a, b)
        say(f"running round {round} of phase {phase} again in both")
        with tempfile.TemporaryDirectory(prefix="simfl-diff-") as scratch:
            return divergence(a, b, phase, round, Path(scratch), say) or [NOT_AGAIN]
    except SimflError as error:
        return [f"they cannot be run again: {error}"]


def _last_common_round(a: Run, b: Run) -> tuple[int, int]:
    step = min(len(a.rounds()), len(b.rounds())) - 1
    row = a.rounds().to_pylist()[max(step, 0)]
    return row["phase"], row["round"]


def lines(found: Comparison) -> list[str]:
    """The comparison for a reader; A stands left of the bar, B right."""
    out = _section("settings", found.settings) + _section("made of", found.made_of)
    out += _section("tables", found.rows) + _section("commits", found.commits)
    out += _section("closer", found.closer, equal="") if not found.equal else []
    return [*out, "the runs are equal" if found.equal else "the runs differ"]


def _section(title: str, lines: list[str], equal: str = "equal") -> list[str]:
    if not lines:
        return [f"{title}: {equal}"] if equal else []
    return [f"{title}:", *(f"  {line}" for line in lines)]
