"""The first difference between two runs, down to client, local step and tensor, found by repeating both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from simfl.debug.rerun import PlannedRound, Rerun
from simfl.errors import ClientError
from simfl.protocol import Parts, Weights
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.training.executor import Observer, OptimizerStep
from simfl.training.plan import ClientPlan
from simfl.weights import sha256, to_raw_bytes

MAX_LINES = 12  # of one kind
RunPair = tuple[Rerun, Rerun]
PlanPair = tuple[PlannedRound, PlannedRound]


class StepIndex(NamedTuple):
    """The index of an optimizer step within a client update."""

    unit: int
    step: int  # local step
    micro: int  # micro-step


@dataclass(frozen=True)
class StepTrace:
    """One optimizer step of a client, as hashes of its tensors."""

    index: StepIndex
    rows: tuple[int, ...]  # of the training split
    loss: float
    gradients: dict[str, str]
    weights: dict[str, str]  # after the step


class StepRecorder(Observer):
    """An observer that records the steps of all clients as hashes, their uploads, and the tensors of one step."""

    def __init__(self, client: int | None = None, index: StepIndex | None = None) -> None:
        """Record; of the step `index` of `client`, the tensors too."""
        self.selected = client, index
        self.tensors: dict[str, Weights] = {}  # of the selected step
        self.steps: dict[int, list[StepTrace]] = {}
        self.uploads: dict[int, dict[str, Parts]] = {}

    def stepped(self, step: OptimizerStep) -> None:
        """Keep the hashes of every unit's step."""
        for k, unit in enumerate(step.units):
            if step.step >= unit.num_steps:
                continue
            index = StepIndex(unit.unit, step.step, step.micro_step)
            tensors_of = {"gradient": step.gradients, "weights after the step": step.weights}
            own = {kind: _row(tensors, k) for kind, tensors in tensors_of.items()}
            hashes = [{name: sha256({name: t}) for name, t in tensors.items()} for tensors in own.values()]
            loss = float((step.loss_sums[k] / step.loss_weights[k].clamp_min(1e-12)).detach())
            rows = tuple(int(row) for row in unit.batches[step.step] if row >= 0)
            self.steps.setdefault(unit.client, []).append(StepTrace(index, rows, loss, *hashes))
            if self.selected == (unit.client, index):
                self.tensors = {kind: {name: t.clone() for name, t in tensors.items()} for kind, tensors in own.items()}

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        """Record an upload."""
        self.uploads[client] = {"upload": _copied(upload), "decoded upload": _copied(arrived)}


def _row(tensors: Weights, k: int) -> Weights:
    return {name: t[k].detach() for name, t in tensors.items()}


def _copied(parts: Parts) -> Parts:
    return {part: {name: t.detach().clone() for name, t in tensors.items()} for part, tensors in parts.items()}


def find_divergence(
    a: Run, b: Run, phase: int, round: int, scratch: Path, on_message: Callable[[str], None]
) -> list[str]:
    """Repeat two runs up to a round and return lines about their first difference; no lines if there is none.

    Args:
        a: A run.
        b: Another run.
        phase: The phase of the round, from 0.
        round: The round of the phase, from 1.
        scratch: An empty folder.
        on_message: Receives messages about the progress.
    """

    def repeat(run: Run, name: str, folder: str, from_start: bool) -> Rerun:
        return Rerun(run, scratch / folder, lambda text: on_message(f"{name}: {text}"), use_checkpoints=not from_start)

    pair = repeat(a, "A", "a", False), repeat(b, "B", "b", False)
    differs_before = list(compare_states(*(rerun.go_to(phase, round).before for rerun in pair)))
    rounds: Iterator[tuple[int, int]] = iter([(phase, round)])
    if differs_before:
        on_message("the runs differ before this round; both are repeated from the start, round by round")
        pair, rounds = (repeat(a, "A", "c", True), repeat(b, "B", "d", True)), _rounds_up_to(a, phase, round)
    found: list[str] = []
    for at in rounds:
        found = _compare_round(pair, *at)
        if found:
            break
    return found + [f"repeated run {name} differs from its record: {line}" for name, line in _record_differences(pair)]


def _rounds_up_to(run: Run, phase: int, round: int) -> Iterator[tuple[int, int]]:
    for index, one in enumerate(run.experiment.phases[: phase + 1]):
        yield from ((index, number) for number in range(1, 1 + (round if index == phase else one.rounds)))


def _compare_round(pair: RunPair, phase: int, round: int) -> list[str]:
    """Return the first difference within one round, and repeat the round in both runs unless a client fails."""
    plans = pair[0].go_to(phase, round), pair[1].go_to(phase, round)
    where = f"phase {phase}, round {round}"
    found = _first(compare_states(plans[0].before, plans[1].before), f"{where}, before training")
    found = found or _first(compare_plans(*plans), where)
    found = found or _first(compare_parts(plans[0].received, plans[1].received), f"{where}, decoded download")
    found = found or _compare_client_updates(pair, plans, where)
    for rerun in pair:
        try:
            rerun.rerun_round()
        except ClientError as error:
            return [*found, f"{rerun.run.folder}: {str(error).splitlines()[0]}"]
    return found or _first(compare_states(*(rerun.snapshot for rerun in pair)), f"{where}, after the server step")


def _compare_client_updates(pair: RunPair, plans: PlanPair, where: str) -> list[str]:
    """Return the first difference within client updates, client by client in the order in which they are summed."""
    recorders = StepRecorder(), StepRecorder()
    for client in plans[0].clients:
        for rerun, plan, recorder in zip(pair, plans, recorders, strict=True):
            if client not in recorder.uploads:
                rerun.train(rerun.smallest_cohort(plan, client), plan.received, recorder)
        found = _compare_steps(pair, plans, recorders, client)
        for kind in ("upload", "decoded upload") if not found else ():
            a, b = (recorder.uploads[client][kind] for recorder in recorders)
            found = found or _first(compare_parts(a, b), kind)
        if found:
            return [f"{where}, client {client}, {found[0]}", *found[1:]]
    return []


def _compare_steps(
    pair: RunPair, plans: PlanPair, recorders: tuple[StepRecorder, StepRecorder], client: int
) -> list[str]:
    """Return lines about the first step of a client that differs."""
    for a, b in itertools.zip_longest(*(recorder.steps.get(client, []) for recorder in recorders)):
        if a is None or b is None:
            return [f"local step {(a or b).index.step} is taken in one run only"]
        if a == b:
            continue
        unit, step, micro = a.index
        where = f"local step {step}" + (f", unit {unit}, micro-step {micro}" if unit or micro else "")
        if (a.index, a.rows) != (b.index, b.rows):
            return [f"{where}: different examples", f"  rows {list(a.rows)} | {list(b.rows)}"]
        loss = f"  loss {a.loss!r} | {b.loss!r}" if a.loss != b.loss else f"  loss equal, {a.loss!r}"
        return [f"{where}:", loss, *_compare_step_tensors(pair, plans, client, a.index)]
    return []


def _compare_step_tensors(pair: RunPair, plans: PlanPair, client: int, index: StepIndex) -> Iterator[str]:
    """Repeat a client update in both runs and yield lines about the tensors of one step."""
    recorders = StepRecorder(client, index), StepRecorder(client, index)
    for rerun, plan, recorder in zip(pair, plans, recorders, strict=True):
        rerun.train(rerun.smallest_cohort(plan, client), plan.received, recorder)
    for kind in recorders[0].tensors:
        differing = shorten(list(compare_tensors(recorders[0].tensors[kind], recorders[1].tensors[kind])))
        yield from [f"  {kind}: {line}" for line in differing] or [f"  {kind}: equal"]


def _record_differences(pair: RunPair) -> Iterator[tuple[str, str]]:
    for name, rerun in zip("AB", pair, strict=True):
        yield from ((name, line) for line in shorten(rerun.differences))


def _first(lines: Iterator[str], where: str) -> list[str]:
    found = list(lines)
    return [f"{where}:", *(f"  {line}" for line in shorten(found))] if found else []


def shorten(lines: list[str], limit: int = MAX_LINES) -> list[str]:
    """Return the first of many lines, and the number of the others."""
    return lines if len(lines) <= limit else [*lines[:limit], f"and {len(lines) - limit} more"]


def compare_states(a: Snapshot, b: Snapshot) -> Iterator[str]:
    """Yield a line for every tensor and every client state that differs between two states."""
    yield from compare_tensors(a.tensors(), b.tensors())
    for client in sorted(a.client_states.keys() | b.client_states.keys()):
        if a.client_state(client) != b.client_state(client):
            yield f"state of client {client}: {a.client_state(client)[:12]} | {b.client_state(client)[:12]}"


def compare_plans(a: PlannedRound, b: PlannedRound) -> Iterator[str]:
    """Yield lines about differences in the sampled clients, their training rows and weights."""
    if sorted(a.clients) != sorted(b.clients):
        yield f"different clients are sampled: {sorted(a.clients)} | {sorted(b.clients)}"
        return
    mine, theirs = ({plan.client: plan for plan in one.client_plans} for one in (a, b))
    for client in sorted(mine):
        if _task(mine[client]) != _task(theirs[client]):
            yield f"client {client}: different examples or weight"


def _task(plan: ClientPlan) -> tuple[float, list[list[int]]]:
    return plan.weight, [rows.tolist() for rows in plan.units]


def compare_parts(a: Parts, b: Parts) -> Iterator[str]:
    """Yield a line for every tensor that differs between two messages."""
    for part in dict.fromkeys([*a, *b]):
        yield from (f"{part} {line}" for line in compare_tensors(a.get(part, {}), b.get(part, {})))


def compare_tensors(a: Weights, b: Weights) -> Iterator[str]:
    """Yield a line for every named tensor that is not bit-identical, in the order of the names."""
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            yield f"{name}: only in {'A' if name in a else 'B'}"
        elif (a[name].shape, a[name].dtype) != (b[name].shape, b[name].dtype):
            x, y = (f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (a[name], b[name]))
            yield f"{name}: {x} | {y}"
        elif (to_raw_bytes(a[name]) != to_raw_bytes(b[name])).any():
            yield f"{name}: {_largest_difference(a[name], b[name])}"


def _largest_difference(a: Tensor, b: Tensor) -> str:
    gaps = (a.double() - b.double()).abs()
    gaps = torch.where(torch.isnan(gaps), torch.inf, gaps)
    largest = int(gaps.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(largest), a.shape)]
    count = int((gaps > 0).sum())
    return f"max |A − B| {float(gaps.flatten()[largest]):.3g} at {index}, {count} of {a.numel()} values differ"
