"""The driver of one run: what it is made of, where its work is done, what it leaves and shows.

No arithmetic of learning here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from simfl import config, evaluation, ledger
from simfl.cohort.stage import Stage
from simfl.cohort.visit import CohortResult
from simfl.cohort.wire import STATISTICS
from simfl.data.holdings import Partition, manifest_sha256
from simfl.errors import ConfigError, SimflError, nearest
from simfl.experiment import Experiment
from simfl.memory import Store
from simfl.pool import Pool, open_pool
from simfl.protocol import Parts
from simfl.record import Record, Rows, manifest
from simfl.sampling import auto_width, num_sampled
from simfl.setting import Setting
from simfl.signals import Signals
from simfl.snapshot import Snapshot, kept
from simfl.worker import Setup

CACHE = Path(os.environ.get("SIMFL_CACHE") or Path.home() / ".cache" / "simfl")  # data sets, built or read once


class Silent:
    """The display of a run that shows nothing."""

    def started(self, plan: dict[str, Any]) -> None:
        """The run begins or goes on."""

    def round_done(self, row: dict[str, Any]) -> None:
        """A row of `rounds.parquet`, with seconds."""

    def evaluated(self, row: dict[str, Any]) -> None:
        """A headline score."""

    def message(self, text: str) -> None:
        """Something to be said once."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The summary."""


@dataclass
class Driver:
    """One sitting of a run."""

    experiment: Experiment
    setting: Setting
    partition: Partition
    record: Record
    store: Store
    pool: Pool
    signals: Signals
    display: Any
    width: int
    snapshot: Snapshot
    startup: float
    stage: Stage | None = None
    durations: list[float] = field(default_factory=list)
    _round_began: float = 0.0

    @staticmethod
    @contextmanager
    def open(
        experiment: Experiment,
        out: Path,
        backend: str,
        workers: int | str,
        address: str | None,
        resume: bool,
        display: Any,
    ) -> Iterator[Driver]:
        """Everything before the first round; errors here are the user's, and come before Ray starts."""
        began, display, signals = time.monotonic(), display or Silent(), Signals()
        torch.set_num_threads(experiment.cohort.threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        setting = Setting(experiment, CACHE, torch.device(device if backend == "inline" else "cpu"))
        partition, text = partition_of(setting)
        check(experiment, setting, partition)
        identity = identity_of(experiment, setting, len(partition), device)
        facts = manifest(identity, setting.dataset.sha256, manifest_sha256(text))
        record = Record.open(Path(out), config.dump(experiment), facts, text, experiment.checkpoint, resume)
        found, warning = record.restore()
        if warning:
            display.message(warning)
        setup = Setup(experiment, CACHE, record.folder / "memory", identity["way"], len(partition), device)
        with ExitStack() as stack:
            stack.enter_context(signals.caught())
            pool = stack.enter_context(open_pool(backend, setup, setting, workers, address, display.message))
            stack.enter_context(signals.caught())  # once more: a Ray started here has taken SIGTERM for itself
            store = Store(record.folder / "memory")
            this = Driver(
                experiment,
                setting,
                partition,
                record,
                store,
                pool,
                signals,
                display,
                identity["width"],
                found or Snapshot(),
                time.monotonic() - began,
            )
            this._announce(resumed=found is not None)
            try:
                yield this
            except Exception:
                with suppress(SimflError, OSError):  # the disk may be what failed; the error that matters is on its way
                    this.finish("failed")
                raise

    def _announce(self, resumed: bool) -> None:
        phases, done = self.experiment.phases, self.snapshot.step
        plan = {
            "name": self.experiment.name,
            "folder": str(self.record.folder),
            "rounds": sum(p.rounds for p in phases),
            "clients": len(self.partition),
            "workers": self.pool.num_workers,
            "resumed_at": done if resumed else None,
            "metric": phases[0].objective.metric,
        }
        self.display.started(plan)
        self.record.log("started", **plan, startup_seconds=self.startup)

    def enter_phase(self) -> Stage:
        """Bring the workers into the snapshot's phase; score the model it starts from."""
        index = self.snapshot.phase
        self.pool.begin(index, self.snapshot.base)
        self.stage = self.setting.stage(index, len(self.partition))
        if self.snapshot.round == 0:
            with self.signals.held():
                self.snapshot = self.snapshot.begin(self.stage)
            if index == 0 and self.snapshot.step == 0:
                rows = self._evaluate(self.snapshot)
                self._settle(self.snapshot, {"evaluations": rows}, commit=True)
        self._round_began = time.monotonic()
        return self.stage

    def finish_round(self, after: Snapshot, rows: Rows) -> None:
        """Score the model if it is time, keep the rows, commit if one is due."""
        assert self.stage is not None
        every, last = self.experiment.evaluate.every, after.round == self.stage.phase.rounds
        if last or (every and after.round % every == 0):
            rows["evaluations"] = self._evaluate(after)
        seconds = time.monotonic() - self._round_began
        self.durations.append(seconds)
        self._round_began = time.monotonic()
        self._settle(after, rows, commit=self.record.due(after.step))
        row = {**rows["rounds"][0], "seconds": seconds}
        self.display.round_done(row)
        self.record.log("round", **row)

    def leave_phase(self) -> None:
        """The phase's model becomes the base of the next; clients keep what the next phase names."""
        phases, index = self.experiment.phases, self.snapshot.phase
        if index + 1 == len(phases):
            self._settle(replace(self.snapshot, phase=index + 1), {}, commit=True)
        else:
            memory = kept(self.snapshot.memory, phases[index + 1], self.store)
            self._settle(self.snapshot.end(memory), {}, commit=False)

    def _settle(self, after: Snapshot, rows: Rows, commit: bool) -> None:
        with self.signals.held():
            self.snapshot = after
            self.record.add(rows)
            if commit:
                self.record.commit(after, self.store)

    def _evaluate(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Score the asked models on the asked splits, sharded over the workers."""
        asked, stage = self.experiment.evaluate, self.stage
        assert stage is not None
        plans = [
            plan for split in asked.splits for model in asked.models for plan in self._shards(snapshot, split, model)
        ]
        plans = [replace(plan, index=i) for i, plan in enumerate(plans)]
        received: Parts = {"weights": snapshot.server.weights} | (
            {STATISTICS: snapshot.buffers} if snapshot.buffers else {}
        )
        facts = {"phase": snapshot.phase, "round": snapshot.round, "step": snapshot.step}
        rows = evaluation.summarise(self.setting, self.pool.evaluate(plans, received), facts)
        metric = stage.phase.objective.metric
        for split in asked.splits:
            for model in asked.models:
                value = evaluation.headline(rows, metric, split, model)
                row = {**facts, "split": split, "model": model, "metric": metric, "value": value}
                self.display.evaluated(row)
                self.record.log("evaluated", **row)
        return rows

    def _shards(self, snapshot: Snapshot, split: str, model: str) -> list[evaluation.EvaluationPlan]:
        asked = self.experiment.evaluate
        rows, size = self.setting.choose_rows(split, asked.limit), 4 * asked.batch_size
        if model == "generic":
            return evaluation.shards(split, model, rows, size)
        per_client = evaluation.rows_of_clients(self.setting, self.partition, split, rows)
        return [
            shard
            for client, own in enumerate(per_client)
            for shard in evaluation.shards(split, model, own, size, client, snapshot.remembered(client))
        ]

    def finish(self, status: str) -> dict[str, Any]:
        """Commit where the run stands and write the summary."""
        self.signals.close()
        self.record.commit(self.snapshot, self.store)
        scores = self.record.rows("evaluations")
        facts = {
            "name": self.experiment.name,
            "clients": len(self.partition),
            "initial": self._scores(scores, 0),
            "final": self._scores(scores, max((r["step"] for r in scores), default=0)),
            "baselines": baselines(self.setting, self.experiment),
            "seconds": {
                "total": self.record.elapsed,
                "startup": self.startup,
                "per_round_median": median(self.durations) if self.durations else None,
            },
            "folder": str(self.record.folder),
        }
        summary = self.record.finish(self.snapshot, status, facts)
        self.record.log("finished", status=status)
        self.display.finished(summary)
        return summary

    def _scores(self, rows: list[dict[str, Any]], step: int) -> dict[str, float]:
        return evaluation.headlines([r for r in rows if r["step"] == step], self.experiment.evaluate.splits[0])


def partition_of(setting: Setting) -> tuple[Partition, bytes]:
    """Who holds which training rows, and the manifest that says so."""
    experiment = setting.experiment
    partition = experiment.partition.split(setting.split("train"), experiment.seed)
    spec = config.to_mapping(experiment)["partition"]
    return partition, partition.manifest(spec, setting.dataset.sha256, experiment.seed)


def identity_of(experiment: Experiment, setting: Setting, clients: int, device: str) -> dict[str, Any]:
    """What numbers depend on besides the experiment (way, width, threads, kind of device), chosen once."""
    way, statistics = experiment.cohort.way, setting.roles(0).buffers
    if way == "batch" and statistics:
        raise ConfigError(
            f"cohort.way: batch, but padding would enter the running statistics ({statistics[0]}); allowed: loop"
        )
    if way == "auto":
        way = "batch" if device == "cuda" and not statistics else "loop"
    expected = max(float(num_sampled(p, clients) or (p.poisson or 0) * clients) for p in experiment.phases)
    width = experiment.cohort.width if isinstance(experiment.cohort.width, int) else auto_width(way, expected)
    return {"way": way, "width": width, "threads": experiment.cohort.threads, "device": device}


def check(experiment: Experiment, setting: Setting, partition: Partition) -> None:
    """What can only be known with the data and the model at hand."""
    for split in experiment.evaluate.splits:
        setting.split(split)
    for index, phase in enumerate(experiment.phases):
        setting.roles(index)
        sampled = num_sampled(phase, len(partition))
        if sampled is not None and sampled > len(partition):
            raise ConfigError(f"phases.{index}.clients_per_round: {sampled} asked, there are {len(partition)} clients")
        for model in experiment.evaluate.models:
            offers, name = phase.algorithm.offers, type(phase.algorithm).__name__
            if model not in offers:
                raise ConfigError(f"evaluate.models: {name} offers no model {model!r}; {nearest(model, offers)}")
    if experiment.privacy is not None and experiment.privacy.unit == "group" and not partition.num_groups.all():
        raise ConfigError(
            "privacy.unit: group, but the partition knows no groups; use partition.by: provider or official"
        )


def baselines(setting: Setting, experiment: Experiment) -> dict[str, Any]:
    """What the data set's blind baselines reach on the first evaluated split, by the headline metric."""
    metric = experiment.phases[-1].objective.metric
    known: Any = setting.dataset.card.get("baselines", {})
    found = known.get(experiment.evaluate.splits[0], known)
    return {name: scores[metric] for name, scores in found.items() if metric in scores}


def round_rows(
    stage: Stage, after: Snapshot, clients: list[int], downloads: list[ledger.Row], results: Sequence[CohortResult]
) -> Rows:
    """The rows of a round. No clock times here: equal runs leave equal tables."""
    trained = [row for result in results for row in result.clients]
    skipped = [client for result in results for client in result.skipped]
    assert len(trained) + len(skipped) == len(clients), "a visit was lost"
    rows = downloads + [row for result in results for row in result.ledger]
    examples = sum(row["examples"] for row in trained)
    totals = ledger.totals(rows)
    loss = sum(row["loss"] * row["examples"] for row in trained) / examples if examples else None
    facts: dict[str, Any] = {
        "phase": stage.index,
        "round": after.round,
        "step": after.step,
        "sampled": len(clients),
        "skipped": len(skipped),
        "examples": examples,
        "local_steps": sum(row["steps"] for row in trained),
        "loss": loss,
    }
    facts |= {f"{way}_bytes": int(count["B"]) for way, count in totals["payload"].items()}
    facts |= {f"charged_{way}_bytes": int(count["B"]) for way, count in totals["charged"].items()}
    return {"rounds": [facts], "ledger": list(rows), "clients": trained, "evaluations": []}
