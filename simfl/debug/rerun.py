"""Re-execution of a finished run's rounds in this process, bit-identical to the original.

A run keeps its newest two checkpoints. The newest one at or before the requested round is loaded, and the rounds in
between are run again; each is compared with the rows that the run recorded. Everything is written to a scratch folder;
the run folder is only read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from simfl import cache
from simfl.aggregation.round import RoundAggregator
from simfl.autotune.tuner import execution_mode_of
from simfl.client_state import EMPTY, FileClientStore
from simfl.data.partition.manifest import Partition
from simfl.errors import RunError
from simfl.protocol import Parts
from simfl.rounds import RoundPlan, apply_round, plan_round
from simfl.run_context import RunContext
from simfl.runs import tables
from simfl.runs.record import Record
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot, kept
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.session.prepare import account_of
from simfl.training.cohort import CohortResult
from simfl.training.context import PhaseContext
from simfl.training.observer import Observer
from simfl.training.plan import CohortPlan

Row = dict[str, Any]
MESSAGE_SECONDS = 5.0  # between two progress messages


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
        """What the clients receive."""
        return self.plan.received

    @property
    def clients(self) -> list[int]:
        """The sampled clients in canonical order."""
        return [visit.client for cohort in self.cohorts for visit in cohort.visits]

    def cohort_of(self, client: int) -> CohortPlan:
        """Return the cohort that trains a client.

        Raises:
            RunError: The client was not sampled.
        """
        for cohort in self.cohorts:
            if any(visit.client == client for visit in cohort.visits):
                return cohort
        sampled = ", ".join(str(k) for k in sorted(self.clients)) or "no client"
        where = f"round {self.before.round + 1} of phase {self.before.phase}"
        raise RunError(f"--client: {client} was not sampled in {where}; sampled: {sampled}")


class Rerun:
    """A run that is run again in a scratch folder, up to where somebody wants to look closely."""

    def __init__(
        self, run: Run, scratch: Path, say: Callable[[str], None] = lambda text: None, commits: bool = True
    ) -> None:
        """`say` is told what takes time or makes the rerun differ; without `commits` it starts from the beginning.

        ConfigError, RunError or DataError where data, partition or components are no longer those of the run.
        """
        self.run, self.say, self.commits, self.experiment = run, say, commits, run.experiment
        if self.experiment.privacy is not None and self.experiment.privacy.secure:
            raise RunError(f"{run.folder}: its chance is the system's (privacy.secure), so no round can be made again")
        identity = run.manifest["identity"]
        self.record = Record(scratch, self.experiment.checkpoint, run.manifest)
        torch.set_num_threads(identity["threads"])
        self.setting = RunContext(self.experiment, cache.folder(), self._device(identity["device"]))
        self.partition = Partition.read(run.partition_manifest, self.setting.dataset.sha256)
        memory = scratch / "memory"
        self.account = account_of(self.experiment, self.partition)
        self.setup = WorkerConfig(
            self.experiment,
            cache.folder(),
            memory,
            len(self.partition),
            self.setting.device.type,
            noise_multiplier=self.account.noise_multiplier,
        )
        self.store, self.worker = FileClientStore(memory), Worker(self.setup, self.setting, home=self.setting.device)
        self._take(Snapshot())
        self.tables: dict[str, Any] = {}
        self.said = -MESSAGE_SECONDS  # when a round was last spoken of
        self.unlike: list[str] = []  # rows that came out otherwise than the run recorded them

    def _device(self, then: str) -> torch.device:
        now = "cuda" if torch.cuda.is_available() else "cpu"
        if now != then:
            self.say(f"the run was made on {then}, this is {now}: numbers will agree to rounding, not to the bit")
        return torch.device(now)

    def go_to(self, phase: int, round: int) -> PlannedRound:
        """The wanted round, about to begin. As in the tables, phases count from 0 and the rounds of a phase from 1."""
        target = self._step_before(phase, round)
        if self.snapshot.step > target:
            raise RunError(f"the rerun has come to step {self.snapshot.step} and cannot go back to step {target}")
        self._start_at(target)
        if target > self.snapshot.step:
            self.say(f"running {target - self.snapshot.step} rounds again to reach the one asked for")
        while (self.snapshot.phase, self.snapshot.round) != (phase, round - 1):
            here = self._enter()
            if self.snapshot.round < here.phase.rounds:
                self.rerun_round()
            else:
                memory = kept(self.snapshot.memory, self.experiment.phases[here.index + 1], self.store)
                self._take(self.snapshot.end(memory))
        return self._plan(self._enter())

    def _step_before(self, phase: int, round: int) -> int:
        phases = self.experiment.phases
        if not 0 <= phase < len(phases):
            raise RunError(f"--phase: {phase} given; the run has phases 0 to {len(phases) - 1}")
        if not 1 <= round <= phases[phase].rounds:
            raise RunError(f"--round: {round} given; phase {phase} has rounds 1 to {phases[phase].rounds}")
        return sum(p.rounds for p in phases[:phase]) + round - 1

    def _start_at(self, target: int) -> None:
        """Take the newest whole commit at or before a number of finished rounds, if it is ahead of where we stand."""
        steps = self.run.steps if self.commits else []
        for step in reversed([s for s in steps if self.snapshot.step < s <= target]):
            try:
                snapshot = self.run.snapshot(step)
            except RunError as error:
                self.say(f"{error}; an older one is taken")
                continue
            self._borrow(set(snapshot.memory.values()) - {EMPTY})
            self._take(snapshot)
            self.say(f"starting from the commit after {step} rounds")
            return
        if self.snapshot.step == 0 < target:
            self.say("starting from the beginning" + (", as no commit is that old" if self.commits else ""))

    def _borrow(self, digests: set[str]) -> None:
        """Make the run's memory files readable from the scratch folder, even if the run deletes them meanwhile."""
        for digest in digests:
            there = (self.run.folder / "memory" / f"{digest}.safetensors").resolve()
            here = self.store.folder / there.name
            try:
                os.link(there, here)
            except FileExistsError:
                continue
            except OSError:  # another disk
                here.symlink_to(there)

    def _take(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot.on(self.setting.device)
        self.stage: PhaseContext | None = None  # not entered yet

    def _enter(self) -> PhaseContext:
        if self.stage is None:
            self.worker.begin(self.snapshot.phase, self.snapshot.base)
            self.stage = self.worker.stages[self.snapshot.phase]
            if self.snapshot.round == 0:
                self.snapshot = self.snapshot.begin(self.stage)
        return self.stage

    def rerun_round(self) -> None:
        """Run the next round of the phase and compare it with the rows that the run recorded."""
        context, before = self._enter(), self.snapshot
        planned = self._plan(context)
        results = RoundAggregator(context)
        for cohort in planned.cohorts:
            results.take(self.worker.train(cohort, planned.received))
        self.snapshot, rows = apply_round(context, planned.plan, results)
        self.store.collect(set(self.snapshot.memory.values()))
        for name in ("clients", "ledger"):
            recorded = self.recorded(name, before.phase, before.round + 1)
            self.unlike += differences(name, recorded, rows[name])
        if time.monotonic() - self.said > MESSAGE_SECONDS:
            self.said = time.monotonic()
            self.say(
                f"ran round {before.round + 1} of phase {before.phase} again: {len(rows['clients'])} client updates"
            )

    def recorded(self, name: str, phase: int, round: int) -> list[Row]:
        """What the run wrote about a round into `clients` or `ledger`; empty if the round never ended."""
        if name not in self.tables:
            self.tables[name] = self.run.table(name)
        rows: list[Row] = tables.where(self.tables[name], phase=phase, round=round).to_pylist()
        return rows

    def _plan(self, context: PhaseContext) -> PlannedRound:
        """Plan the next round; its privacy budget is charged already, so the rerun charges nothing."""
        mode = execution_mode_of(self.experiment, self.record, self.snapshot.phase, self.snapshot.step)
        state = self.snapshot
        charged = self.account.charge(state.charged, context.index, state.round)
        plan = plan_round(context, self.partition, replace(state, charged=charged))
        return PlannedRound(plan, plan.cohorts(context, mode))

    def train(self, plan: CohortPlan, received: Parts, observer: Observer) -> CohortResult:
        """The visits of a cohort, listened to. A client's exception rises, whatever the run was told to do with it."""
        strict = replace(self.setup, experiment=replace(self.experiment, on_error="stop"))
        worker = Worker(strict, self.setting, home=self.setting.device)
        worker.begin(plan.phase, self.snapshot.base)
        worker.stages[plan.phase] = replace(worker.stages[plan.phase], observer=observer)
        return worker.train(plan, received)

    def alone(self, planned: PlannedRound, client: int) -> CohortPlan:
        """The smallest cohort that gives this client's bits: itself, or all that are trained as one program with it."""
        plan = planned.cohort_of(client)
        if plan.execution_mode.mode == "vectorized":
            return plan
        return replace(plan, visits=tuple(visit for visit in plan.visits if visit.client == client))


KEYS = {"clients": ("phase", "round", "client"), "ledger": ("phase", "round", "client", "direction", "part")}


def differences(name: str, recorded: Sequence[Row], found: Sequence[Row]) -> list[str]:
    """One line for each row of a table that is not as the run recorded it; none if the run recorded no row at all."""
    if not recorded:
        return []
    there, here = ({tuple(row[k] for k in KEYS[name]): row for row in rows} for rows in (recorded, found))
    lines = []
    for key in sorted(there.keys() | here.keys()):
        place = f"{name} {', '.join(f'{k} {v}' for k, v in zip(KEYS[name], key, strict=True))}"
        a, b = there.get(key), here.get(key)
        if a is None or b is None:
            lines.append(f"{place}: {'not recorded' if a is None else 'not in the rerun'}")
            continue
        lines += [f"{place}: {k} {a.get(k)!r} recorded, {b[k]!r} now" for k in b if not same(a.get(k), b[k])]
    return lines


def same(a: object, b: object) -> bool:
    """Equal, where NaN equals itself."""
    return a == b or (a != a and b != b)
