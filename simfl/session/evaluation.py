"""Evaluation of a run's models: shards for the workers, rows for the tables, headline scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simfl.evaluation import scoring
from simfl.evaluation.headlines import GLOBAL, headline
from simfl.evaluation.scoring import EvaluationPlan, EvaluationTask, Scores
from simfl.protocol import BASE, Parts
from simfl.runs.snapshot import Snapshot
from simfl.runs.waiting_rows import Rows
from simfl.runtime.inline import WorkerPool
from simfl.session.prepare import PreparedRun
from simfl.timing import Clock
from simfl.transport.upload import BUFFERS

FEW_BATCHES = 32  # a split with at most so many batches is sent one batch at a time, so that all workers take part
MAX_BATCHES = 32  # of clients' models in one task, so that a round never waits long for it
MAX_STATE_BYTES = 256 << 20  # about; of the clients' states that travel with one task
TASKS_PER_WORKER = 4


class PendingEvaluation:
    """An evaluation that workers carry out while the driver continues."""

    def __init__(self, prepared: PreparedRun, state: Snapshot, pool: WorkerPool, metric: str, by_example: bool) -> None:
        """Start the evaluation of all requested models on all requested splits.

        Args:
            prepared: The run.
            state: The state to evaluate.
            pool: The workers.
            metric: The metric of the headline scores.
            by_example: Also keep the score of each example.
        """
        self.prepared, self.state, self.metric, self.by_example = prepared, state, metric, by_example
        self.notes: tuple[str, ...] = ()  # on the data that the workers encoded; known after `wait`
        buffers: Parts = {BUFFERS: state.buffers} if state.buffers else {}
        tasks = _tasks(prepared, shards(prepared, state), pool.num_workers)
        base: Parts = {BASE: state.server.base} if state.server.base else {}
        self._results = pool.evaluate(tasks, {"weights": state.server.weights} | base | buffers)

    def wait(self) -> tuple[Rows, list[dict[str, Any]], list[Clock]]:
        """Wait for the scores; return table rows, headline scores, and the clocks of the workers' tasks."""
        results = self._results()
        self.notes = tuple(note for result in results for note in result.notes)
        scores = [one for result in results for one in result.scores]
        rows = score_rows(self.prepared, self.state, scores, self.by_example)
        return rows, headlines(self.prepared, self.state, rows, self.metric), [result.clock for result in results]


def _tasks(prepared: PreparedRun, found: Sequence[EvaluationPlan], workers: int) -> list[EvaluationTask]:
    """Group shards into tasks, several for each worker; the states of a task's clients fit into memory."""
    batch_size = prepared.experiment.evaluate.batch_size
    batches = sum(-(-len(shard.rows) // batch_size) for shard in found if shard.client is not None)
    model_bytes = sum(p.nbytes for p in prepared.run_context.module.parameters())
    most = min(MAX_BATCHES, MAX_STATE_BYTES // max(1, model_bytes), batches // (TASKS_PER_WORKER * workers))
    return scoring.tasks_of(found, batch_size, max(1, most))


def shards(prepared: PreparedRun, state: Snapshot) -> list[EvaluationPlan]:
    """Divide the requested splits and models into shards for the workers."""
    pairs = _evaluated(prepared)
    found = [shard for pair in pairs for shard in _shards(prepared, state, *pair)]
    return [replace(shard, index=i) for i, shard in enumerate(found)]


def _shards(prepared: PreparedRun, state: Snapshot, split: str, model: str) -> list[EvaluationPlan]:
    evaluate, context = prepared.experiment.evaluate, prepared.run_context
    rows = scoring.evaluated_rows(context, prepared.partition, split)
    size = evaluate.batch_size * (4 if len(rows) > FEW_BATCHES * evaluate.batch_size else 1)
    if model == GLOBAL:
        samples = scoring.sample_rows(context, split, rows, evaluate.samples)
        return [replace(shard, samples=samples) for shard in scoring.shards(split, model, rows, size)]
    per_client = scoring.rows_of_clients(context, prepared.partition, split, rows)
    return [
        shard
        for client, own in enumerate(per_client or ())
        for shard in scoring.shards(split, model, own, size, client, state.client_state(client))
    ]


def score_rows(prepared: PreparedRun, state: Snapshot, scores: Sequence[Scores], by_example: bool) -> Rows:
    """Return the table rows of an evaluation; with `by_example` also the score of each example."""
    context, facts = prepared.run_context, _position(state)
    found: Rows = {
        "evaluations": scoring.summarise(context, scores, facts, prepared.partition),
        "samples": scoring.samples(context, scores, facts),
    }
    return found | ({"scores": scoring.by_example(context, scores, facts, prepared.partition)} if by_example else {})


def headlines(prepared: PreparedRun, state: Snapshot, rows: Rows, metric: str) -> list[dict[str, Any]]:
    """Return the headline score of every split and model that was scored; of clients' models the mean over clients."""
    found = []
    for split, model in _evaluated(prepared):
        score = headline(rows["evaluations"], metric, split, model)
        if score is not None:
            clients = {} if score.clients is None else {"clients": score.clients}
            position = {**_position(state), "split": split, "model": model, "metric": metric}
            found.append({**position, "value": score.value, **clients})
    return found


def _evaluated(prepared: PreparedRun) -> list[tuple[str, str]]:
    """Return the splits and models that are scored."""
    splits = scoring.evaluated_splits(prepared.run_context, prepared.partition)
    return [(split, model) for split in splits for model in prepared.experiment.evaluate.models]


def _position(state: Snapshot) -> dict[str, int]:
    return {"phase": state.phase, "round": state.round, "step": state.step}
