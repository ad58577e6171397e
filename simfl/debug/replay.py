"""One visit of a run once more, alone and in this process, held to what the run recorded of it.

A visit is a pure function of what the client received, what it remembers and a seed, so it can be looked at by itself,
as often as wanted, under a debugger, also when it ended the run.
"""

from __future__ import annotations

import pdb
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor

from simfl.client_state import EMPTY
from simfl.debug.rerun import Rerun, Row, differences
from simfl.errors import ClientError, RunError
from simfl.protocol import Parts, Weights
from simfl.runs.results import Run
from simfl.training.cohort import CohortResult
from simfl.training.context import TrainingUnit
from simfl.training.observer import Observer

SHOWN = 40  # steps shown of a long visit, half of them at its end
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Step:
    """One optimizer step: the task's mean loss over its batch, and the norm of the gradient before clipping."""

    unit: int
    step: int
    micro: int
    loss: float
    gradient: float


@dataclass(frozen=True)
class Sent:
    """A tensor of the upload: its norm as it left the client, and as the server got it."""

    part: str
    tensor: str
    floats: int
    norm: float
    arrived: float


@dataclass(frozen=True)
class Replay:
    """What a visit did this time, and whether that is what the run recorded."""

    phase: int
    round: int
    client: int
    beside: tuple[int, ...]  # clients trained as one program with it
    row: Row  # as in `clients.parquet`
    ledger: list[Row]  # its uploads
    steps: list[Step]
    sent: list[Sent]
    memory: str  # digest of what it remembers now
    held: dict[str, str] = field(default_factory=dict)  # what was compared with the record -> how that went
    unlike: list[str] = field(default_factory=list)  # everything that is otherwise than recorded

    @property
    def equal(self) -> bool:
        """Nothing is otherwise than the run recorded it, as far as it did."""
        return not self.unlike


class Listener(Observer):
    """Keeps one client's steps and uploads as numbers."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.steps: list[Step] = []
        self.uploads: list[Sent] = []

    def stepped(
        self,
        items: list[TrainingUnit],
        step: int,
        micro: int,
        sums: Tensor,
        counts: Tensor,
        gradients: Weights,
        weights: Weights,
    ) -> None:
        for k, item in enumerate(items):
            if item.client == self.client and step < item.steps:
                loss = float((sums[k] / counts[k].clamp_min(1e-12)).detach())
                squares = torch.stack([g[k].double().square().sum() for g in gradients.values()])
                self.steps.append(Step(item.unit, step, micro, loss, float(squares.sum().sqrt())))

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        if client == self.client:
            self.uploads = [
                Sent(part, name, t.numel(), float(t.double().norm()), float(arrived[part][name].double().norm()))
                for part, tensors in upload.items()
                for name, t in tensors.items()
            ]


def replay(
    run: Run,
    round: int,
    client: int,
    phase: int | None = None,
    debug: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Replay:
    """Run one visit again; `round` counts from 1, as in the tables and in errors. `debug`: under pdb.

    ClientError, with the client's own traceback, where the visit fails. RunError for a visit that the run has not.
    """
    phase = _phase(run, phase)
    with tempfile.TemporaryDirectory(prefix="simfl-replay-") as scratch:
        rerun = Rerun(run, Path(scratch), say)
        outgoing = rerun.go_to(phase, round)
        plan, listener = rerun.alone(outgoing, client), Listener(client)
        beside = tuple(visit.client for visit in plan.visits if visit.client != client)
        if beside:
            say(f"in batch, a visit's bits depend on its whole cohort: clients {_names(beside)} are trained beside it")

        def visit() -> CohortResult:
            return rerun.train(plan, outgoing.received, listener)

        phase_now = rerun.experiment.phases[phase]
        losses = (type(phase_now.algorithm).loss, type(phase_now.objective).loss)
        result = _debugged(visit, losses) if debug else visit()
        (row,) = (row for row in result.clients if row["client"] == client)
        ledger = [row for row in result.ledger if row["client"] == client]
        done = Replay(
            phase, round, client, beside, row, ledger, listener.steps, listener.uploads, result.memory[client]
        )
        return _held(rerun, done)


def _phase(run: Run, given: int | None) -> int:
    if given is None and len(run.experiment.phases) > 1:
        raise RunError(f"--phase: needed, as the run has phases 0 to {len(run.experiment.phases) - 1}")
    return given or 0


def _held(rerun: Rerun, done: Replay) -> Replay:
    """The replay with everything compared that the run recorded of the visit."""
    held, unlike = done.held, [*rerun.unlike]
    found: dict[str, list[Row]] = {"clients": [done.row], "ledger": done.ledger}
    for name, rows in found.items():
        recorded = [r for r in rerun.recorded(name, done.phase, done.round) if r["client"] == done.client]
        recorded = [r for r in recorded if r.get("direction") != "download"]
        apart = differences(name, recorded, rows)
        held[f"{name}, {_count(recorded, 'row')}"] = _verdict(apart) if recorded else "the run recorded none"
        unlike += apart
    digest, where = _recorded_memory(rerun.run, done)
    apart = [] if digest in (None, done.memory) else [f"memory: {digest} recorded, {done.memory} now"]
    held["memory"] = where if digest is None else f"{_verdict(apart)} ({where})"
    return Replay(**{**vars(done), "held": held, "unlike": unlike + apart})


def _recorded_memory(run: Run, done: Replay) -> tuple[str | None, str]:
    """The digest in a commit made after the visit and before the client's next one, and which commit that is."""
    phases = len(run.experiment.phases)
    for step in run.steps:
        snapshot = run.snapshot(step)
        same_phase = snapshot.phase == done.phase or (snapshot.phase == phases and done.phase == phases - 1)
        if not same_phase or snapshot.round < done.round:
            continue
        between = range(done.round + 1, snapshot.round + 1)
        visits = run.clients().to_pylist()
        if any((v["phase"], v["client"]) == (done.phase, done.client) and v["round"] in between for v in visits):
            return None, "the client visited again before the oldest commit that is kept"
        return snapshot.client_state(done.client), f"commit after {step} rounds"
    return None, "no commit holds it"


def _debugged(work: Callable[[], Answer], stops: Sequence[Any]) -> Answer:
    """Run under pdb: it stops where the losses begin, and where an exception rose."""
    debugger = pdb.Pdb()
    for function in stops:
        if isinstance(function, FunctionType):
            debugger.rcLines.append(f"break {function.__code__.co_filename}:{_first_line(function)}")
    debugger.rcLines.append("continue")
    try:
        answer: Answer | None = debugger.runcall(work)
    except ClientError as error:
        pdb.post_mortem((error.__cause__ or error).__traceback__)
        raise
    assert answer is not None
    return answer


def _first_line(function: FunctionType) -> int:
    code = function.__code__
    return min(line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno)


def lines(done: Replay) -> list[str]:
    """The replay for a reader."""
    row = done.row
    out = [f"client {done.client}, round {done.round} of phase {done.phase}: {row['examples']} examples, ", "", ""]
    out[0] += f"{row['steps']} local steps, loss {row['loss']:.9g}"
    out[1:] = [f"  {'step':>6}  {'loss':<14} gradient norm"]
    shown, left_out = done.steps, len(done.steps) - SHOWN
    if left_out > 0:
        shown = [*done.steps[: SHOWN // 2], *done.steps[-SHOWN // 2 :]]
    several = len({(step.unit, step.micro) for step in done.steps}) > 1
    for number, step in enumerate(shown):
        if left_out > 0 and number == SHOWN // 2:
            out.append(f"  ({left_out} steps are left out here; --json has all)")
        which = f"  unit {step.unit}, micro-step {step.micro}" if several else ""
        out.append(f"  {step.step:>6}  {step.loss:<14.9g} {step.gradient:.9g}{which}")
    clients_per_batch = max((len(f"{s.part} {s.tensor}") for s in done.sent), default=0)
    out.append(f"  {'upload':<{clients_per_batch}}  {'floats':>9}  {'norm':<14} as it arrived")
    for s in done.sent:
        out.append(f"  {f'{s.part} {s.tensor}':<{clients_per_batch}}  {s.floats:>9}  {s.norm:<14.9g} {s.arrived:.9g}")
    out.append(f"  remembers {'nothing' if done.memory == EMPTY else done.memory}")
    out.append("held to the record:")
    out += [f"  {what}: {verdict}" for what, verdict in done.held.items()]
    out += [f"  {line}" for line in done.unlike]
    recorded = any("equal" in verdict for verdict in done.held.values())
    out.append(("bit-equal to the run" if recorded else "nothing to compare with") if done.equal else "not as recorded")
    return out


def _verdict(apart: list[str]) -> str:
    return "differs" if apart else "equal"


def _count(rows: Sequence[object], what: str) -> str:
    return f"{len(rows)} {what}{'' if len(rows) == 1 else 's'}"


def _names(clients: Sequence[int]) -> str:
    return ", ".join(str(client) for client in clients)
