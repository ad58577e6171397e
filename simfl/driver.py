"""The driver of one run: what it is made of, where its work is done, what it leaves and shows.

No arithmetic of learning here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from simfl import config, evaluation, files, ledger, plan_check, tracking
from simfl.audience import Audience, Silent
from simfl.cohort.batch import pays_on_cpu
from simfl.cohort.pieces import Piece, Slope, Step
from simfl.cohort.plan import CohortPlan
from simfl.cohort.stage import LAST_LOCAL, Stage
from simfl.cohort.visit import CohortResult, train_cohort
from simfl.cohort.wire import STATISTICS
from simfl.crew import Crew, crew_of
from simfl.data.holdings import Partition, manifest_sha256
from simfl.errors import ConfigError, OutOfMemory, SimflError, nearest
from simfl.experiment import Experiment, Phase
from simfl.memory import Store
from simfl.mirror import Mirror, is_url, mirrored
from simfl.pool import Pool, open_pool
from simfl.privacy.account import Account
from simfl.privacy.budget import Budget
from simfl.protocol import Parts
from simfl.record import Record, Rows, manifest
from simfl.sampling import auto_width, num_sampled
from simfl.setting import Setting
from simfl.signals import Signals
from simfl.snapshot import Snapshot, kept
from simfl.timing import Clock, Stopwatch, Trace, clocked, timed
from simfl.worker import Setup

MANY = 32  # clients a round from which cohorts of 16 leave no worker idle
FEW = 32  # batches to be scored up to which each goes out alone, so that every worker gets some
CACHE = Path(os.environ.get("SIMFL_CACHE") or Path.home() / ".cache" / "simfl")  # data sets, built or read once


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
    audience: Audience
    stopwatch: Stopwatch
    snapshot: Snapshot
    startup: float
    account: Account
    stage: Stage | None = None
    durations: list[float] = field(default_factory=list)
    _round_began: float = 0.0

    @staticmethod
    @contextmanager
    def open(
        experiment: Experiment,
        out: Path | str,
        backend: str,
        workers: int | str,
        address: str | None,
        resume: bool,
        display: Any,
        profile: bool = False,
        shared: dict[str, Any] | None = None,
    ) -> Iterator[Driver]:
        """Everything before the first round. Errors here are the user's; Ray starts meanwhile.

        `out` may be a URL, where a copy of the run's folder is kept.
        """
        with (
            crew_of(backend, workers, address) as crew,
            mirrored(str(out), CACHE) if is_url(out) else nullcontext() as mirror,
            Driver._opened(crew, experiment, Path(out), mirror, backend, resume, display, profile, shared) as driver,
        ):
            yield driver

    @staticmethod
    @contextmanager
    def _opened(
        crew: Crew | None,
        experiment: Experiment,
        out: Path,
        mirror: Mirror | None,
        backend: str,
        resume: bool,
        display: Any,
        profile: bool,
        shared: dict[str, Any] | None,
    ) -> Iterator[Driver]:
        began, signals = time.monotonic(), Signals()
        tracking.check(experiment)
        torch.set_num_threads(experiment.cohort.threads)
        device = crew.device if crew is not None else "cuda" if torch.cuda.is_available() else "cpu"
        setting = Setting(experiment, CACHE, torch.device(device if backend == "inline" else "cpu"), shared)
        partition, text = partition_of(setting)
        if crew is not None:
            crew.hire(experiment, CACHE, setting.dataset.sha256)
        check(experiment, setting, partition)
        identity = identity_of(experiment, setting, len(partition), device)
        facts = manifest(identity, setting.dataset.sha256, manifest_sha256(text))
        folder, dumped = out if mirror is None else mirror.folder, config.dump(experiment)
        record = Record.open(folder, dumped, facts, text, experiment.checkpoint, resume, mirror)
        stacks, way = record.folder / "stacks", identity["way"]
        account = account_of(experiment, partition, record.folder)
        setup = Setup(
            experiment,
            CACHE,
            record.folder / "memory",
            way,
            len(partition),
            device,
            stacks,
            profile,
            account.noise_multiplier,
        )
        with ExitStack() as stack:
            stack.enter_context(files.locked(record.folder))
            found, warning = record.restore()
            audience, snapshot = Audience(display or Silent(), record), (found or Snapshot()).on(setting.device)
            if warning:
                audience.message(warning)
            stack.enter_context(signals.caught())
            pool = stack.enter_context(open_pool(backend, setup, setting, crew, audience.message))
            stack.enter_context(signals.caught())  # once more: a Ray started here has taken SIGTERM for itself
            audience.trackers = stack.enter_context(
                tracking.opened(experiment, setting, record.folder, snapshot.step, audience.message)
            )
            trace = stack.enter_context(closing(Trace(record.folder / "trace.json"))) if profile else None
            stopwatch, store = Stopwatch(pool.num_workers, trace), Store(record.folder / "memory")
            stack.enter_context(clocked(stopwatch.own))
            startup = time.monotonic() - began
            this = Driver(
                experiment,
                setting,
                partition,
                record,
                store,
                pool,
                signals,
                audience,
                stopwatch,
                snapshot,
                startup,
                account,
            )
            account.announce()
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
        self.audience.started(plan, self.startup)

    @property
    def width(self) -> int:
        """Visits per cohort in the next round."""
        return self.record.width(self.snapshot.step)

    @property
    def workers(self) -> int:
        """Among how many a round is divided."""
        return self.pool.num_workers

    def narrow(self, error: OutOfMemory) -> None:
        """Halve the cohorts from the next round on; raises `error` where that cannot help."""
        width, batched = self.width, self.record.manifest["identity"]["way"] == "batch"
        if not batched or width == 1:
            raise OutOfMemory(f"{error}; give a smaller local.batch_size, or fewer workers a GPU or machine")
        self.record.narrow(self.snapshot.step, width // 2)
        self.audience.message(f"{error}; from round {self.snapshot.step + 1} on cohorts are {width // 2} clients wide")

    def train(self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float]) -> list[CohortResult]:
        """The cohorts' results in the order of the plans."""
        assert self.stage is not None
        alone = self.stage.pieces == 1 or len(plans) >= self.pool.num_workers
        results = self.pool.train(plans, received, costs) if alone else [self._lead(plan, received) for plan in plans]
        self.stopwatch.count((result.clock for result in results), training=True)
        for result in results:
            for text in result.said:
                self.audience.message(text)
        return results

    def _lead(self, plan: CohortPlan, received: Parts) -> CohortResult:
        """A cohort trained here, but for the gradients, for which every worker takes pieces of each local batch."""
        assert self.stage is not None

        def taken(pieces: Sequence[Piece], shared: Step) -> list[Slope]:
            slopes = self.pool.slopes(pieces, shared)
            self.stopwatch.count((one.clock for one in slopes), training=True)
            return slopes

        stage = replace(self.stage, taker=taken)
        with clocked(Clock()) as clock:
            result = train_cohort(stage, self.store, plan, received, "loop", self.experiment.on_error)
        clock.seconds.pop("train", None)  # most of it was waiting for workers, who have counted their own
        result.clock = clock
        return result

    def enter_phase(self) -> Stage:
        """Bring the workers into the snapshot's phase; score the model it starts from."""
        index = self.snapshot.phase
        self.pool.begin(index, self.snapshot.base)
        self.stage = self.setting.stage(index, len(self.partition), self.account.noise_multiplier)
        if self.snapshot.round == 0:
            with self.signals.held():
                self.snapshot = self.snapshot.begin(self.stage)
            if index == 0 and self.snapshot.step == 0:
                rows = self._evaluate(self.snapshot)
                with self.signals.held():
                    self._settle(self.snapshot, rows, commit=True)
                    self.audience.initial(rows)
        self._mention_idle_workers(self.stage.phase)
        self.stopwatch.lap()
        self._round_began = time.monotonic()
        return self.stage

    def finish_round(self, after: Snapshot, rows: Rows) -> None:
        """Score the model if it is time, keep the rows, commit if one is due."""
        assert self.stage is not None
        every, last = self.experiment.evaluate.every, after.round == self.stage.phase.rounds
        rows["rounds"][0].update(self.account.row(after.charged, after.clip))
        if last or (every and after.round % every == 0):
            rows = {**rows, **self._evaluate(after, by_example=last and after.phase + 1 == len(self.experiment.phases))}
        with self.signals.held():
            self._settle(after, rows, commit=self.record.due(after.step))
            now = time.monotonic()
            seconds, self._round_began = now - self._round_began, now
            self.durations.append(seconds)
            self.audience.round_done(rows, seconds, *self.stopwatch.lap())

    def _mention_idle_workers(self, phase: Phase) -> None:
        """A round of fewer cohorts than workers leaves some of them waiting."""
        sampled = num_sampled(phase, len(self.partition))
        cohorts = -(-sampled // self.width) if sampled else self.pool.num_workers
        if cohorts < self.pool.num_workers and self.experiment.cohort.pieces == 1:
            self.audience.message(
                f"a round has {sampled} clients in {cohorts} cohort{'s' if cohorts > 1 else ''}, fewer than the"
                f" {self.pool.num_workers} workers: the others wait while it trains, and all of them evaluate"
            )

    def leave_phase(self) -> None:
        """The phase's model becomes the base of the next; clients keep what the next phase names."""
        phases, index = self.experiment.phases, self.snapshot.phase
        with self.signals.held():
            if index + 1 == len(phases):
                self._settle(replace(self.snapshot, phase=index + 1), {}, commit=True)
            else:
                memory = kept(self.snapshot.memory, phases[index + 1], self.store)
                self._settle(self.snapshot.end(memory), {}, commit=False)

    def _settle(self, after: Snapshot, rows: Rows, commit: bool) -> None:
        self.snapshot = after
        self.record.add(rows)
        if commit:
            self.record.commit(after, self.store)

    @timed("evaluate")
    def _evaluate(self, snapshot: Snapshot, by_example: bool = False) -> Rows:
        """Score the asked models on the asked splits, sharded over the workers; at the end each example is kept."""
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
        scores = self.pool.evaluate(plans, received)
        self.stopwatch.count((score.clock for score in scores), training=False)
        rows = evaluation.summarise(self.setting, scores, facts)
        metric, headlines = stage.phase.objective.metric, []
        for split in asked.splits:
            for model in asked.models:
                value = evaluation.headline(rows, metric, split, model)
                headlines.append({**facts, "split": split, "model": model, "metric": metric, "value": value})
        self.audience.evaluated(headlines)
        found = {"evaluations": rows, "samples": evaluation.samples(self.setting, scores, facts)}
        return found | ({"scores": evaluation.by_example(self.setting, scores, facts)} if by_example else {})

    def _shards(self, snapshot: Snapshot, split: str, model: str) -> list[evaluation.EvaluationPlan]:
        asked = self.experiment.evaluate
        rows = self.setting.choose_rows(split, asked.limit)
        size = asked.batch_size * (4 if len(rows) > FEW * asked.batch_size else 1)
        if model == "generic":
            kept = evaluation.sample_rows(self.setting, split, rows, asked.samples)
            return [replace(plan, samples=kept) for plan in evaluation.shards(split, model, rows, size)]
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
        facts = {
            "name": self.experiment.name,
            "clients": len(self.partition),
            "initial": self._scores(0),
            "final": self._scores(self.record.last_step("evaluations")),
            "baselines": baselines(self.setting, self.experiment),
            "seconds": {
                "total": self.record.elapsed,
                "startup": self.startup,
                "per_round_median": median(self.durations) if self.durations else None,
            },
            "plan": self._compared_with_plan() if status != "failed" else None,
            "folder": str(self.record.folder),
            **self.account.state(self.snapshot.charged),
        }
        summary = self.record.finish(self.snapshot, status, facts)
        self.audience.finished(summary)
        return summary

    def _compared_with_plan(self) -> str:
        forked = self.record.manifest.get("forked", {}).get("step", 0)
        made = plan_check.tables_of(self.record.folder, self.snapshot.step, forked)
        return plan_check.compare(self.experiment, self.setting.dataset, len(self.partition), made)

    def _scores(self, step: int) -> dict[str, float]:
        return evaluation.headlines(self.record.rows_at("evaluations", step), self.experiment.evaluate.splits[0])


def partition_of(setting: Setting) -> tuple[Partition, bytes]:
    """Who holds which training rows, and the manifest that says so."""
    experiment = setting.experiment
    partition = experiment.partition.split(setting.split("train"), experiment.seed)
    spec = config.to_mapping(experiment)["partition"]
    return partition, partition.manifest(spec, setting.dataset.sha256, experiment.seed)


def account_of(experiment: Experiment, partition: Partition, folder: Path | None = None) -> Account:
    """The run's privacy account; one that charges nothing without `privacy`."""
    return Account(None if experiment.privacy is None else Budget.of(experiment, partition), folder)


def identity_of(experiment: Experiment, setting: Setting, clients: int, device: str) -> dict[str, Any]:
    """What numbers depend on besides the experiment (way, width, threads, kind of device), chosen once."""
    way, roles = experiment.cohort.way, setting.roles(0)
    expected = max(float(num_sampled(p, clients) or (p.poisson or 0) * clients) for p in experiment.phases)
    if way == "batch" and roles.buffers:
        raise ConfigError(
            f"cohort.way: batch, but padding would enter the running statistics ({roles.buffers[0]}); allowed: loop"
        )
    pieces = experiment.cohort.pieces
    if pieces > 1 and roles.buffers:
        raise ConfigError(f"cohort.pieces: {pieces}, but running statistics ({roles.buffers[0]}) are of whole batches")
    if way == "auto":
        pays = device == "cuda" or (expected >= MANY and pays_on_cpu(setting.module, roles.trained))
        by_example = experiment.privacy is not None and experiment.privacy.unit == "record"
        way = "batch" if pays and not roles.buffers and not by_example else "loop"
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
            offers, name = [*phase.algorithm.offers, LAST_LOCAL], type(phase.algorithm).__name__
            if model not in offers:
                raise ConfigError(f"evaluate.models: {name} offers no model {model!r}; {nearest(model, offers)}")
        if experiment.privacy is not None and setting.roles(index).buffers:
            raise ConfigError(f"privacy: running statistics ({setting.roles(index).buffers[0]}, …) would leave bare")
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
    return {"rounds": [facts], "ledger": list(rows), "clients": trained, "evaluations": [], "samples": []}
