"""The driver of one run: what it is made of, where its work is done, what it leaves and shows.

No arithmetic of learning here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simfl import cache, files
from simfl.cohort.pieces import Piece, Slope, Step
from simfl.cohort.plan import Ahead, CohortPlan, Manner
from simfl.cohort.stage import Stage
from simfl.cohort.visit import CohortResult, train_cohort
from simfl.data.holdings import Partition
from simfl.engine import summary
from simfl.engine.audience import Audience, Silent
from simfl.engine.choosing import Choice, Outgoing, manner_of
from simfl.engine.chosen import said
from simfl.engine.crew import crew_of
from simfl.engine.inline import Pool
from simfl.engine.opening import open_pool
from simfl.engine.preflight import Settled, account_of, remarks
from simfl.engine.signals import Signals
from simfl.engine.tally import Tally
from simfl.errors import OutOfMemory, SimflError
from simfl.experiment import Experiment
from simfl.following import tracking
from simfl.memory import Store
from simfl.privacy.account import Account
from simfl.protocol import Parts
from simfl.runs import tables
from simfl.runs.mirror import is_url, mirrored
from simfl.runs.record import Record, Rows
from simfl.runs.snapshot import Snapshot, kept
from simfl.setting import Setting
from simfl.timing import Clock, Stopwatch, Trace, clocked

LOST = ("interrupted", "failed")  # statuses of runs that end with a round trained and not scored: it does not count


@dataclass
class Driver:
    """One sitting of a run."""

    settled: Settled
    record: Record
    store: Store
    pool: Pool
    signals: Signals
    audience: Audience
    stopwatch: Stopwatch
    tally: Tally
    startup: float
    account: Account
    stage: Stage | None = None

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
        began, signals = time.monotonic(), Signals()
        with ExitStack() as stack:
            crew = stack.enter_context(crew_of(backend, workers, address))
            settled = Settled.of(experiment, backend, crew, shared)
            mirror = stack.enter_context(mirrored(str(out), cache.folder())) if is_url(out) else None
            record = settled.record(Path(out) if mirror is None else mirror.folder, resume, mirror)
            account = account_of(experiment, settled.partition, record.folder)
            stack.enter_context(files.locked(record.folder))
            found, warning = record.restore()
            audience, snapshot = Audience(display or Silent(), record), (found or Snapshot()).on(settled.setting.device)
            if warning:
                audience.message(warning)
            stack.enter_context(signals.caught())
            setup = settled.setup(record.folder, account, profile)
            pool = stack.enter_context(open_pool(backend, setup, settled.setting, crew, audience.message))
            tables.wake()  # while workers start
            stack.enter_context(signals.caught())  # once more: a Ray started here has taken SIGTERM for itself
            audience.trackers = stack.enter_context(
                tracking.opened(experiment, settled.setting, record.folder, snapshot.step, audience.message)
            )
            trace = stack.enter_context(closing(Trace(record.folder / "trace.json"))) if profile else None
            stopwatch, store = Stopwatch(pool.num_workers, trace), Store(setup.memory)
            stack.enter_context(clocked(stopwatch.own))
            startup = time.monotonic() - began
            tally = Tally(settled, record, store, pool, signals, audience, stopwatch, snapshot)
            this = Driver(settled, record, store, pool, signals, audience, stopwatch, tally, startup, account)
            account.announce()
            this._announce(resumed=found is not None)
            try:
                yield this
            except Exception:
                with suppress(SimflError, OSError):  # the disk may be what failed; the error that matters is on its way
                    this.finish("failed")
                raise

    @property
    def experiment(self) -> Experiment:
        """What is run."""
        return self.settled.experiment

    @property
    def setting(self) -> Setting:
        """What it is made of, as this process holds it."""
        return self.settled.setting

    @property
    def partition(self) -> Partition:
        """Who holds what."""
        return self.settled.partition

    def _announce(self, resumed: bool) -> None:
        phases, done = self.experiment.phases, self.snapshot.step
        plan = {
            "name": self.experiment.name,
            "folder": self.record.home,
            "rounds": sum(p.rounds for p in phases),
            "clients": len(self.partition),
            "workers": self.pool.num_workers,
            "resumed_at": done if resumed else None,
            "metric": phases[0].objective.metric,
        }
        self.audience.started(plan, self.startup)

    @property
    def snapshot(self) -> Snapshot:
        """The newest state, which the next round goes out from."""
        return self.tally.snapshot

    @property
    def manner(self) -> Manner:
        """How visits are trained in the next round."""
        return manner_of(self.experiment, self.record, self.snapshot.phase, self.snapshot.step)

    @property
    def workers(self) -> int:
        """Among how many a round is divided."""
        return self.pool.num_workers

    def narrow(self, error: OutOfMemory) -> None:
        """Halve the cohorts from the next round on; raises `error` where that cannot help."""
        width = self.manner.width
        if self.manner.way == "loop" or width == 1:
            raise OutOfMemory(f"{error}; give a smaller local.batch_size, or fewer workers a GPU or machine")
        self.record.narrow(self.snapshot.step, width // 2)
        self.audience.message(f"{error}; from round {self.snapshot.step + 1} on cohorts are {width // 2} clients wide")

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], ahead: Ahead
    ) -> Iterator[CohortResult]:
        """The cohorts' results in the order of the plans, each as soon as it and those before it are there.

        `ahead` is asked for the round after meanwhile.
        """
        assert self.stage is not None
        if self.stage.pieces == 1 or len(plans) >= self.pool.num_workers:
            results = self.pool.train(plans, received, costs, ahead)
        else:
            results = (self._lead(plan, received) for plan in plans)
        for result in results:
            self.stopwatch.count([result.clock], training=True)
            for text in result.said:
                self.audience.message(text)
            yield result

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

    def enter_phase(self, outgoing: Outgoing) -> Stage:
        """Bring the workers into the snapshot's phase; score the model it starts from; choose how visits are trained.

        `outgoing` gives the next round as it goes out, for something real to be tried on.
        """
        index = self.snapshot.phase
        self.pool.begin(index, self.snapshot.base)
        self.stage = self.setting.stage(index, len(self.partition), self.account.noise_multiplier)
        if self.snapshot.round == 0:
            with self.signals.held():
                self.tally.move(self.snapshot.begin(self.stage))
            if index == 0 and self.snapshot.step == 0:
                self.tally.begin()
        self._choose(outgoing)
        for text in remarks(self.settled, self.stage.phase, self.manner, self.workers):
            self.audience.message(text)
        self.stopwatch.lap()
        return self.stage

    def _choose(self, outgoing: Outgoing) -> None:
        """How the phase's visits are trained, where the experiment leaves it open."""
        assert self.stage is not None
        choice = Choice(self.experiment, self.record, self.stage, self.snapshot, self.pool)
        facts = choice.made(outgoing, self.setting.cache, self.audience.message)
        if facts:
            self.audience.chosen(self.stage.index, facts, said(facts))

    def finish_round(self, after: Snapshot, rows: Rows) -> None:
        """The round has been trained: it is scored if it is time, and counts."""
        rows["rounds"][0].update(self.account.row(after.charged, after.clip))
        self.tally.add(after, rows)

    def leave_phase(self) -> None:
        """The phase's model becomes the base of the next; clients keep what the next phase names."""
        phases, index = self.experiment.phases, self.snapshot.phase
        with self.signals.held():
            if index + 1 == len(phases):
                self.tally.move(replace(self.snapshot, phase=index + 1), commit=True)
            else:
                memory = kept(self.snapshot.memory, phases[index + 1], self.store)
                self.tally.move(self.snapshot.end(memory))

    def finish(self, status: str) -> dict[str, Any]:
        """Commit where the run stands and write the summary."""
        if status not in LOST:
            self.tally.count()
        self.signals.close()
        stands = self.tally.stands
        self.record.commit(stands, self.store)
        seconds = {"total": self.record.elapsed, "startup": self.startup, "per_round_median": self.tally.pace}
        facts = summary.facts(self.settled, self.record, stands, seconds, ended_well=status != "failed")
        found = self.record.finish(stands, status, facts | self.account.state(stands.charged))
        self.audience.finished(found)
        return found
