"""Scores of generic and personal models: per split, client, provider; sharded over the workers, summed in row order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from simfl.client_state import ClientStore
from simfl.data.partition.base import column, columns_of
from simfl.data.partition.manifest import Partition
from simfl.models.call_context import ModelCall, call_context
from simfl.protocol import Forward, Parts, State, Weights
from simfl.run_context import RunContext
from simfl.seeds import rng
from simfl.stacking import namespace
from simfl.timing import Clock, measured
from simfl.training.context import LOCAL, PhaseContext

TRUTH = ("id", "question", "answers", "label", "text")  # columns shown beside a prediction, where the data has them
# columns by which scores are also averaged, where the data has them, beside those that the partition goes by
GROUPS = ("dataset", "provider", "scene", "task", "domain", "stage", "field", "group")


@dataclass(frozen=True)
class EvaluationPlan:
    """A shard: these rows of a split under one model. `client` and `memory` belong to personal models."""

    index: int
    split: str
    model: str
    rows: np.ndarray
    client: int | None = None
    memory: str = ""
    samples: tuple[int, ...] = ()  # of the rows, those whose predictions are kept


@dataclass(frozen=True)
class Scores:
    """One value per example and metric, in the order of `rows`."""

    plan: EvaluationPlan
    columns: dict[str, np.ndarray]
    samples: tuple[dict[str, Any], ...] = ()  # predictions of the plan's sample rows
    clock: Clock = field(default_factory=Clock)


def shards(
    split: str, model: str, rows: np.ndarray, size: int, client: int | None = None, memory: str = ""
) -> list[EvaluationPlan]:
    """Cut rows into shards of a fixed size, so that results do not depend on the number of workers."""
    return [EvaluationPlan(0, split, model, rows[i : i + size], client, memory) for i in range(0, len(rows), size)]


def evaluate(
    setting: RunContext, stage: PhaseContext, store: ClientStore, plan: EvaluationPlan, received: Parts, batch_size: int
) -> Scores:
    """Score one shard."""
    objective, algorithm = stage.phase.objective, stage.phase.algorithm
    with measured("load"):
        memory = store.get(plan.memory) if plan.memory else {}
    view = algorithm.offered_models.get(plan.model, Forward())
    network, weights = stage.runs_on(view), weights_of(stage, plan, received, memory)
    examples, split = setting.examples(objective, plan.split), setting.split(plan.split)
    network.module.eval()
    pieces, samples = [], []
    own = {name: tensor.to(stage.device) for name, tensor in weights.items()}
    with torch.no_grad(), call_context(ModelCall(branch=view.branch)), network.binding.swapped(own):
        for first in range(0, len(plan.rows), batch_size):
            rows = plan.rows[first : first + batch_size]
            batch = examples.take(torch.from_numpy(rows).to(stage.device))
            predictions = objective.predict(network.module, batch)
            pieces.append(objective.score(predictions, split, rows))
            samples += [_sample(predictions, row, i) for i, row in enumerate(rows.tolist()) if row in plan.samples]
    return Scores(plan, {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}, tuple(samples))


def weights_of(stage: PhaseContext, plan: EvaluationPlan, received: Parts, memory: State) -> Weights:
    """The tensors of the evaluated model: the algorithm's offer, and what else a client has of its own."""
    algorithm, state = stage.phase.algorithm, namespace(memory, "algorithm")
    if stage.runs_on(algorithm.offered_models.get(plan.model, Forward())) is not stage.network:
        return algorithm.models({}, state)[plan.model]  # a second network shares no tensor with the global model
    offered = algorithm.models(received["weights"], state)
    offered |= {LOCAL: {**received["weights"], **namespace(memory, "local").get("weights", {})}}
    private = namespace(memory, "personal_params").get("weights", {}) if plan.client is not None else {}
    buffers = {**received.get("buffers", {}), **namespace(memory, "buffers").get("weights", {})}
    return {**offered[plan.model], **buffers, **private}


def _sample(predictions: dict[str, Any], row: int, place: int) -> dict[str, Any]:
    return {"row": row} | {f"predicted_{name}": plain(values[place]) for name, values in predictions.items()}


def plain(value: Any) -> Any:
    """A prediction as a table holds it: a number, a text, or the text of anything else."""
    value = value.tolist() if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) else value
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def sample_rows(setting: RunContext, split: str, rows: np.ndarray, count: int) -> tuple[int, ...]:
    """The rows whose predictions are kept: drawn once for each split, in file order."""
    if count >= len(rows):
        return tuple(rows.tolist())
    drawn = rng(setting.experiment.seed, "samples", split).choice(rows, size=count, replace=False)
    return tuple(sorted(drawn.tolist()))


def samples(setting: RunContext, scores: Iterable[Scores], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows for `samples.parquet`: what was asked, what is true, what was predicted."""
    out = []
    for part in scores:
        split = setting.split(part.plan.split)
        known = [name for name in TRUTH if name in split.examples.column_names]
        for sample in part.samples:
            example = split.examples.select(known).slice(sample["row"], 1).to_pylist()[0]
            out.append({**facts, "split": part.plan.split, "model": part.plan.model, **example, **sample})
    return out


def by_example(setting: RunContext, scores: Iterable[Scores], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows for `scores.parquet`: each example's own scores, and the groups it is of as `by_<column>`.

    What two runs are compared on in pairs, and what tells how unlike clients fare.
    """
    out, known = [], dict[str, list[tuple[str, np.ndarray]]]()
    for part in scores:
        plan = part.plan
        if plan.split not in known:
            known[plan.split] = _groups(setting, plan.split, np.arange(len(setting.split(plan.split))))
        base = {**facts, "split": plan.split, "model": plan.model, "client": plan.client}
        groups = {f"by_{kind}": names[plan.rows].tolist() for kind, names in known[plan.split]}
        columns = groups | {name: values.astype(float).tolist() for name, values in part.columns.items()}
        for row, *cells in zip(plan.rows.tolist(), *columns.values(), strict=True):
            out.append({**base, "row": row, **dict(zip(columns, cells, strict=True))})
    return out


def summarise(setting: RunContext, scores: Iterable[Scores], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows for `evaluations.parquet`: each metric's mean by split and model, and by every group column and client.

    `two_step` is the mean of the group means, as paper 000 averages over data sets.
    """
    joined: dict[tuple[str, str, int | None], list[Scores]] = {}
    for part in scores:
        joined.setdefault((part.plan.split, part.plan.model, part.plan.client), []).append(part)
    out: list[dict[str, Any]] = []
    for (split, model, client), parts in joined.items():
        rows = np.concatenate([p.plan.rows for p in parts])
        columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in parts[0].columns}
        base = {**facts, "split": split, "model": model}
        by = "all" if client is None else "client"
        for metric, values in columns.items():
            out.append(
                {**base, "by": by, "group": "" if client is None else str(client), "metric": metric, **_mean(values)}
            )
            for kind, names in _groups(setting, split, rows) if client is None else ():
                means = {g: _mean(values[names == g]) for g in sorted(set(names))}
                out += [{**base, "by": kind, "group": g, "metric": metric, **mean} for g, mean in means.items()]
                two_step = {"value": float(np.mean([mean["value"] for mean in means.values()])), "count": len(means)}
                out.append({**base, "by": f"{kind}:two_step", "group": "", "metric": metric, **two_step})
    return out


def _mean(values: np.ndarray) -> dict[str, Any]:
    return {"value": float(np.mean(values, dtype=np.float64)), "count": len(values)}


def _groups(setting: RunContext, split: str, rows: np.ndarray) -> list[tuple[str, np.ndarray]]:
    found = setting.split(split)
    tables = [found.examples] + ([found.documents] if found.documents is not None else [])
    wanted = dict.fromkeys([*columns_of(setting.experiment.partition), *GROUPS])
    present = [name for name in wanted if any(name in table.column_names for table in tables)]
    coded = {name: column(found, name) for name in present}
    return [(name, np.asarray(names.to_pylist(), dtype=object)[codes][rows]) for name, (codes, names) in coded.items()]


def headline(rows: list[dict[str, Any]], metric: str, split: str, model: str) -> float | None:
    """The overall value of a metric, of personal models the mean over clients; None where it was not evaluated."""
    wanted = {"metric": metric, "split": split, "model": model}
    found = [r for r in rows if r["by"] in ("all", "client") and all(r[key] == value for key, value in wanted.items())]
    return headlines(found, split)[metric if model == "global" else f"{model}.{metric}"] if found else None


def headlines(rows: list[dict[str, Any]], first: str) -> dict[str, float]:
    """Overall values by name: `anls` of the generic model on the first split, else `split.anls`, `personal.anls`, …

    Of personal models, which are scored client by client, the mean over clients.
    """
    found: dict[str, list[float]] = {}
    for r in rows:
        if r["by"] in ("all", "client"):
            path = [r["split"]] if r["split"] != first else []
            path += [r["model"]] if r["model"] != "global" else []
            found.setdefault(".".join([*path, r["metric"]]), []).append(r["value"])
    return {name: float(np.mean(values)) for name, values in found.items()}


def rows_of_clients(setting: RunContext, partition: Partition, split: str, rows: np.ndarray) -> list[np.ndarray]:
    """Which of these rows each client is scored on: those of its groups; all, where no row is of anybody's group."""
    if split == "train":
        return [np.intersect1d(rows, partition.rows(k)) for k in range(len(partition))]
    groups = [{name for name, _ in partition.groups(k)} for k in range(len(partition))]
    for _, values in _groups(setting, split, rows) if any(groups) else ():
        own = [rows[[value in names for value in values]] for names in groups]
        if any(map(len, own)):
            return own
    return [rows] * len(partition)
