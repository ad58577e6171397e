"""Evaluation of models on workers: scores per example of a shard, and their means by split, client and group.

Splits are cut into shards of a fixed size and scores are summed in row order, so results do not depend on the number of
workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from simfl.client_state import ClientStore
from simfl.data.base import HELD_OUT, TRAIN
from simfl.data.partition.base import column, columns_of
from simfl.data.partition.manifest import Partition
from simfl.errors import RunError
from simfl.evaluation.headlines import CLIENT_MEAN, GLOBAL, LOSS, TRUTH, TWO_STEP, Row
from simfl.models.call_context import ModelCall, call_context
from simfl.models.own import to_outputs
from simfl.protocol import BASE, Batch, Forward, Parts, State, Weights
from simfl.run_context import RunContext
from simfl.seeds import rng, seed_for
from simfl.stacking import select_namespace
from simfl.timing import Clock, measured
from simfl.training.context import LOCAL, Network, PhaseContext
from simfl.training.forward import model_inputs
from simfl.training.model_states import LAST, NAMESPACE, main_state, state_of
from simfl.training.retry import brief, is_out_of_memory

# columns by which scores are averaged too, where the data have them, in addition to those of the partition
GROUPS = ("dataset", "provider", "scene", "task", "domain", "stage", "field", "group")


@dataclass(frozen=True)
class EvaluationPlan:
    """A shard: rows of a split to evaluate with one model.

    Attributes:
        index: Number of the shard within the evaluation.
        split: Name of the split.
        model: Name of the model, such as `global` or `personal`.
        rows: Rows of the split, int64.
        client: The client whose model it is; None for the global model.
        state_digest: Digest of the client's stored state; empty for the global model.
        samples: Those of the rows whose predictions are kept.
    """

    index: int
    split: str
    model: str
    rows: np.ndarray
    client: int | None = None
    state_digest: str = ""
    samples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scores:
    """The scores of a shard.

    Attributes:
        plan: The shard.
        columns: Metric -> one value per example, in the order of the plan's rows.
        samples: Predictions of the plan's sample rows.
        loss_weights: Weight of each example in a mean of the column `loss`; None without losses.
    """

    plan: EvaluationPlan
    columns: dict[str, np.ndarray]
    samples: tuple[Row, ...] = ()
    loss_weights: np.ndarray | None = None


@dataclass(frozen=True)
class EvaluationTask:
    """Shards that a worker evaluates in one call, so that many small models do not cost a call each."""

    shards: tuple[EvaluationPlan, ...]

    @property
    def num_examples(self) -> int:
        """Number of examples of all shards."""
        return sum(len(shard.rows) for shard in self.shards)

    @property
    def name(self) -> str:
        """Name of the task in error messages."""
        first, others = self.shards[0], len(self.shards) - 1
        models = "" if not others else f" by {others + 1} models of clients"
        return f"{self.num_examples} examples of split {first.split}{models}"


@dataclass(frozen=True)
class EvaluationResult:
    """The result of a task.

    Attributes:
        scores: The scores of each shard, in their order.
        notes: Notes on the data that the worker encoded for this task, each reported once per run.
        clock: Time spent.
    """

    scores: tuple[Scores, ...]
    notes: tuple[str, ...] = ()
    clock: Clock = field(default_factory=Clock)


def shards(
    split: str, model: str, rows: np.ndarray, size: int, client: int | None = None, state_digest: str = ""
) -> list[EvaluationPlan]:
    """Cut rows into shards of a fixed size."""
    return [
        EvaluationPlan(0, split, model, rows[i : i + size], client, state_digest) for i in range(0, len(rows), size)
    ]


def tasks_of(shards_: Sequence[EvaluationPlan], batch_size: int, most_batches: int) -> list[EvaluationTask]:
    """Group shards into tasks: a shard of a shared model alone, shards of clients' models up to `most_batches`.

    Scores do not depend on the grouping, since every shard is evaluated alone.
    """
    found: list[list[EvaluationPlan]] = []
    batches, last = 0, None
    for shard in shards_:
        key = None if shard.client is None else (shard.split, shard.model)
        more = -(-len(shard.rows) // batch_size)
        if key is None or key != last or batches + more > most_batches:
            found.append([])
            batches = 0
        found[-1].append(shard)
        batches, last = batches + more, key
    return [EvaluationTask(tuple(group)) for group in found]


def evaluate(
    run_context: RunContext,
    context: PhaseContext,
    store: ClientStore,
    plan: EvaluationPlan,
    received: Parts,
    batch_size: int,
) -> Scores:
    """Evaluate one shard. `received`: the weights and buffers of the global model."""
    objective = context.phase.objective
    with measured("load"):
        client_state = store.get(plan.state_digest) if plan.state_digest else {}
    forward = context.phase.algorithm.eval_models.get(plan.model, Forward())
    network, weights = context.network_of(forward), evaluated_weights(context, plan, received, client_state)
    examples, split = run_context.examples(objective, plan.split), run_context.split(plan.split)
    network.module.eval()
    scores: list[dict[str, np.ndarray]] = []
    losses: list[Losses] = []
    samples: list[Row] = []
    tensors = {name: tensor.to(context.device) for name, tensor in weights.items()}
    with torch.no_grad(), call_context(ModelCall(branch=forward.branch)), network.swapped(tensors):
        for first in range(0, len(plan.rows), batch_size):
            rows = plan.rows[first : first + batch_size]
            batch = examples.take(torch.from_numpy(rows).to(context.device))
            seed = seed_for(context.seed, "predict", context.index, plan.split, int(rows[0]))
            context.generators.seed(seed)
            with network.swapped(network.reset()):
                predictions = objective.predict(network.module, batch)
            if run_context.experiment.evaluate.loss:
                context.generators.seed(seed)
                with network.swapped(network.reset()):
                    losses.append(_losses(context, network, batch, plan.split))
            scores.append(objective.score(predictions, split, rows))
            samples += [_sample(predictions, row, i) for i, row in enumerate(rows.tolist()) if row in plan.samples]
    columns = {name: np.concatenate([s[name] for s in scores]) for name in scores[0]}
    if not losses or LOSS in columns:  # an objective may have a metric of this name
        return Scores(plan, columns, tuple(samples))
    columns[LOSS] = np.concatenate([loss.means for loss in losses])
    return Scores(plan, columns, tuple(samples), loss_weights=np.concatenate([loss.weights for loss in losses]))


class Losses(NamedTuple):
    """The mean loss of each example, NaN without weight, and its weight, float64 [B]."""

    means: np.ndarray
    weights: np.ndarray


def _losses(context: PhaseContext, network: Network, batch: Batch, split: str) -> Losses:
    """Return the task loss of a batch in evaluation mode. Raise RunError if the objective has none there."""
    try:
        outputs = to_outputs(context.phase.objective.run(network.module, model_inputs(context, batch)))
        sums, weights = (t.double().cpu().numpy() for t in context.phase.objective.loss(outputs, batch))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise RunError(
            f"evaluate.loss: the loss on split {split} cannot be computed in evaluation mode ({brief(error)});"
            " set evaluate.loss: false to score predictions alone"
        ) from error
    return Losses(np.divide(sums, weights, out=np.full(len(sums), np.nan), where=weights > 0), weights)


def evaluated_weights(context: PhaseContext, plan: EvaluationPlan, received: Parts, client_state: State) -> Weights:
    """Return the tensors of the evaluated model: what the algorithm offers, with the client's own tensors."""
    algorithm, state = context.phase.algorithm, select_namespace(client_state, "algorithm")
    buffers = evaluated_state(context, plan.model, received, client_state)
    if context.network_of(algorithm.eval_models.get(plan.model, Forward())) is not context.network:
        # a second network shares no tensor with the global model
        return {**algorithm.eval_weights({}, state)[plan.model], **buffers}
    models = algorithm.eval_weights(received["weights"], state)
    models |= {LOCAL: {**received["weights"], **select_namespace(client_state, "local").get("weights", {})}}
    stored = select_namespace(client_state, "personal_params").get("weights", {})
    base = {name: t.to(context.network.tensors((name,))[name].dtype) for name, t in received.get(BASE, {}).items()}
    return {**base, **models[plan.model], **buffers, **(stored if plan.client is not None else {})}


def evaluated_state(context: PhaseContext, model: str, received: Parts, client_state: State) -> Weights:
    """Return the running statistics and the like of an evaluated model: its own, see `training.model_states`."""
    main = main_state(context, received, client_state)
    if model == LOCAL:
        return select_namespace(client_state, NAMESPACE).get(LAST) or main
    return state_of(context, context.phase.algorithm.eval_models.get(model, Forward()), main, client_state)


def _sample(predictions: Row, row: int, index: int) -> Row:
    return {"row": row} | {f"predicted_{name}": table_value(values[index]) for name, values in predictions.items()}


def table_value(value: object) -> bool | int | float | str:
    """Return a prediction as a table stores it: a number, a text, or the text of anything else."""
    value = value.tolist() if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) else value
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def sample_rows(run_context: RunContext, split: str, rows: np.ndarray, count: int) -> tuple[int, ...]:
    """Return the rows whose predictions are kept, in file order: sampled once per split."""
    if count >= len(rows):
        return tuple(rows.tolist())
    sampled = rng(run_context.experiment.seed, "samples", split).choice(rows, size=count, replace=False)
    return tuple(sorted(sampled.tolist()))


def samples(run_context: RunContext, scores: Iterable[Scores], position: Row) -> list[Row]:
    """Return rows for `samples.parquet`: input, truth and prediction. `position`: columns that all rows share."""
    out = []
    for shard in scores:
        split = run_context.split(shard.plan.split)
        known = [name for name in TRUTH if name in split.examples.column_names]
        for sample in shard.samples:
            example = split.examples.select(known).slice(sample["row"], 1).to_pylist()[0]
            out.append({**position, "split": shard.plan.split, "model": shard.plan.model, **example, **sample})
    return out


def by_example(
    run_context: RunContext, scores: Iterable[Scores], position: Row, partition: Partition | None = None
) -> list[Row]:
    """Return rows for `scores.parquet`: the scores of each example, and its groups as `by_<column>`.

    Held-out examples of the partition have their client as a group. Paired comparisons of two runs and measures of
    fairness between clients are computed from this table.
    """
    out, known = [], dict[str, list[tuple[str, np.ndarray]]]()
    for shard in scores:
        plan = shard.plan
        if plan.split not in known:
            rows = np.arange(len(run_context.split(plan.split)))
            known[plan.split] = _groups_with_clients(run_context, plan.split, rows, partition)
        base = {**position, "split": plan.split, "model": plan.model, "client": plan.client}
        groups = {f"by_{kind}": names[plan.rows].tolist() for kind, names in known[plan.split]}
        scored = {name: values.astype(float).tolist() for name, values in shard.columns.items()}
        if shard.loss_weights is not None:
            scored[LOSS] = [None if math.isnan(value) else value for value in scored[LOSS]]
        columns = groups | scored
        for row, *cells in zip(plan.rows.tolist(), *columns.values(), strict=True):
            out.append({**base, "row": row, **dict(zip(columns, cells, strict=True))})
    return out


def summarise(
    run_context: RunContext, scores: Iterable[Scores], position: Row, partition: Partition | None = None
) -> list[Row]:
    """Return rows for `evaluations.parquet`: the mean of each metric by split and model, and by group and client.

    `two_step` is the mean of the group means, as paper 000 averages over data sets; `client:two_step` is the mean over
    the clients that have examples, and its count is their number. Held-out examples of the partition are grouped by
    their client too.
    """
    joined: dict[tuple[str, str, int | None], list[Scores]] = {}
    for shard in scores:
        joined.setdefault((shard.plan.split, shard.plan.model, shard.plan.client), []).append(shard)
    out: list[Row] = []
    for (split, model, client), shards_ in joined.items():
        rows = np.concatenate([shard.plan.rows for shard in shards_])
        columns = {name: np.concatenate([shard.columns[name] for shard in shards_]) for name in shards_[0].columns}
        groups = _groups_with_clients(run_context, split, rows, partition) if client is None else []
        base = {**position, "split": split, "model": model}
        own = {**base, "by": "all", "group": ""} if client is None else {**base, "by": "client", "group": str(client)}
        known = [shard.loss_weights for shard in shards_ if shard.loss_weights is not None]
        weights = np.concatenate(known) if known else None
        for metric, values in columns.items():
            column_weights = weights if metric == LOSS else None
            if mean := _mean(values, column_weights):
                out.append({**own, "metric": metric, **mean})
                grouped = [_group_rows(values, column_weights, kind, names) for kind, names in groups]
                out += [{**base, "metric": metric, **row} for found in grouped for row in found]
    return out + _client_means(out) + _two_step(out, run_context.experiment.evaluate.two_step)


def _two_step(rows: Sequence[Row], column: str | None) -> list[Row]:
    """Return the overall scores of the global model as means of the means of this column's values."""
    by = f"{column}:two_step"
    return [{**row, "by": TWO_STEP, "group": column} for row in rows if row["by"] == by and row["model"] == GLOBAL]


def _client_means(rows: Sequence[Row]) -> list[Row]:
    """Return the mean over clients of each metric of the clients' own models."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["model"] != GLOBAL and row["by"] == "client":
            found.setdefault((row["split"], row["model"], row["metric"]), []).append(row)
    return [
        {**own[0], "by": CLIENT_MEAN, "group": "", "value": _over([row["value"] for row in own]), "count": len(own)}
        for own in found.values()
    ]


def _over(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _group_rows(values: np.ndarray, weights: np.ndarray | None, kind: str, names: np.ndarray) -> list[Row]:
    """Return the mean of each group, and the mean of these means."""
    means: dict[str, Row] = {}
    for group, here in _rows_by_name(names):
        if mean := _mean(values[here], None if weights is None else weights[here]):
            means[group] = mean
    out: list[Row] = [{"by": kind, "group": group, **mean} for group, mean in means.items()]
    two_step = {"value": float(np.mean([mean["value"] for mean in means.values()])), "count": len(means)}
    return [*out, {"by": f"{kind}:two_step", "group": "", **two_step}]


def _rows_by_name(names: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return the distinct names in order, each with its positions, ascending."""
    distinct, codes = np.unique(names.astype(str), return_inverse=True)
    by = np.argsort(codes, kind="stable")
    return list(zip(distinct.tolist(), np.split(by, np.flatnonzero(np.diff(codes[by])) + 1), strict=True))


def _mean(values: np.ndarray, weights: np.ndarray | None) -> Row | None:
    """Return the mean of the values, weighted if there are weights; None if all weights are zero."""
    if weights is None:
        return {"value": float(np.mean(values, dtype=np.float64)), "count": len(values)}
    counted = weights > 0
    if not counted.any():
        return None
    value = float((values[counted] * weights[counted]).sum() / weights[counted].sum())
    return {"value": value, "count": int(counted.sum())}


def _groups_with_clients(
    run_context: RunContext, split: str, rows: np.ndarray, partition: Partition | None
) -> list[tuple[str, np.ndarray]]:
    """Return each group column of these rows of a split; held-out examples are grouped by their client too."""
    found = _groups(run_context, split, rows)
    if partition is None or split != HELD_OUT:
        return found
    owner = _owners(run_context, partition, split)
    assert owner is not None
    return [*found, ("client", np.array([str(client) for client in owner[rows]], dtype=object))]


def _groups(run_context: RunContext, split: str, rows: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return each group column of these rows of a split."""
    experiment = run_context.experiment
    named = [experiment.evaluate.two_step] if experiment.evaluate.two_step else []
    return _group_columns(run_context, split, rows, [*columns_of(experiment.partition), *GROUPS, *named])


def _group_columns(
    run_context: RunContext, split: str, rows: np.ndarray, names: Sequence[str]
) -> list[tuple[str, np.ndarray]]:
    """Return those of these columns that the split has, for these rows."""
    found = run_context.split(split)
    tables = [found.examples] + ([found.documents] if found.documents is not None else [])
    present = [name for name in dict.fromkeys(names) if any(name in table.column_names for table in tables)]
    coded = {name: column(found, name) for name in present}
    return [(name, np.asarray(names.to_pylist(), dtype=object)[codes][rows]) for name, (codes, names) in coded.items()]


def evaluated_splits(run_context: RunContext, partition: Partition) -> tuple[str, ...]:
    """Return the splits that are scored: the requested ones, and the held-out examples if the partition has them."""
    splits = run_context.experiment.evaluate.splits
    return splits if HELD_OUT in splits or not partition.holds_out else (*splits, HELD_OUT)


def evaluated_rows(run_context: RunContext, partition: Partition, split: str) -> np.ndarray:
    """Return the rows of a split that are scored, ascending: at most `evaluate.limit`.

    The rows of `heldout` are rows of `train`, and are left out of `train`.
    """
    rows = None
    if partition.holds_out and run_context.stored_split(split) == TRAIN:
        rows = np.sort(partition.held_out_order)
        rows = rows if split == HELD_OUT else np.setdiff1d(np.arange(len(run_context.split(TRAIN))), rows)
    return run_context.choose_rows(split, run_context.experiment.evaluate.limit, rows)


def rows_of_clients(
    run_context: RunContext, partition: Partition, split: str, rows: np.ndarray
) -> list[np.ndarray] | None:
    """Return those of the rows that are each client's own; None if the split has no examples of single clients.

    The own examples of `train` and `heldout` are those of the partition. Those of another split belong to a client by
    the rule of the partition, or by the client's groups. All rows of `evaluate.all_clients` are each client's.
    """
    if split in run_context.experiment.evaluate.all_clients:
        return [rows] * len(partition)
    owner = _owners(run_context, partition, split)
    if owner is not None:
        own = _rows_by_owner(owner[rows], rows, len(partition))
        return own if any(map(len, own)) else None
    groups = [{name for name, _ in partition.groups(k)} for k in range(len(partition))]
    kinds = columns_of(run_context.experiment.partition) or GROUPS
    for _, values in _group_columns(run_context, split, rows, kinds) if any(groups) else ():
        of_name = dict(_rows_by_name(values)) if len(values) else {}
        found = [[of_name[name] for name in sorted(names & of_name.keys())] for names in groups]
        own = [rows[np.sort(np.concatenate(here))] if here else rows[:0] for here in found]
        if any(map(len, own)):
            return own
    return None


def missing_scores(run_context: RunContext, partition: Partition) -> tuple[str, ...]:
    """Return a note if clients' models are requested that no evaluated example belongs to, and so have no score."""
    models = [model for model in run_context.experiment.evaluate.models if model != GLOBAL]
    splits = evaluated_splits(run_context, partition) if models else ()
    for split in splits:
        if rows_of_clients(run_context, partition, split, evaluated_rows(run_context, partition, split)) is not None:
            return ()
    if not models:
        return ()
    return (
        f"evaluate: no example of {' or '.join(splits)} belongs to a client, so {' and '.join(models)} models have no"
        " score; hold out examples of each client by partition.holdout, or list the split in evaluate.all_clients",
    )


def _owners(run_context: RunContext, partition: Partition, split: str) -> np.ndarray | None:
    """Return the client of each example of a split, int64 [N]; −1: none. None if the groups decide."""
    if run_context.stored_split(split) != TRAIN:
        return run_context.experiment.partition.owners(run_context.split(split))
    owner = np.full(len(run_context.split(TRAIN)), -1, np.int64)
    if split == HELD_OUT and partition.held_out_starts is not None:
        order, sizes = partition.held_out_order, np.diff(partition.held_out_starts)
    else:
        order, sizes = partition.order, partition.sizes
    owner[order] = np.repeat(np.arange(len(partition)), sizes)
    return owner


def _rows_by_owner(owner: np.ndarray, rows: np.ndarray, clients: int) -> list[np.ndarray]:
    """Return the rows of each client, in their order."""
    by = np.argsort(owner, kind="stable")
    return np.split(rows[by], np.searchsorted(owner[by], np.arange(clients + 1)))[1:-1]
