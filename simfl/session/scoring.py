"""What is scored at an evaluation, and what comes of it: shards for the workers, rows for the tables, headlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simfl import evaluation
from simfl.evaluation import EvaluationPlan, Scores
from simfl.protocol import Parts
from simfl.runs.record import Rows
from simfl.runs.snapshot import Snapshot
from simfl.runtime.inline import WorkerPool
from simfl.session.prepare import PreparedRun
from simfl.timing import Clock
from simfl.transport.upload import STATISTICS

FEW = 32  # batches to be scored up to which each goes out alone, so that every worker gets some


class PendingEvaluation:
    """An evaluation of the asked models on the asked splits under mode, sharded over the workers."""

    def __init__(
        self, settled: PreparedRun, snapshot: Snapshot, pool: WorkerPool, metric: str, by_example: bool
    ) -> None:
        """Begin it; `metric` is that of the headlines, with `by_example` the scores of each example are kept too."""
        self.settled, self.snapshot, self.metric, self.by_example = settled, snapshot, metric, by_example
        buffers: Parts = {STATISTICS: snapshot.buffers} if snapshot.buffers else {}
        self.scores = pool.evaluate(plans(settled, snapshot), {"weights": snapshot.server.weights} | buffers)

    def wait(self) -> tuple[Rows, list[dict[str, Any]], list[Clock]]:
        """Rows for the tables, the headlines, and the clocks of the workers' work."""
        scores = self.scores()
        found = rows(self.settled, self.snapshot, scores, self.by_example)
        return found, headlines(self.settled, self.snapshot, found, self.metric), [score.clock for score in scores]


def plans(settled: PreparedRun, snapshot: Snapshot) -> list[EvaluationPlan]:
    """The shards of every asked split and model."""
    asked = settled.experiment.evaluate
    pairs = [(split, model) for split in asked.splits for model in asked.models]
    found = [plan for pair in pairs for plan in _shards(settled, snapshot, *pair)]
    return [replace(plan, index=i) for i, plan in enumerate(found)]


def _shards(settled: PreparedRun, snapshot: Snapshot, split: str, model: str) -> list[EvaluationPlan]:
    asked, setting = settled.experiment.evaluate, settled.setting
    rows = setting.choose_rows(split, asked.limit)
    size = asked.batch_size * (4 if len(rows) > FEW * asked.batch_size else 1)
    if model == "global":
        kept = evaluation.sample_rows(setting, split, rows, asked.samples)
        return [replace(plan, samples=kept) for plan in evaluation.shards(split, model, rows, size)]
    per_client = evaluation.rows_of_clients(setting, settled.partition, split, rows)
    return [
        shard
        for client, own in enumerate(per_client)
        for shard in evaluation.shards(split, model, own, size, client, snapshot.client_state(client))
    ]


def rows(settled: PreparedRun, snapshot: Snapshot, scores: Sequence[Scores], by_example: bool) -> Rows:
    """Rows for the tables; with `by_example` the scores of each example too."""
    setting, facts = settled.setting, when(snapshot)
    found: Rows = {
        "evaluations": evaluation.summarise(setting, scores, facts),
        "samples": evaluation.samples(setting, scores, facts),
    }
    return found | ({"scores": evaluation.by_example(setting, scores, facts)} if by_example else {})


def headlines(settled: PreparedRun, snapshot: Snapshot, rows: Rows, metric: str) -> list[dict[str, Any]]:
    """The headline of every asked split and model."""
    asked = settled.experiment.evaluate
    return [
        {**when(snapshot), "split": split, "model": model, "metric": metric}
        | {"value": evaluation.headline(rows["evaluations"], metric, split, model)}
        for split in asked.splits
        for model in asked.models
    ]


def when(snapshot: Snapshot) -> dict[str, int]:
    """Where in its run an evaluation stands."""
    return {"phase": snapshot.phase, "round": snapshot.round, "step": snapshot.step}
