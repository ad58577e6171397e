"""Scores of single examples at the end of a run: their paired comparison between settings, and by client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simfl.data.base import HELD_OUT
from simfl.evaluation.headlines import score_name
from simfl.reports.statistical_tests import Difference, hierarchical_bootstrap
from simfl.runs.stored import StoredRun
from simfl.runs.tables import TableRow

ExampleKey = tuple[
    int | str | None, int
]  # client of a personal model or value of `evaluate.two_step`; row of the split
ScoresByName = dict[str, dict[ExampleKey, float]]  # by name, as in summaries: `anls`, `test.personal.anls`


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


def difference(a: Sequence[ExampleScores], b: Sequence[ExampleScores], name: str) -> Difference | None:
    """Compare two settings on a score; None if fewer than two seeds have an example in common.

    Runs are paired by seed. Examples count as in the score itself: of clients' models each client's mean once, with
    `evaluate.two_step` each value's mean once.
    """
    others = {(run.seed, run.data_sha256): run.scores.get(name, {}) for run in b}
    pairs: list[dict[ExampleKey, float]] = []
    for run in a:
        mine, theirs = run.scores.get(name, {}), others.get((run.seed, run.data_sha256), {})
        if common := mine.keys() & theirs.keys():
            pairs.append({key: theirs[key] - mine[key] for key in common})
    if len(pairs) < 2:
        return None
    keys = sorted({key for seed in pairs for key in seed}, key=str)
    differences = np.array([[seed.get(key, math.nan) for key in keys] for seed in pairs])
    return hierarchical_bootstrap(differences, _group_weights(keys, ~np.isnan(differences)))


def _group_weights(keys: Sequence[ExampleKey], known: np.ndarray) -> np.ndarray:
    """Return the weight of each example [S, N], with which the examples of a client or value in a seed sum to 1."""
    groups, codes = np.unique([str(group) for group, _ in keys], return_inverse=True)
    counts = np.stack([np.bincount(codes, row, len(groups)) for row in known.astype(np.float64)])
    weights: np.ndarray = 1.0 / np.maximum(counts, 1.0)[:, codes]
    return weights


def example_scores(run: StoredRun) -> ExampleScores:
    """Return the scores of a run's examples at its end."""
    return ExampleScores(run.settings["seed"], run.manifest.data_sha256, scores_by_name(run))


def scores_by_name(run: StoredRun) -> ScoresByName:
    """Return the score of each example at the end of a run, by the names that summaries use."""
    found: dict[str, dict[ExampleKey, float]] = {}
    table, naming = run.scores(), _naming(run)
    by = f"by_{run.settings['evaluate']['two_step']}"
    values_of = table[by].to_pylist() if by in table.column_names else [None] * len(table)
    for metric in metric_columns(table.column_names):
        columns = (table[name].to_pylist() for name in ("split", "model", "client", "row", metric))
        for split, model, client, row, value, group in zip(*columns, values_of, strict=True):
            if value is not None:
                owner = group if client is None else client
                found.setdefault(score_name(split, model, metric, *naming), {})[owner, row] = value
    return found


def _naming(run: StoredRun) -> tuple[str, bool]:
    """Return the first evaluated split, and whether clients' models are scored on held-out examples."""
    return run.settings["evaluate"]["splits"][0], run.stored_partition.holds_out


def metric_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns of `scores.parquet` that hold scores."""
    known = {"phase", "round", "step", "split", "model", "client", "row"}
    return [name for name in columns if name not in known and not name.startswith("by_")]


def client_means(run: StoredRun) -> dict[str, dict[int, float]]:
    """Return each client's mean scores at the end of a run, by the names that summaries use.

    A personal model is scored on the examples of its client. A model that all clients share is scored on each client's
    held-out examples, or on those of its groups; there are none where the partition has no groups of the split.
    """
    owners = _owners(run)
    found: dict[str, dict[int, list[float]]] = {}
    table, naming = run.scores(), _naming(run)
    groups = [name for name in table.column_names if name.startswith("by_")]
    for row in table.to_pylist():
        clients = [row["client"]] if row["client"] is not None else _clients(row, groups, owners)
        for metric in metric_columns(table.column_names) if clients else ():
            values = found.setdefault(score_name(row["split"], row["model"], metric, *naming), {})
            for client in clients:
                values.setdefault(client, []).append(row[metric])
    return {name: {k: float(np.mean(v)) for k, v in sorted(values.items())} for name, values in found.items()}


def client_spread(means: Mapping[int, float]) -> ClientSpread:
    """Return statistics of clients' mean scores."""
    values = np.array(list(means.values()))
    return ClientSpread(float(values.min()), float(np.percentile(values, 10)), float(values.std()), len(values))


def _owners(run: StoredRun) -> dict[str, list[int]]:
    """Return the clients that have examples of each named group."""
    partition, owners = run.stored_partition, dict[str, list[int]]()
    for client in range(len(partition)) if len(partition.group_names) else ():
        for name, _ in partition.groups(client):
            owners.setdefault(name, []).append(client)
    return owners


def _clients(row: TableRow, groups: Sequence[str], owners: Mapping[str, list[int]]) -> list[int]:
    if row.get("by_client") is not None and row["split"] == HELD_OUT:
        return [int(row["by_client"])]
    return next((owners[str(row[g])] for g in groups if str(row[g]) in owners), [])
