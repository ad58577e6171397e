"""A run's rounds once more, in this process: the state before any round, as bit-equal as the round itself.

A run keeps its newest two commits. The newest at or before the wanted round is taken, and the rounds in between are run
again, each held to the rows that the run recorded. All is written to a scratch folder; the run's own is only read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from simfl import cache, simulation
from simfl.autotune import tuner as choosing
from simfl.client_state import EMPTY, FileClientStore
from simfl.data.partition.manifest import Partition
from simfl.errors import RunError
from simfl.privacy.account import Account
from simfl.protocol import Parts
from simfl.run_context import RunContext
from simfl.runs import tables
from simfl.runs.record import Record
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot, kept
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.session import prepare as preflight
from simfl.training.cohort import CohortResult
from simfl.training.context import PhaseContext
from simfl.training.observer import Observer
from simfl.training.plan import CohortPlan, ExecutionMode, NextRound

Row = dict[str, Any]
SPARSE = 5.0  # seconds between two words about rounds


@dataclass(frozen=True)
class Outgoing:
    """A round as it goes out to its clients, and the state it goes out from."""

    before: Snapshot
    plans: Sequence[CohortPlan]
    received: Parts

    @property
    def clients(self) -> list[int]:
        """The sampled clients in canonical order."""
        return [visit.client for plan in self.plans for visit in plan.visits]

    def plan_of(self, client: int) -> CohortPlan:
        """The cohort that a client is trained in; RunError if it was not sampled."""
        for plan in self.plans:
            if any(visit.client == client for visit in plan.visits):
                return plan
        sampled = ", ".join(str(k) for k in sorted(self.clients)) or "nobody"
        where = f"round {self.before.round + 1} of phase {self.before.phase}"
        raise RunError(f"--client: {client} is not in {where}, which sampled {sampled}")


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
        self.account = preflight.account_of(self.experiment, self.partition)
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
        self.said = -SPARSE  # when a round was last spoken of
        self.unlike: list[str] = []  # rows that came out otherwise than the run recorded them

    def _device(self, then: str) -> torch.device:
        now = "cuda" if torch.cuda.is_available() else "cpu"
        if now != then:
            self.say(f"the run was made on {then}, this is {now}: numbers will agree to rounding, not to the bit")
        return torch.device(now)

    def go_to(self, phase: int, round: int) -> Outgoing:
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
                self.one_round()
            else:
                memory = kept(self.snapshot.memory, self.experiment.phases[here.index + 1], self.store)
                self._take(self.snapshot.end(memory))
        return self._outgoing()

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

    def one_round(self) -> None:
        """The next round of the phase, held to what the run recorded of it."""
        before = self.snapshot
        self.snapshot, rows = simulation.one_round(self._stand_in(self.worker), self._enter(), before)
        self.store.collect(set(self.snapshot.memory.values()))
        for name in ("clients", "ledger"):
            recorded = self.recorded(name, before.phase, before.round + 1)
            self.unlike += differences(name, recorded, rows[name])
        if time.monotonic() - self.said > SPARSE:
            self.said = time.monotonic()
            self.say(f"round {before.round + 1} of phase {before.phase} run again: {len(rows['clients'])} visits")

    def recorded(self, name: str, phase: int, round: int) -> list[Row]:
        """What the run wrote about a round into `clients` or `ledger`; empty if the round never ended."""
        if name not in self.tables:
            self.tables[name] = self.run.table(name)
        rows: list[Row] = tables.where(self.tables[name], phase=phase, round=round).to_pylist()
        return rows

    def _outgoing(self) -> Outgoing:
        stage = self._enter()
        try:
            simulation.one_round(self._stand_in(None), stage, self.snapshot)
        except _Opened as opened:
            return Outgoing(self.snapshot, *opened.args)
        raise AssertionError("a round that asks nobody to train")

    def _stand_in(self, worker: Worker | None) -> Any:
        """What stands in for the driver; without a worker, the round stops where its clients' work begins."""
        execution_mode = choosing.execution_mode_of(
            self.experiment, self.record, self.snapshot.phase, self.snapshot.step
        )
        return _StandIn(self.partition, execution_mode, self.account, worker)

    def train(self, plan: CohortPlan, received: Parts, observer: Observer) -> CohortResult:
        """The visits of a cohort, listened to. A client's exception rises, whatever the run was told to do with it."""
        strict = replace(self.setup, experiment=replace(self.experiment, on_error="stop"))
        worker = Worker(strict, self.setting, home=self.setting.device)
        worker.begin(plan.phase, self.snapshot.base)
        worker.stages[plan.phase] = replace(worker.stages[plan.phase], observer=observer)
        return worker.train(plan, received)

    def alone(self, outgoing: Outgoing, client: int) -> CohortPlan:
        """The smallest cohort that gives this client's bits: itself, or all that are trained as one program with it."""
        plan = outgoing.plan_of(client)
        if plan.execution_mode.mode == "vectorized":
            return plan
        return replace(plan, visits=tuple(visit for visit in plan.visits if visit.client == client))


class _Opened(Exception):
    """A round has come to where its clients' work begins; it carries the plans and what they receive."""


@dataclass(frozen=True)
class _StandIn:
    """A driver, as far as a round needs one, whose work is done in this process."""

    partition: Partition
    execution_mode: ExecutionMode
    account: Account  # on no disk: what is made again is paid for already
    worker: Worker | None = None
    workers: None = None  # a round is cut into the smallest cohorts

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], ahead: NextRound
    ) -> list[CohortResult]:
        if self.worker is None:
            raise _Opened(plans, received)
        return [self.worker.train(plan, received) for plan in plans]


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
