"""Whether two runs differ by more than chance, and how unlike clients fare: from each example's own scores.

The paired bootstrap (Efron and Tibshirani 1993, chapter 16; Koehn 2004) draws the common examples anew, with
replacement, and asks how often the difference of the means falls on the other side of zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simfl.runs.results import Run
from simfl.seeds import rng

DRAWS = 10_000
CHUNK = 2**22  # draws of single examples held at a time
Key = tuple[int | None, int]  # client of a personal model, row of the split
Scores = dict[str, dict[Key, float]]  # by name, as in summaries: `anls`, `test.personal.anls`


@dataclass(frozen=True)
class Difference:
    """Of two means over the same examples."""

    mean: float  # b − a
    low: float  # 2.5th percentile of the drawn differences
    high: float  # 97.5th
    p: float  # two-sided: twice the smaller share of draws at or beyond zero, at least 1 / draws
    examples: int


@dataclass(frozen=True)
class Scored:
    """What of a run is compared in pairs."""

    seed: int
    data_sha256: str
    scores: Scores


@dataclass(frozen=True)
class Spread:
    """Of clients' mean scores; each client counts once."""

    worst: float
    tenth: float  # 10th percentile, between clients in a straight line
    deviation: float  # of the population (n)
    clients: int


def bootstrap(a: np.ndarray, b: np.ndarray, draws: int = DRAWS) -> Difference:
    """Float64 [n] each, example by example; the draws are named by n alone, so a table is the same each time."""
    d = b - a
    generator, n = rng("bootstrap", len(d)), len(d)
    means = np.empty(draws)
    step = max(1, CHUNK // n)
    for first in range(0, draws, step):
        count = min(step, draws - first)
        means[first : first + count] = d[generator.integers(0, n, (count, n))].mean(axis=1)
    sides = float(np.mean(means <= 0)), float(np.mean(means >= 0))
    low, high = np.percentile(means, [2.5, 97.5])
    return Difference(float(d.mean()), float(low), float(high), min(1.0, max(2 * min(sides), 1 / draws)), n)


def difference(a: Sequence[Scored], b: Sequence[Scored], name: str) -> Difference | None:
    """Of two settings on a score; None if they have no example in common.

    Runs are paired by seed. An example's score is its mean over the seeds in which both settings have it, and examples
    are drawn, so what is tested is these seeds on other examples.
    """
    others = {(run.seed, run.data_sha256): run.scores.get(name, {}) for run in b}
    pairs: dict[Key, list[tuple[float, float]]] = {}
    for run in a:
        mine, theirs = run.scores.get(name, {}), others.get((run.seed, run.data_sha256), {})
        for key in mine.keys() & theirs.keys():
            pairs.setdefault(key, []).append((mine[key], theirs[key]))
    if not pairs:
        return None
    ordered = sorted(pairs, key=lambda key: (-1 if key[0] is None else key[0], key[1]))
    means = np.array([np.mean(pairs[key], axis=0) for key in ordered])
    return bootstrap(means[:, 0], means[:, 1])


def scored(run: Run) -> Scored:
    """What of a run is compared in pairs."""
    return Scored(run.experiment.seed, run.manifest["data_sha256"], scores(run))


def scores(run: Run) -> Scores:
    """Each example's scores at the end of a run, by the names that summaries use."""
    first, found = run.experiment.evaluate.splits[0], dict[str, dict[Key, float]]()
    table = run.scores()
    for metric in metrics(table.column_names):
        columns = (table[name].to_pylist() for name in ("split", "model", "client", "row", metric))
        for split, model, client, row, value in zip(*columns, strict=True):
            if value is not None:
                found.setdefault(name_of(split, model, metric, first), {})[client, row] = value
    return found


def metrics(columns: Sequence[str]) -> list[str]:
    """The columns of `scores.parquet` that are scores."""
    known = {"phase", "round", "step", "split", "model", "client", "row"}
    return [name for name in columns if name not in known and not name.startswith("by_")]


def name_of(split: str, model: str, metric: str, first: str) -> str:
    """A score's name in a summary, as `evaluation.headlines` gives it; `first` is the first evaluated split."""
    path = [split] if split != first else []
    return ".".join([*path, *([model] if model != "global" else []), metric])


def per_client(run: Run) -> dict[str, dict[int, float]]:
    """Each client's mean scores at the end of a run, by the names that summaries use.

    A personal model is scored on its client's examples. Of a model that all share, the examples of a client are those
    of its groups; there are none where the partition knows no groups of the evaluated split.
    """
    owners = _owners(run)
    found: dict[str, dict[int, list[float]]] = {}
    first, table = run.experiment.evaluate.splits[0], run.scores()
    groups = [name for name in table.column_names if name.startswith("by_")]
    for row in table.to_pylist():
        clients = [row["client"]] if row["client"] is not None else _clients(row, groups, owners)
        for metric in metrics(table.column_names) if clients else ():
            values = found.setdefault(name_of(row["split"], row["model"], metric, first), {})
            for client in clients:
                values.setdefault(client, []).append(row[metric])
    return {name: {k: float(np.mean(v)) for k, v in sorted(of.items())} for name, of in found.items()}


def _owners(run: Run) -> dict[str, list[int]]:
    """The clients that hold each named group."""
    partition, owners = run.partition_alone, dict[str, list[int]]()
    for client in range(len(partition)) if len(partition.group_names) else ():
        for name, _ in partition.groups(client):
            owners.setdefault(name, []).append(client)
    return owners


def _clients(row: Mapping[str, object], groups: Sequence[str], owners: Mapping[str, list[int]]) -> list[int]:
    return next((owners[str(row[g])] for g in groups if str(row[g]) in owners), [])


def spread(values: Mapping[int, float]) -> Spread:
    """How unlike clients fare."""
    of = np.array(list(values.values()))
    return Spread(float(of.min()), float(np.percentile(of, 10)), float(of.std()), len(of))
