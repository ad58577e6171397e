"""Where two runs part, to the client, the step and the tensor: their rounds are run again side by side and compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from simfl.debug.rerun import PlannedRound, Rerun
from simfl.errors import ClientError
from simfl.protocol import Parts, Weights
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.training.context import TrainingUnit
from simfl.training.observer import Observer
from simfl.training.plan import ClientPlan
from simfl.weights import sha256, to_raw_bytes

SHOWN = 12  # lines of one kind
Pair = tuple[Rerun, Rerun]


@dataclass(frozen=True)
class StepTrace:
    """One optimizer step of a client, by hashes."""

    place: tuple[int, int, int]  # unit, local step, micro-step
    rows: tuple[int, ...]  # of the training split
    loss: float
    gradients: dict[str, str]
    weights: dict[str, str]  # after the step


class Trace(Observer):
    """Keeps every client's steps as hashes, its uploads as they are, and the tensors of one chosen step."""

    def __init__(self, keep: tuple[int, tuple[int, int, int]] | None = None) -> None:
        """`keep`: client and place of the step whose tensors are wanted."""
        self.keep, self.kept = keep, dict[str, Weights]()
        self.steps: dict[int, list[StepTrace]] = {}
        self.uploads: dict[int, dict[str, Parts]] = {}

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
            if step >= item.steps:
                continue
            place = (item.unit, step, micro)
            own = {kind: _row(t, k) for kind, t in (("gradient", gradients), ("weights after the step", weights))}
            hashes = [{name: sha256({name: t}) for name, t in tensors.items()} for tensors in own.values()]
            loss = float((sums[k] / counts[k].clamp_min(1e-12)).detach())
            rows = tuple(int(row) for row in item.batches[step] if row >= 0)
            self.steps.setdefault(item.client, []).append(StepTrace(place, rows, loss, *hashes))
            if self.keep == (item.client, place):
                self.kept = {kind: {name: t.clone() for name, t in tensors.items()} for kind, tensors in own.items()}

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        both = {"upload": upload, "upload as it arrived": arrived}
        self.uploads[client] = {
            kind: {part: {name: t.detach().clone() for name, t in tensors.items()} for part, tensors in parts.items()}
            for kind, parts in both.items()
        }


def _row(tensors: Weights, k: int) -> Weights:
    return {name: t[k].detach() for name, t in tensors.items()}


def divergence(a: Run, b: Run, phase: int, round: int, scratch: Path, say: Callable[[str], None]) -> list[str]:
    """Where the two first differ when run again here, at the latest in this round; no lines if they do not."""
    pair = Rerun(a, scratch / "a", _as("A", say)), Rerun(b, scratch / "b", _as("B", say))
    start = _first(states(*(one.go_to(phase, round).before for one in pair)))
    if start:
        say("they differ before that round: both are run from the beginning, round by round")
        pair = (
            Rerun(a, scratch / "c", _as("A", say), commits=False),
            Rerun(b, scratch / "d", _as("B", say), commits=False),
        )
    rounds = _rounds_up_to(a, phase, round) if start else [(phase, round)]
    for at in rounds:
        found = _in_round(pair, *at)
        if found:
            break
    return found + [f"run again, {name} differs from its own record: {line}" for name, line in _unfaithful(pair)]


def _as(name: str, say: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: say(f"{name}: {text}")


def _rounds_up_to(run: Run, phase: int, round: int) -> Iterator[tuple[int, int]]:
    for index, one in enumerate(run.experiment.phases[: phase + 1]):
        yield from ((index, number) for number in range(1, 1 + (round if index == phase else one.rounds)))


def _in_round(pair: Pair, phase: int, round: int) -> list[str]:
    """The first difference of one round; both stand after it then, unless a client failed."""
    out = tuple(one.go_to(phase, round) for one in pair)
    where = f"phase {phase}, round {round}"
    found = _first(states(out[0].before, out[1].before), f"{where}, before its first visit")
    found = found or _first(plans(*out), where)
    found = found or _first(parts(out[0].received, out[1].received), f"{where}, what clients receive")
    found = found or _in_visits(pair, out, where)
    for one in pair:
        try:
            one.rerun_round()
        except ClientError as error:
            return [*found, f"{one.run.folder}: {str(error).splitlines()[0]}"]
    return found or _first(states(*(one.snapshot for one in pair)), f"{where}, after the server's step")


def _in_visits(pair: Pair, out: tuple[PlannedRound, ...], where: str) -> list[str]:
    """The first difference inside of visits, client by client in the order in which they are summed."""
    traces = Trace(), Trace()
    for client in out[0].clients:
        for one, going, trace in zip(pair, out, traces, strict=True):
            if client not in trace.uploads:
                one.train(one.alone(going, client), going.received, trace)
        found = _first_step(pair, out, traces, client)
        for kind in ("upload", "upload as it arrived") if not found else ():
            a, b = (trace.uploads[client][kind] for trace in traces)
            found = found or _first(parts(a, b), kind)
        if found:
            return [f"{where}, client {client}, {found[0]}", *found[1:]]
    return []


def _first_step(pair: Pair, out: tuple[PlannedRound, ...], traces: tuple[Trace, Trace], client: int) -> list[str]:
    for a, b in itertools.zip_longest(*(trace.steps.get(client, []) for trace in traces)):
        if a is None or b is None:
            return [f"local step {(a or b).place[1]} is taken in one run alone"]
        if a == b:
            continue
        unit, step, micro = a.place
        where = f"local step {step}" + (f", unit {unit}, micro-step {micro}" if unit or micro else "")
        if (a.place, a.rows) != (b.place, b.rows):
            return [f"{where}: other examples", f"  rows {list(a.rows)} | {list(b.rows)}"]
        kept = tuple(Trace((client, a.place)) for _ in pair)
        for one, going, trace in zip(pair, out, kept, strict=True):
            one.train(one.alone(going, client), going.received, trace)
        lines = [f"{where}:", f"  loss {a.loss!r} | {b.loss!r}" if a.loss != b.loss else f"  loss equal, {a.loss!r}"]
        for kind in kept[0].kept:
            apart = brief(list(tensors(kept[0].kept[kind], kept[1].kept[kind])))
            lines += [f"  {kind}: {line}" for line in apart] or [f"  {kind}: equal"]
        return lines
    return []


def _unfaithful(pair: Pair) -> Iterator[tuple[str, str]]:
    for name, one in zip("AB", pair, strict=True):
        yield from ((name, line) for line in brief(one.unlike))


def _first(lines: Iterator[str], where: str = "") -> list[str]:
    found = list(lines)
    return [f"{where}:", *(f"  {line}" for line in brief(found))] if found else []


def brief(lines: list[str], shown: int = SHOWN) -> list[str]:
    """The first of many lines, and how many follow."""
    return lines if len(lines) <= shown else [*lines[:shown], f"and {len(lines) - shown} more"]


def states(a: Snapshot, b: Snapshot) -> Iterator[str]:
    """Lines for every tensor and digest that differs between two states."""
    yield from tensors(a.tensors(), b.tensors())
    for client in sorted(a.memory.keys() | b.memory.keys()):
        if a.client_state(client) != b.client_state(client):
            yield f"memory of client {client}: {a.client_state(client)[:12]} | {b.client_state(client)[:12]}"


def plans(a: PlannedRound, b: PlannedRound) -> Iterator[str]:
    """Lines for what the visits of two rounds are told to do."""
    if sorted(a.clients) != sorted(b.clients):
        yield f"other clients are sampled: {sorted(a.clients)} | {sorted(b.clients)}"
        return
    mine, theirs = ({v.client: v for plan in out.cohorts for v in plan.visits} for out in (a, b))
    for client in sorted(mine):
        if _told(mine[client]) != _told(theirs[client]):
            yield f"client {client}: other examples or weight"


def _told(visit: ClientPlan) -> tuple[float, list[list[int]]]:
    return visit.weight, [rows.tolist() for rows in visit.units]


def parts(a: Parts, b: Parts) -> Iterator[str]:
    """Lines for the tensors of messages that differ."""
    for part in dict.fromkeys([*a, *b]):
        yield from (f"{part} {line}" for line in tensors(a.get(part, {}), b.get(part, {})))


def tensors(a: Weights, b: Weights) -> Iterator[str]:
    """One line for each named tensor that differs, in the order of the names given; equal means equal to the bit."""
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            yield f"{name}: only in {'A' if name in a else 'B'}"
        elif (a[name].shape, a[name].dtype) != (b[name].shape, b[name].dtype):
            x, y = (f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (a[name], b[name]))
            yield f"{name}: {x} | {y}"
        elif (to_raw_bytes(a[name]) != to_raw_bytes(b[name])).any():
            yield f"{name}: {_gap(a[name], b[name])}"


def _gap(a: Tensor, b: Tensor) -> str:
    """How far apart, and where most."""
    apart = (a.double() - b.double()).abs()
    apart = torch.where(torch.isnan(apart), torch.inf, apart)
    most = int(apart.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(most), a.shape)]
    count = int((apart > 0).sum())
    return f"max |A − B| {float(apart.flatten()[most]):.3g} at {index}, {count} of {a.numel()} values differ"
