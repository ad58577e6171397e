"""Repetition of one client update of a run, in this process, and its comparison with the record of the run.

A client update is a pure function of the download, the client's state and a seed. It can be repeated on its own, any
number of times, under a debugger, even if it ended the run with an error.
"""

from __future__ import annotations

import pdb
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import TypeVar

import torch
from torch import Tensor

from simfl.aggregation.round import CohortResult
from simfl.client_state import EMPTY
from simfl.debug.rerun import Rerun, row_differences
from simfl.errors import ClientError, RunError
from simfl.protocol import Parts
from simfl.runs.results import Run
from simfl.runs.tables import TableRow
from simfl.training.executor import Observer, OptimizerStep

MAX_STEPS = 40  # steps shown of a long client update, half of them its last ones
Result = TypeVar("Result")


@dataclass(frozen=True)
class ReplayedStep:
    """One optimizer step: the mean loss of its batch, and the norm of the gradient before clipping."""

    unit: int
    step: int  # local step
    micro: int  # micro-step
    loss: float
    gradient: float


@dataclass(frozen=True)
class UploadedTensor:
    """A tensor of the upload: its norm on the client, and its norm on the server after decoding."""

    part: str
    tensor: str
    floats: int
    norm: float
    decoded_norm: float


@dataclass(frozen=True)
class Replay:
    """A repeated client update, compared with the record."""

    phase: int
    round: int
    client: int
    batched_with: tuple[int, ...]  # clients that are trained together with it, in one program
    row: TableRow  # as in `clients.parquet`
    ledger: list[TableRow]  # of its upload
    steps: list[ReplayedStep]
    upload: list[UploadedTensor]
    client_state: str  # digest of its state afterwards
    comparisons: dict[str, str] = field(default_factory=dict)  # what was compared with the record -> the result
    differences: list[str] = field(default_factory=list)  # lines about what differs from the record

    @property
    def equal(self) -> bool:
        """Return whether nothing differs from the record, as far as the run recorded it."""
        return not self.differences


class ReplayObserver(Observer):
    """An observer that collects one client's steps and upload."""

    def __init__(self, client: int) -> None:
        """Observe a client."""
        self.client = client
        self.steps: list[ReplayedStep] = []
        self.upload: list[UploadedTensor] = []

    def stepped(self, step: OptimizerStep) -> None:
        """Keep the loss and the gradient norm of the client's units."""
        for k, unit in enumerate(step.units):
            if unit.client == self.client and step.step < unit.num_steps:
                loss = float((step.loss_sums[k] / step.loss_weights[k].clamp_min(1e-12)).detach())
                squares = torch.stack([g[k].double().square().sum() for g in step.gradients.values()])
                norm = float(squares.sum().sqrt())
                self.steps.append(ReplayedStep(unit.unit, step.step, step.micro_step, loss, norm))

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        """Collect the upload."""
        if client == self.client:
            self.upload = [
                UploadedTensor(part, name, t.numel(), _norm(t), _norm(arrived[part][name]))
                for part, tensors in upload.items()
                for name, t in tensors.items()
            ]


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


def replay(
    run: Run,
    round: int,
    client: int,
    phase: int | None = None,
    debug: bool = False,
    on_message: Callable[[str], None] = lambda text: None,
) -> Replay:
    """Repeat one client update and compare it with the record.

    Args:
        run: The run.
        round: The round of the phase, from 1, as in tables and messages.
        client: The client, from 0.
        phase: The phase, from 0; needed if the run has several.
        debug: Whether to run under pdb.
        on_message: Receives messages about the progress.

    Raises:
        ClientError: The client update fails; the error has the client's own traceback.
        RunError: The run has no such client update.
    """
    phase = _phase(run, phase)
    if run.experiment.secure_aggregation is not None:
        raise RunError("replay: compares single uploads, but with secure_aggregation the server sees masked ones only")
    with tempfile.TemporaryDirectory(prefix="simfl-replay-") as scratch:
        rerun = Rerun(run, Path(scratch), on_message)
        planned = rerun.go_to(phase, round)
        cohort, observer = rerun.smallest_cohort(planned, client), ReplayObserver(client)
        batched_with = tuple(plan.client for plan in cohort.clients if plan.client != client)
        if batched_with:
            names = ", ".join(str(other) for other in batched_with)
            on_message(f"vectorized training depends on the whole cohort: clients {names} are trained too")

        def train() -> CohortResult:
            return rerun.train(cohort, planned.received, observer)

        algorithm, objective = rerun.experiment.phases[phase].algorithm, rerun.experiment.phases[phase].objective
        result = _debugged(train, (type(algorithm).loss, type(objective).loss)) if debug else train()
        (row,) = ({**row} for row in result.clients if row["client"] == client)
        ledger: list[TableRow] = [dict(row) for row in result.ledger if row["client"] == client]
        state = result.client_states[client]
        done = Replay(phase, round, client, batched_with, row, ledger, observer.steps, observer.upload, state)
        return _compared(rerun, done)


def replay_lines(done: Replay) -> list[str]:
    """Format a replay."""
    row = done.row
    where = f"client {done.client}, round {done.round} of phase {done.phase}"
    lines = [f"{where}: {row['examples']} examples, {row['steps']} local steps, loss {row['loss']:.9g}"]
    lines += _step_lines(done.steps)
    width = max((len(f"{t.part} {t.tensor}") for t in done.upload), default=0)
    lines.append(f"  {'upload':<{width}}  {'floats':>9}  {'norm':<14} decoded")
    for t in done.upload:
        lines.append(f"  {f'{t.part} {t.tensor}':<{width}}  {t.floats:>9}  {t.norm:<14.9g} {t.decoded_norm:.9g}")
    lines.append(f"  client state {'empty' if done.client_state == EMPTY else done.client_state}")
    lines.append("compared with the record:")
    lines += [f"  {what}: {result}" for what, result in done.comparisons.items()]
    lines += [f"  {line}" for line in done.differences]
    if not done.equal:
        return [*lines, "differs from the record"]
    recorded = any("equal" in result for result in done.comparisons.values())
    return [*lines, "bit-identical to the run" if recorded else "the run recorded nothing to compare with"]


def _step_lines(steps: Sequence[ReplayedStep]) -> list[str]:
    lines = [f"  {'step':>6}  {'loss':<14} gradient norm"]
    num_hidden = len(steps) - MAX_STEPS
    shown = [*steps[: MAX_STEPS // 2], *steps[-MAX_STEPS // 2 :]] if num_hidden > 0 else steps
    several = len({(step.unit, step.micro) for step in steps}) > 1
    for number, step in enumerate(shown):
        if num_hidden > 0 and number == MAX_STEPS // 2:
            lines.append(f"  ({num_hidden} steps are not shown; --json shows all)")
        suffix = f"  unit {step.unit}, micro-step {step.micro}" if several else ""
        lines.append(f"  {step.step:>6}  {step.loss:<14.9g} {step.gradient:.9g}{suffix}")
    return lines


def _phase(run: Run, given: int | None) -> int:
    if given is None and len(run.experiment.phases) > 1:
        raise RunError(f"--phase: needed, because the run has phases 0 to {len(run.experiment.phases) - 1}")
    return given or 0


def _compared(rerun: Rerun, done: Replay) -> Replay:
    """Compare a replay with everything that the run recorded of the client update."""
    comparisons, differences = dict[str, str](), [*rerun.differences]
    for name, rows in {"clients": [done.row], "ledger": done.ledger}.items():
        recorded = [r for r in rerun.recorded(name, done.phase, done.round) if r["client"] == done.client]
        recorded = [r for r in recorded if r.get("direction") != "download"]
        lines = row_differences(name, recorded, rows)
        title = f"{name}, {len(recorded)} row{'' if len(recorded) == 1 else 's'}"
        comparisons[title] = _verdict(lines) if recorded else "not recorded"
        differences += lines
    digest, source = _recorded_state(rerun.run, done)
    lines = [] if digest in (None, done.client_state) else [f"client state: {digest} recorded, {done.client_state} now"]
    comparisons["client state"] = source if digest is None else f"{_verdict(lines)} ({source})"
    return replace(done, comparisons=comparisons, differences=differences + lines)


def _verdict(differences: list[str]) -> str:
    return "differs" if differences else "equal"


def _recorded_state(run: Run, done: Replay) -> tuple[str | None, str]:
    """Return the digest of the client's state in a checkpoint before its next update, and which checkpoint that is."""
    num_phases = len(run.experiment.phases)
    for step in run.steps:
        snapshot = run.snapshot(step)
        same_phase = snapshot.phase == done.phase or (snapshot.phase == num_phases and done.phase == num_phases - 1)
        if not same_phase or snapshot.round < done.round:
            continue
        between = range(done.round + 1, snapshot.round + 1)
        updates = run.clients().to_pylist()
        if any((v["phase"], v["client"]) == (done.phase, done.client) and v["round"] in between for v in updates):
            return None, "not known: the client was sampled again before the oldest checkpoint"
        return snapshot.client_state(done.client), f"checkpoint after {step} rounds"
    return None, "not known: there is no checkpoint after this round"


def _debugged(work: Callable[[], Result], stops: Sequence[object]) -> Result:
    """Run under pdb, with breakpoints in the functions `stops`, and post mortem if an exception is raised."""
    debugger = pdb.Pdb()
    for function in stops:
        if isinstance(function, FunctionType):
            debugger.rcLines.append(f"break {function.__code__.co_filename}:{_first_line(function)}")
    debugger.rcLines.append("continue")
    try:
        result: Result | None = debugger.runcall(work)
    except ClientError as error:
        pdb.post_mortem((error.__cause__ or error).__traceback__)
        raise
    assert result is not None
    return result


def _first_line(function: FunctionType) -> int:
    code = function.__code__
    return min(line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno)
