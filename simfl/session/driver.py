"""The driver of one run: what is done before, beside and after its rounds. No arithmetic of learning here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from simfl.autotune.choices import said
from simfl.autotune.tuner import Outgoing, Tuner, execution_mode_of
from simfl.data.partition.manifest import Partition
from simfl.errors import OutOfMemory, SimflError
from simfl.experiment import Experiment
from simfl.privacy.account import Account
from simfl.protocol import Parts
from simfl.run_context import RunContext
from simfl.runs.record import Rows
from simfl.runs.snapshot import Snapshot, kept
from simfl.session import summary
from simfl.session.prepare import remarks
from simfl.session.progress import RunProgress
from simfl.session.session import RunOptions, RunSession, open_session
from simfl.timing import Clock, clocked
from simfl.training.cohort import CohortResult, train_cohort
from simfl.training.context import PhaseContext
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs
from simfl.training.plan import CohortPlan, ExecutionMode, NextRound

LOST = ("interrupted", "failed")  # statuses of runs that end with a round trained and not scored: it does not count


@dataclass
class Driver:
    """A run under mode, phase by phase and round by round."""

    sitting: RunSession
    tally: RunProgress
    stage: PhaseContext | None = None  # of the phase that the workers are in

    @staticmethod
    @contextmanager
    def open(experiment: Experiment, asked: RunOptions) -> Iterator[Driver]:
        """A run that begins or goes on; an error that ends the block ends it as failed."""
        with ExitStack() as stack:
            this = Driver._at(*open_session(stack, experiment, asked))
            try:
                yield this
            except Exception:
                with suppress(SimflError, OSError):  # the disk may be what failed; the error that matters is on its way
                    this.finish("failed")
                raise

    @staticmethod
    def _at(sitting: RunSession, snapshot: Snapshot) -> Driver:
        """Apart from `open`, which would hold the weights that a run goes on from for as long as it lasts."""
        return Driver(sitting, RunProgress(sitting, snapshot))

    @property
    def experiment(self) -> Experiment:
        """What is run."""
        return self.sitting.settled.experiment

    @property
    def setting(self) -> RunContext:
        """What it is made of, as this process holds it."""
        return self.sitting.settled.setting

    @property
    def partition(self) -> Partition:
        """Who holds what."""
        return self.sitting.settled.partition

    @property
    def account(self) -> Account:
        """What is paid for privacy."""
        return self.sitting.account

    @property
    def snapshot(self) -> Snapshot:
        """The newest state, which the next round goes out from."""
        return self.tally.snapshot

    @property
    def execution_mode(self) -> ExecutionMode:
        """How visits are trained in the next round."""
        return execution_mode_of(self.experiment, self.sitting.record, self.snapshot.phase, self.snapshot.step)

    @property
    def workers(self) -> int:
        """Among how many a round is divided."""
        return self.sitting.pool.num_workers

    def narrow(self, error: OutOfMemory) -> None:
        """Halve the cohorts from the next round on; raises `error` where that cannot help."""
        clients_per_batch = self.execution_mode.clients_per_batch
        if self.execution_mode.mode == "sequential" or clients_per_batch == 1:
            raise OutOfMemory(f"{error}; give a smaller local.batch_size, or fewer workers a GPU or machine")
        self.sitting.record.narrow(self.snapshot.step, clients_per_batch // 2)
        self.sitting.audience.message(
            f"{error}; from round {self.snapshot.step + 1} on cohorts are {clients_per_batch // 2} clients wide"
        )

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], ahead: NextRound
    ) -> Iterator[CohortResult]:
        """The cohorts' results in the order of the plans, each as soon as it and those before it are there.

        `ahead` is asked for the round after meanwhile.
        """
        assert self.stage is not None
        if self.stage.pieces == 1 or len(plans) >= self.workers:
            results = self.sitting.pool.train(plans, received, costs, ahead)
        else:
            results = (self._lead(plan, received) for plan in plans)
        for result in results:
            self.sitting.stopwatch.count([result.clock], training=True)
            for text in result.said:
                self.sitting.audience.message(text)
            yield result

    def _lead(self, plan: CohortPlan, received: Parts) -> CohortResult:
        """A cohort trained here, but for the gradients, for which every worker takes pieces of each local batch."""
        assert self.stage is not None

        def taken(pieces: Sequence[MicroBatch], shared: SharedStepInputs) -> list[PartialGradient]:
            partial_gradients = self.sitting.pool.partial_gradients(pieces, shared)
            self.sitting.stopwatch.count((one.clock for one in partial_gradients), training=True)
            return partial_gradients

        stage = replace(self.stage, taker=taken)
        with clocked(Clock()) as clock:
            result = train_cohort(stage, self.sitting.store, plan, received, "sequential", self.experiment.on_error)
        clock.seconds.pop("train", None)  # most of it was waiting for workers, who have counted their own
        result.clock = clock
        return result

    def enter_phase(self, outgoing: Outgoing) -> PhaseContext:
        """Bring the workers into the snapshot's phase; score the model it starts from; choose how visits are trained.

        `outgoing` gives the next round as it goes out, for something real to be tried on.
        """
        index = self.snapshot.phase
        self.sitting.pool.begin(index, self.snapshot.base)
        self.stage = self.setting.stage(index, len(self.partition), self.account.noise_multiplier)
        if self.snapshot.round == 0:
            with self.sitting.signals.held():
                self.tally.move(self.snapshot.begin(self.stage))
            if index == 0 and self.snapshot.step == 0:
                self.tally.begin()
        self._choose(outgoing)
        for text in remarks(self.sitting.settled, self.stage.phase, self.execution_mode, self.workers):
            self.sitting.audience.message(text)
        self.sitting.stopwatch.lap()
        return self.stage

    def _choose(self, outgoing: Outgoing) -> None:
        """How the phase's visits are trained, where the experiment leaves it open."""
        assert self.stage is not None
        choice = Tuner(self.experiment, self.sitting.record, self.stage, self.snapshot, self.sitting.pool)
        facts = choice.made(outgoing, self.setting.cache, self.sitting.audience.message)
        if facts:
            self.sitting.audience.chosen(self.stage.index, facts, said(facts))

    def finish_round(self, after: Snapshot, rows: Rows) -> None:
        """The round has been trained: it is scored if it is time, and counts."""
        rows["rounds"][0].update(self.account.row(after.charged, after.clip))
        self.tally.add(after, rows)

    def leave_phase(self) -> None:
        """The phase's model becomes the base of the next; clients keep what the next phase names."""
        phases, index = self.experiment.phases, self.snapshot.phase
        with self.sitting.signals.held():
            if index + 1 == len(phases):
                self.tally.move(replace(self.snapshot, phase=index + 1), commit=True)
            else:
                memory = kept(self.snapshot.memory, phases[index + 1], self.sitting.store)
                self.tally.move(self.snapshot.end(memory))

    def finish(self, status: str) -> dict[str, Any]:
        """Commit where the run stands and write the summary."""
        if status not in LOST:
            self.tally.count()
        self.sitting.signals.close()
        stands, record = self.tally.stands, self.sitting.record
        record.commit(stands, self.sitting.store)
        facts = summary.facts(self.sitting, stands, self.tally.pace, ended_well=status != "failed")
        found = record.finish(stands, status, facts | self.account.state(stands.charged))
        self.sitting.audience.finished(found)
        return found
