"""Run an experiment: a list of phases, each a number of communication rounds. READ THIS FIRST.

A round plans (`simfl.rounds.plan_round`), trains the sampled clients on the workers, and applies what came back
(`apply_round`). A client update is a pure function of what the client received, its own state and a seed. A round
counts whole or not at all: it is recorded and checkpointed after it was scored (`simfl.session.progress`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from simfl.aggregation.round import CohortResult, RoundAggregator
from simfl.autotune.tuner import Tuner, describe_choice, execution_mode_of
from simfl.errors import OutOfMemory, RunError, SimflError
from simfl.experiment import Experiment
from simfl.rounds import (
    RoundDraft,
    RoundPlan,
    apply_round,
    cut_into_cohorts,
    draft_round,
    keep_version,
    plan_round,
)
from simfl.runs.snapshot import Snapshot, carry_over_states
from simfl.runs.tables import TableRow
from simfl.runs.waiting_rows import Rows
from simfl.session.options import RunOptions
from simfl.session.prepare import remarks
from simfl.session.progress import RunProgress
from simfl.session.session import RunSession, open_session
from simfl.timing import Clock, clocked
from simfl.training.cohort import train_cohort
from simfl.training.context import PhaseContext
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs
from simfl.training.executor import Executor
from simfl.training.plan import CohortPlan, ExecutionMode


def run(experiment: Experiment, options: RunOptions) -> dict[str, Any]:
    """Run an experiment from its beginning, or resume it from its newest checkpoint.

    Args:
        experiment: The experiment.
        options: The run folder, the backend, and how the run is watched.

    Returns:
        The content of `summary.json`.

    Raises:
        ConfigError: A setting is wrong; raised before the run folder is made.
        ClientError: A client update failed.
        RunError: The run cannot be resumed, or its workers are lost.
    """
    with open_simulation(experiment, options) as simulation:
        return simulation.run()


@contextmanager
def open_simulation(experiment: Experiment, options: RunOptions) -> Iterator[Simulation]:
    """Open a run for the block. An error that leaves the block ends the run with status `failed`."""
    with ExitStack() as stack:
        simulation = _open(stack, experiment, options)
        try:
            yield simulation
        except Exception:
            with suppress(SimflError, OSError):  # the disk may have failed; the error under way matters more
                simulation.finish("failed")
            raise


@contextmanager
def _setup_uncollected() -> Iterator[None]:
    """Keep Python's garbage collector from scanning, in each round, what exists before the first one.

    The driver makes few objects in a round that outlive it (rows are arrays), so that hardly any collection starts in a
    round, however many clients it has. A process that has frozen objects of its own keeps them, as they were.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect(1)  # what is frozen is never freed during the run: leave out the garbage of the preparation
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _open(stack: ExitStack, experiment: Experiment, options: RunOptions) -> Simulation:
    """Open the session; a function of its own, so that no frame holds the first state for the whole run."""
    session, state = open_session(stack, experiment, options)
    return Simulation(session, RunProgress(session, state), options)


@dataclass
class Simulation:
    """A run in progress."""

    session: RunSession
    progress: RunProgress
    options: RunOptions
    context: PhaseContext | None = None  # the phase that the workers are in
    drafts: dict[int, RoundDraft] = field(default_factory=dict)  # rounds drafted while the one before them trains
    cut_phases: set[int] = field(default_factory=set)  # phases of which a message has named uploads beyond the clip
    failure: str = ""  # the last message about a skipped client

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        return self.session.prepared.experiment

    @property
    def state(self) -> Snapshot:
        """The newest state, from which the next round starts."""
        return self.progress.state

    @property
    def execution_mode(self) -> ExecutionMode:
        """The execution mode of the next round."""
        return execution_mode_of(self.experiment, self.session.record, self.state.phase, self.state.step)

    def run(self) -> dict[str, Any]:
        """Run all remaining rounds and return the summary."""
        with _setup_uncollected():
            return self._run()

    def _run(self) -> dict[str, Any]:
        try:
            while self.state.phase < len(self.experiment.phases):
                context = self.enter_phase()
                while self.state.round < context.phase.rounds:
                    if status := self.options.until():
                        return self.finish(status)
                    self.train_round(context)
                self._check_trained(context)
                self.leave_phase()
            return self.finish("completed")
        except KeyboardInterrupt:  # Interrupted, or what Ray raises when a signal arrives while it waits
            self.session.pool.raise_if_lost()  # then the monitor of Ray has sent the signal
            return self.finish("interrupted")

    def enter_phase(self) -> PhaseContext:
        """Bring the workers into the next phase, score its initial model, and choose the execution mode."""
        session, index = self.session, self.state.phase
        session.pool.begin(index, self.state.base_weights)
        context = session.prepared.run_context.phase_context(
            index, len(session.prepared.partition), session.account.noise_multiplier, session.account.randomness
        )
        self.context, self.drafts = context, {}
        if self.state.round == 0:
            with session.signals.held():
                self.progress.move(self.state.enter_phase(context))
            if index == 0 and self.state.step == 0:
                self.progress.score_initial()
        self._choose_execution_mode(context)
        for text in remarks(session.prepared, context.phase, self.execution_mode, session.pool.num_workers):
            session.callbacks.message(text)
        session.stopwatch.lap()
        return context

    def train_round(self, context: PhaseContext) -> None:
        """Train the next round; halve the number of clients per batch until it fits into memory."""
        while True:
            try:
                after, rows = self._train_round(context)
                break
            except OutOfMemory as error:
                self._halve_clients_per_batch(error)
        self.progress.add(after, rows)  # outside of the try: scoring the round before may raise OutOfMemory too

    def _train_round(self, context: PhaseContext) -> tuple[Snapshot, Rows]:
        session, state = self.session, self.state
        charged = session.account.charge(state.charged, context.index, state.round)
        plan = keep_version(self._plan_round(context, replace(state, charged=charged)), session.client_store)
        results = RoundAggregator(context.phase.algorithm.reduce, context.num_clients)
        for result in self._train(context, plan):
            results.take(result)
        after, rows = apply_round(context, plan, results)
        session.record.log_clients(context.index, after.round, results.results)
        for text in self._secure_messages(plan, rows["rounds"][0]):
            session.callbacks.message(text)
        rows["rounds"][0].update(session.account.row(after.charged, after.clip))
        return after, rows

    def _secure_messages(self, plan: RoundPlan, row: TableRow) -> Iterator[str]:
        """Yield what secure aggregation has left out of a round; numbers beyond the clip once per phase."""
        where = f"phase {row['phase']}, round {row['round']}"
        if plan.is_lost and plan.secure is not None:
            yield f"{where}: {plan.secure.refusal}; the round changes nothing"
        if row.get("secure:cut") and row["phase"] not in self.cut_phases:
            self.cut_phases.add(int(row["phase"]))
            yield (
                f"{where}: {row['secure:cut']:,} uploaded numbers are beyond secure_aggregation.clip and were cut;"
                " the column secure:cut counts them in every round"
            )

    def _plan_round(self, context: PhaseContext, state: Snapshot) -> RoundPlan:
        return plan_round(context, self.session.prepared.partition, state, self.drafts.pop(state.round, None))

    def _train(self, context: PhaseContext, plan: RoundPlan) -> Iterator[CohortResult]:
        """Yield the results of the round's cohorts in canonical order, as soon as each is available."""
        session, workers = self.session, self.session.pool.num_workers
        cohorts = plan.cohorts(context, self.execution_mode, workers)

        def next_round() -> Sequence[CohortPlan]:
            return self._draft_ahead(context, plan.before.round + 1)

        if context.data_parallel == 1 or len(cohorts) >= workers:
            costs = [cohort.cost(context.phase.local) for cohort in cohorts]
            results = session.pool.train(cohorts, plan.received, costs, next_round)
        else:
            results = (self._train_data_parallel(context, cohort, plan) for cohort in cohorts)
        for result in results:
            session.stopwatch.count([result.clock], training=True)
            for text in result.messages:
                session.callbacks.message(text)
            self.failure = result.messages[-1] if result.skipped and result.messages else self.failure
            session.callbacks.note(result.notes)
            yield result

    def _draft_ahead(self, context: PhaseContext, number: int) -> list[CohortPlan]:
        """Draft a round while the one before it is trained; return no cohorts after the last round of the phase.

        In virtual time, the clients of a round depend on when the one before it ends.
        """
        if number == context.phase.rounds or context.times is not None:
            return []
        draft = self.drafts[number] = draft_round(context, self.session.prepared.partition, number)
        workers = self.session.pool.num_workers
        return cut_into_cohorts(draft.client_plans, context, number, self.execution_mode, workers)

    def _train_data_parallel(self, context: PhaseContext, cohort: CohortPlan, plan: RoundPlan) -> CohortResult:
        """Train a cohort in this process, with the gradients of its micro-batches computed on all workers."""
        session = self.session

        def take_gradients(batches: Sequence[MicroBatch], shared: SharedStepInputs) -> list[PartialGradient]:
            gradients = session.pool.partial_gradients(batches, shared)
            session.stopwatch.count((one.clock for one in gradients), training=True)
            return gradients

        executor = Executor(context, gradient_taker=take_gradients)
        with clocked(Clock()) as clock:
            result = train_cohort(executor, session.client_store, cohort, plan.received, self.experiment.on_error)
        clock.seconds.pop("train", None)  # mostly waiting for the workers, which have counted their own time
        result.clock, result.notes = clock, session.prepared.run_context.new_notes()
        return result

    def _halve_clients_per_batch(self, error: OutOfMemory) -> None:
        """Halve the clients per batch from the next round on; raise `error` where that cannot help."""
        mode, record, state = self.execution_mode, self.session.record, self.state
        if mode.mode == "sequential" or mode.clients_per_batch == 1:
            raise OutOfMemory(f"{error}; reduce local.batch_size, or use fewer workers per GPU or machine")
        half = mode.clients_per_batch // 2
        record.set_clients_per_batch(state.step, half)
        self.session.callbacks.message(f"{error}; from round {state.step + 1} on, {half} clients train per batch")

    def _choose_execution_mode(self, context: PhaseContext) -> None:
        """Choose the execution mode of the phase where the experiment leaves it open."""
        session = self.session
        tuner = Tuner(self.experiment, session.record, context, self.state, session.pool)
        found = tuner.choose(
            lambda: self._plan_round(context, self.state), session.prepared.run_context.cache, session.callbacks.message
        )
        if found:
            session.callbacks.chosen(context.index, found, describe_choice(found))

    def _check_trained(self, context: PhaseContext) -> None:
        """Raise RunError if every client update of the phase failed and was skipped."""
        rows = [row for row in self.session.record.rows("rounds") if row["phase"] == context.index]
        skipped = sum(row["skipped"] for row in rows)
        if skipped and skipped == sum(row["sampled"] for row in rows):
            raise RunError(
                f"phase {context.index}: all {skipped} client updates failed and were skipped, so nothing was trained;"
                f" log.jsonl has each failure{self.failure and '; the last one: '}{self.failure}"
            )

    def leave_phase(self) -> None:
        """Make the model of the phase the base of the next one; clients keep the state that it carries over."""
        phases, index = self.experiment.phases, self.state.phase
        with self.session.signals.held():
            if index + 1 == len(phases):
                self.progress.move(replace(self.state, phase=index + 1), checkpoint=True)
            else:
                client_states = carry_over_states(
                    self.state.client_states, phases[index + 1], self.session.client_store
                )
                self.progress.move(self.state.leave_phase(client_states))

    def finish(self, status: str) -> dict[str, Any]:
        """Checkpoint the run, write its summary and return it."""
        return self.progress.finish(status)
