"""Repetition of a run's rounds in this process, bit-identical to the run.

A run keeps its newest two checkpoints. The newest one at or before the requested round is loaded, and the rounds after
it are repeated; each is compared with the rows that the run recorded. Everything is written to a scratch folder; the
run folder is only read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from simfl import files
from simfl.aggregation.round import CohortResult, RoundAggregator
from simfl.autotune.tuner import execution_mode_of
from simfl.client_state import FileClientStore
from simfl.data.partition.manifest import Partition
from simfl.errors import RunError
from simfl.plans.client_times import set_times
from simfl.protocol import Parts
from simfl.rounds import RoundPlan, apply_round, keep_version, plan_round
from simfl.run_context import RunContext
from simfl.runs import tables
from simfl.runs.folder import CLIENT_STATES
from simfl.runs.record import Record
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot, carry_over_states
from simfl.runs.tables import TableRow
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.session.noise_key import randomness_at
from simfl.session.prepare import account_of
from simfl.training.context import PhaseContext
from simfl.training.executor import Observer
from simfl.training.plan import ClientPlan, CohortPlan

MESSAGE_SECONDS = 5.0  # between two progress messages
KEYS = {"clients": ("phase", "round", "client"), "ledger": ("phase", "round", "client", "direction", "part")}


@dataclass(frozen=True)
class PlannedRound:
    """A round that is about to be trained, cut into its smallest cohorts."""

    plan: RoundPlan
    cohorts: Sequence[CohortPlan]

    @property
    def before(self) -> Snapshot:
        """The state that the round starts from."""
        return self.plan.before

    @property
    def received(self) -> Parts:
        """Return what the clients decode from the download."""
        return self.plan.received

    @property
    def client_plans(self) -> list[ClientPlan]:
        """The plans of the sampled clients in canonical order."""
        return [plan for cohort in self.cohorts for plan in cohort.clients]

    @property
    def clients(self) -> list[int]:
        """The sampled clients in canonical order."""
        return [plan.client for plan in self.client_plans]

    def cohort_of(self, client: int) -> CohortPlan:
        """Return the cohort that trains a client.

        Raises:
            RunError: The client was not sampled.
        """
        for cohort in self.cohorts:
            if any(plan.client == client for plan in cohort.clients):
                return cohort
        sampled = ", ".join(str(k) for k in sorted(self.clients)) or "no client"
        where = f"round {self.before.round + 1} of phase {self.before.phase}"
        raise RunError(f"--client: {client} was not sampled in {where}; sampled: {sampled}")


class Rerun:
    """A run that is repeated in a scratch folder up to a requested round."""

    def __init__(
        self,
        run: Run,
        scratch: Path,
        on_message: Callable[[str], None] = lambda text: None,
        use_checkpoints: bool = True,
    ) -> None:
        """Prepare the repetition of a run.

        Args:
            run: The run.
            scratch: An empty folder.
            on_message: Receives messages about progress, and about whatever makes the repetition differ.
            use_checkpoints: Whether to start from a checkpoint rather than from the first round.

        Raises:
            ConfigError, RunError, DataError: Data, partition or components are no longer those of the run.
        """
        self.run, self.on_message, self.use_checkpoints = run, on_message, use_checkpoints
        self.experiment = run.experiment
        if self.experiment.privacy is not None and self.experiment.privacy.secure:
            raise RunError(f"{run.folder}: privacy.secure draws from the system's source, so no round can be repeated")
        self.record = Record(scratch, self.experiment.checkpoint, run.manifest)
        torch.set_num_threads(run.manifest.identity.threads)
        self.run_context = RunContext(self.experiment, files.cache_folder(), self._device(run.manifest.identity.device))
        self.partition = Partition.read(run.partition_manifest, self.run_context.dataset.sha256)
        set_times(self.run_context, self.partition)
        self.account = account_of(self.experiment, self.partition, self.run_context.num_values)
        self.config = WorkerConfig(
            self.experiment,
            files.cache_folder(),
            scratch / CLIENT_STATES,
            len(self.partition),
            self.run_context.device.type,
            noise_multiplier=self.account.noise_multiplier,
            randomness=randomness_at(self.experiment, run.manifest, run.folder, 0),
        )
        self.store = FileClientStore(scratch / CLIENT_STATES)
        self.worker = Worker(self.config, self.run_context, home=self.run_context.device)
        self._set_state(Snapshot())
        self.differences: list[str] = []  # lines about what differs from the record
        self._tables: dict[str, tables.Table] = {}
        self._last_message = -MESSAGE_SECONDS

    def _device(self, recorded: str) -> torch.device:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if device != recorded:
            self.on_message(f"the run used {recorded}, this is {device}: results agree up to rounding only")
        return torch.device(device)

    def go_to(self, phase: int, round: int) -> PlannedRound:
        """Repeat rounds until the requested one is next, and return its plan.

        Args:
            phase: The phase, from 0.
            round: The round of the phase, from 1, as in tables and messages.

        Raises:
            RunError: The run has no such round, or it lies before rounds that were repeated already.
        """
        target = self._step_before(phase, round)
        if self.snapshot.step > target:
            raise RunError(f"the repetition is at step {self.snapshot.step} and cannot go back to step {target}")
        self._load_checkpoint(target)
        if target > self.snapshot.step:
            self.on_message(f"repeating {target - self.snapshot.step} rounds before the requested one")
        while (self.snapshot.phase, self.snapshot.round) != (phase, round - 1):
            context = self._enter_phase()
            if self.snapshot.round < context.phase.rounds:
                self.rerun_round()
            else:
                following = self.experiment.phases[context.index + 1]
                self._set_state(
                    self.snapshot.leave_phase(carry_over_states(self.snapshot.client_states, following, self.store))
                )
        return self._plan(self._enter_phase())

    def _step_before(self, phase: int, round: int) -> int:
        phases = self.experiment.phases
        if not 0 <= phase < len(phases):
            raise RunError(f"--phase: {phase} given; the run has phases 0 to {len(phases) - 1}")
        if not 1 <= round <= phases[phase].rounds:
            raise RunError(f"--round: {round} given; phase {phase} has rounds 1 to {phases[phase].rounds}")
        return sum(p.rounds for p in phases[:phase]) + round - 1

    def _load_checkpoint(self, target: int) -> None:
        """Load the newest undamaged checkpoint at or before a step, if it is newer than the current state."""
        steps = self.run.steps if self.use_checkpoints else []
        for step in reversed([s for s in steps if self.snapshot.step < s <= target]):
            try:
                snapshot = self.run.snapshot(step)
            except RunError as error:
                self.on_message(f"{error}; using an older checkpoint")
                continue
            digests = snapshot.stored_digests
            self.store.adopt(self.run.folder / CLIENT_STATES, digests, by_reference=True)
            self._set_state(snapshot)
            self.on_message(f"starting from the checkpoint after {step} rounds")
            return
        if self.snapshot.step == 0 < target:
            reason = "; there is no checkpoint before the requested round" if self.use_checkpoints else ""
            self.on_message(f"starting from the first round{reason}")

    def _set_state(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot.to(self.run_context.device)
        self._context: PhaseContext | None = None  # of the phase, once it is entered

    def _enter_phase(self) -> PhaseContext:
        randomness = randomness_at(self.experiment, self.run.manifest, self.run.folder, self.snapshot.step)
        if randomness != self.config.randomness:
            self.config = replace(self.config, randomness=randomness)
            self.worker = Worker(self.config, self.run_context, home=self.run_context.device)
            self._context = None
        if self._context is None:
            self.worker.begin(self.snapshot.phase, self.snapshot.base_weights)
            self._context = self.worker.executors[self.snapshot.phase].context
            if self.snapshot.round == 0:
                self.snapshot = self.snapshot.enter_phase(self._context)
        return self._context

    def rerun_round(self) -> None:
        """Repeat the next round of the phase and compare it with the rows that the run recorded."""
        context, before = self._enter_phase(), self.snapshot
        planned = self._plan(context)
        results = RoundAggregator(context.phase.algorithm.reduce, context.num_clients)
        for cohort in planned.cohorts:
            results.take(self.worker.train(cohort, planned.received))
        self.snapshot, rows = apply_round(context, planned.plan, results)
        self.store.collect(self.snapshot.stored_digests)
        for name in KEYS:
            recorded = self.recorded(name, before.phase, before.round + 1)
            self.differences += row_differences(name, recorded, rows[name])
        if time.monotonic() - self._last_message > MESSAGE_SECONDS:
            self._last_message = time.monotonic()
            self.on_message(
                f"repeated round {before.round + 1} of phase {before.phase}: {len(rows['clients'])} client updates"
            )

    def recorded(self, name: str, phase: int, round: int) -> list[TableRow]:
        """Return the rows of `clients` or `ledger` that the run recorded of a round; none if the round never ended."""
        if name not in self._tables:
            self._tables[name] = self.run.table(name)
        return tables.where(self._tables[name], phase=phase, round=round).to_pylist()

    def _plan(self, context: PhaseContext) -> PlannedRound:
        """Plan the next round; the run has charged its privacy budget already, so nothing is charged again."""
        mode = execution_mode_of(self.experiment, self.record, self.snapshot.phase, self.snapshot.step)
        state = self.snapshot
        charged = self.account.charge(state.charged, context.index, state.round)
        plan = plan_round(context, self.partition, replace(state, charged=charged))
        plan = keep_version(plan, self.store)
        return PlannedRound(plan, plan.cohorts(context, mode))

    def train(self, cohort: CohortPlan, received: Parts, observer: Observer) -> CohortResult:
        """Train a cohort under an observer. An exception of a client propagates, also with `on_error: skip`."""
        strict = replace(self.config, experiment=replace(self.experiment, on_error="stop"))
        worker = Worker(strict, self.run_context, home=self.run_context.device)
        worker.begin(cohort.phase, self.snapshot.base_weights)
        worker.executors[cohort.phase] = replace(worker.executors[cohort.phase], observer=observer)
        return worker.train(cohort, received)

    def smallest_cohort(self, planned: PlannedRound, client: int) -> CohortPlan:
        """Return the smallest cohort that reproduces a client: itself, or all clients that are vectorized with it."""
        cohort = planned.cohort_of(client)
        if cohort.execution_mode.mode == "vectorized":
            return cohort
        return replace(cohort, clients=tuple(plan for plan in cohort.clients if plan.client == client))


def row_differences(name: str, recorded: Sequence[TableRow], repeated: Sequence[TableRow]) -> list[str]:
    """Return a line for each value of a table that differs from the record; none if the run recorded no row."""
    if not recorded:
        return []
    there, here = ({tuple(row[k] for k in KEYS[name]): row for row in rows} for rows in (recorded, repeated))
    lines = []
    for key in sorted(there.keys() | here.keys()):
        where = f"{name} {', '.join(f'{k} {v}' for k, v in zip(KEYS[name], key, strict=True))}"
        a, b = there.get(key), here.get(key)
        if a is None or b is None:
            lines.append(f"{where}: {'not recorded' if a is None else 'not repeated'}")
            continue
        lines += [f"{where}: {k} {a.get(k)!r} recorded, {b[k]!r} now" for k in b if not equal_values(a.get(k), b[k])]
    return lines


def equal_values(a: object, b: object) -> bool:
    """Return whether two values are equal, where NaN equals NaN."""
    return a == b or (a != a and b != b)
