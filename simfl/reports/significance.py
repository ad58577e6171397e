"""Significance of the difference between two runs, and the spread of scores over clients, from scores per example.

The paired bootstrap (Efron and Tibshirani 1993, chapter 16; Koehn 2004) resamples the common examples with replacement
and counts how often the difference of the means falls on the other side of zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simfl.runs.results import Run
from simfl.runs.tables import TableRow
from simfl.seeds import rng

NUM_DRAWS = 10_000  # bootstrap samples
CHUNK = 2**22  # drawn examples that are held in memory at a time
ExampleKey = tuple[int | None, int]  # client of a personal model, row of the split
ScoresByName = dict[str, dict[ExampleKey, float]]  # by name, as in summaries: `anls`, `test.personal.anls`


@dataclass(frozen=True)
class Difference:
    """The difference of two means over the same examples."""

    mean: float  # b − a
    low: float  # 2.5th percentile of the resampled differences
    high: float  # 97.5th percentile
    p: float  # two-sided: twice the smaller fraction of draws at or beyond zero, at least 1 / draws
    examples: int


@dataclass(frozen=True)
class ExampleScores:
    """The scores of a run's examples, and what must be equal to compare them in pairs."""

    seed: int
    data_sha256: str
    scores: ScoresByName


@dataclass(frozen=True)
class ClientSpread:
    """Statistics of clients' mean scores; each client has the same weight."""

    worst: float
    tenth: float  # 10th percentile, linearly interpolated between clients
    deviation: float  # of the population (n)
    clients: int


def bootstrap(a: np.ndarray, b: np.ndarray, draws: int = NUM_DRAWS) -> Difference:
    """Compare two arrays of scores, float64 [n], example by example.

    The random draws depend on n alone, so the result is reproducible.
    """
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


def difference(a: Sequence[ExampleScores], b: Sequence[ExampleScores], name: str) -> Difference | None:
    """Compare two settings on a score; None if they have no example in common.

    Runs are paired by seed. The score of an example is its mean over the seeds that both settings have, and examples
    are resampled: the test is about these seeds on other examples.
    """
    others = {(run.seed, run.data_sha256): run.scores.get(name, {}) for run in b}
    pairs: dict[ExampleKey, list[tuple[float, float]]] = {}
    for run in a:
        mine, theirs = run.scores.get(name, {}), others.get((run.seed, run.data_sha256), {})
        for key in mine.keys() & theirs.keys():
            pairs.setdefault(key, []).append((mine[key], theirs[key]))
    if not pairs:
        return None
    ordered = sorted(pairs, key=lambda key: (-1 if key[0] is None else key[0], key[1]))
    means = np.array([np.mean(pairs[key], axis=0) for key in ordered])
    return bootstrap(means[:, 0], means[:, 1])


def example_scores(run: Run) -> ExampleScores:
    """Return the scores of a run's examples at its end."""
    return ExampleScores(run.experiment.seed, run.manifest.data_sha256, scores_by_name(run))


def scores_by_name(run: Run) -> ScoresByName:
    """Return the score of each example at the end of a run, by the names that summaries use."""
    first, found = run.experiment.evaluate.splits[0], dict[str, dict[ExampleKey, float]]()
    table = run.scores()
    for metric in metric_columns(table.column_names):
        columns = (table[name].to_pylist() for name in ("split", "model", "client", "row", metric))
        for split, model, client, row, value in zip(*columns, strict=True):
            if value is not None:
                found.setdefault(score_name(split, model, metric, first), {})[client, row] = value
    return found


def metric_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns of `scores.parquet` that hold scores."""
    known = {"phase", "round", "step", "split", "model", "client", "row"}
    return [name for name in columns if name not in known and not name.startswith("by_")]


def score_name(split: str, model: str, metric: str, first: str) -> str:
    """Return the name of a score in a summary, as `evaluation.headlines` does; `first` is the first evaluated split."""
    path = [split] if split != first else []
    return ".".join([*path, *([model] if model != "global" else []), metric])


def client_means(run: Run) -> dict[str, dict[int, float]]:
    """Return each client's mean scores at the end of a run, by the names that summaries use.

    A personal model is scored on the examples of its client. A model that all clients share is scored on the examples
    of each client's groups; there are none where the partition has no groups of the evaluated split.
    """
    owners = _owners(run)
    found: dict[str, dict[int, list[float]]] = {}
    first, table = run.experiment.evaluate.splits[0], run.scores()
    groups = [name for name in table.column_names if name.startswith("by_")]
    for row in table.to_pylist():
        clients = [row["client"]] if row["client"] is not None else _clients(row, groups, owners)
        for metric in metric_columns(table.column_names) if clients else ():
            values = found.setdefault(score_name(row["split"], row["model"], metric, first), {})
            for client in clients:
                values.setdefault(client, []).append(row[metric])
    return {name: {k: float(np.mean(v)) for k, v in sorted(values.items())} for name, values in found.items()}


def client_spread(means: Mapping[int, float]) -> ClientSpread:
    """Return statistics of clients' mean scores."""
    values = np.array(list(means.values()))
    return ClientSpread(float(values.min()), float(np.percentile(values, 10)), float(values.std()), len(values))


def _owners(run: Run) -> dict[str, list[int]]:
    """Return the clients that have examples of each named group."""
    partition, owners = run.stored_partition, dict[str, list[int]]()
    for client in range(len(partition)) if len(partition.group_names) else ():
        for name, _ in partition.groups(client):
            owners.setdefault(name, []).append(client)
    return owners


def _clients(row: TableRow, groups: Sequence[str], owners: Mapping[str, list[int]]) -> list[int]:
    return next((owners[str(row[g])] for g in groups if str(row[g]) in owners), [])
