"""A cohort from start to end on a worker: remember, train, clip, encode, decode, remember, and one sum per part.

The ways of training differ in how many items they take at once, and in nothing else of what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from simfl import ledger
from simfl.cohort import batch, loop
from simfl.cohort.attempts import attempt
from simfl.cohort.fold import Fold
from simfl.cohort.plan import CohortPlan, VisitPlan, batches, places, poisson_batches, rates
from simfl.cohort.stacking import mapped, namespace, row, row_like, stack
from simfl.cohort.stage import Item, Stage, Trained, visits
from simfl.cohort.stepper import Stepper
from simfl.cohort.wire import STATISTICS, Wire
from simfl.memory import Store
from simfl.privacy.mechanism import Release
from simfl.protocol import EXTRA, Facts, MicroStep, Parts, State, Visit, Weights
from simfl.seeds import seed_for
from simfl.timing import Clock, measured, timed
from simfl.weights import scale, select

EMPTY_UNIT = np.empty(0, np.int64)  # of a client that was visited and had no unit sampled
WAYS: dict[str, Callable[..., Trained]] = {"loop": loop.train, "batch": batch.train}


@dataclass
class CohortResult:
    """What a worker returns for a cohort: sums and rows, never single uploads (but for gathered parts)."""

    index: int
    size: int  # positions of the round's tree
    sums: Parts = field(default_factory=dict)
    gathered: dict[str, list[Weights]] = field(default_factory=dict)
    memory: dict[int, str] = field(default_factory=dict)  # client -> digest of what it now remembers
    ledger: list[ledger.Row] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # about visits that failed and were tried again or left out
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True)
class Done:
    """A visit after its last local step, unstacked."""

    plan: VisitPlan
    visit: Visit
    upload: Parts
    trained: Weights
    buffers: Weights
    state: State
    optimizer: list[State]
    loss: float
    release: Release | None = None  # of a visit whose units are hidden
    private_steps: int = 0  # local steps with a gradient that was clipped and noised example by example


def train_cohort(
    stage: Stage, store: Store, plan: CohortPlan, received: Parts, way: str, on_error: str
) -> CohortResult:
    """Every visit of the cohort; ClientError names the client that failed, unless failures are skipped."""
    result, folds = CohortResult(plan.index, plan.size), dict[str, Fold]()
    outcomes = _outcomes(stage, store, plan, received, way, on_error, result.said)
    for position, (visit, outcome) in enumerate(zip(plan.visits, outcomes, strict=True)):
        if outcome is None:
            result.skipped.append(visit.client)
            for fold in folds.values():
                fold.push(None)
            continue
        done, sent, memory, rows = outcome
        with measured("commit"):
            result.memory[visit.client] = store.write(memory)
        _fold(stage, folds, result, done, sent, position)
        result.ledger += rows
        result.clients.append(_client_row(plan, done))
    result.sums = {part: total for part, fold in folds.items() if (total := fold.total()) is not None}
    with measured("commit"):
        store.sync(result.memory.values())
    return result


def _outcomes(
    stage: Stage, store: Store, plan: CohortPlan, received: Parts, way: str, on_error: str, said: list[str]
) -> Iterator[tuple[Done, Parts, State, list[ledger.Row]] | None]:
    """Each visit, trained and released, None for one that is skipped; at a time no more than are trained together."""
    width = plan.width if way == "batch" and stage.mechanism is None else 1  # the units of a client fill the program
    for first in range(0, len(plan.visits), width):
        group = plan.visits[first : first + width]
        with measured("load"):
            memories = {visit.client: store.get(visit.memory) for visit in group}
        train = partial(_train_group, stage, plan, memories=memories, received=received, way=way)
        trained = attempt(stage, plan, group, train, on_error, said)
        done = {visit.client: one for visit, one in zip(group, trained, strict=True) if one is not None}
        whole = [visit for visit in group if visit.client in done]
        if not whole:
            yield from (None for _ in group)
            continue
        release = partial(_release, stage, plan, done=done, received=received, memories=memories)
        outcomes = attempt(stage, plan, whole, release, on_error, said)
        released = iter(outcomes)
        for visit in group:
            found = next(released) if visit.client in done else None
            yield None if found is None else (done[visit.client], *found)


@timed("encode")
def _release(
    stage: Stage,
    plan: CohortPlan,
    visits: Sequence[VisitPlan],
    done: dict[int, Done],
    received: Parts,
    memories: dict[int, State],
) -> list[tuple[Parts, State, list[ledger.Row]]]:
    """What the server gets of each visit, what its client remembers, and the ledger's rows."""
    clients = [visit.client for visit in visits]
    uploads = [_upload(stage, done[client], received) for client in clients]
    wire = Wire(stage, plan.phase, plan.round)
    out = []
    for client, upload, (sent, residual, rows) in zip(
        clients, uploads, wire.send(clients, uploads, received, [memories[c] for c in clients]), strict=True
    ):
        stage.observer.sent(client, upload, sent)
        # of pooled examples nothing travels, and there is no client to remember
        memory = {} if stage.phase.pooled else _remember(stage, done[client], sent, received, residual)
        out.append((sent, memory, [] if stage.phase.pooled else rows))
    return out


def _upload(stage: Stage, done: Done, received: Parts) -> Parts:
    """What the algorithm sends, and the change of running statistics; PrivacyError for what was not made private."""
    upload = done.upload
    if STATISTICS in received:
        statistics = {name: done.buffers[name] - t for name, t in received[STATISTICS].items()}
        upload = {**upload, STATISTICS: statistics}
    if stage.mechanism is not None:
        stage.mechanism.admit(upload, done.release, int(done.visit.steps) - done.private_steps, done.plan.client)
    return upload


@timed("train")
def _train_group(
    stage: Stage, plan: CohortPlan, group: Sequence[VisitPlan], memories: dict[int, State], received: Parts, way: str
) -> list[Done]:
    items, owners = [], []
    for visit in group:
        units = zip(visit.names or range(len(visit.units)), visit.units, strict=True)
        for unit, rows in list(units) or [(-1, EMPTY_UNIT)]:
            items.append(_item(stage, plan, visit, unit, rows))
            owners.append(visit)
    size = len(items) if way == "batch" else 1
    outcomes: list[Done] = []
    for first in range(0, len(items), size):
        chunk, chunk_owners = items[first : first + size], owners[first : first + size]
        outcomes += _train_items(stage, plan, chunk, chunk_owners, memories, received, way)
    if stage.mechanism is None or stage.mechanism.unit == "record":
        return outcomes
    return [_one_upload(stage, plan, v, [o for o in outcomes if o.plan.client == v.client], received) for v in group]


def _item(stage: Stage, plan: CohortPlan, visit: VisitPlan, unit: int, rows: np.ndarray) -> Item:
    phase, name = stage.phase, (stage.seed, "visit", plan.phase, plan.round, visit.client, unit)
    draw = poisson_batches if stage.mechanism is not None and stage.mechanism.unit == "record" else batches
    table = draw(rows, phase.local, *name, steps=visit.steps)
    speed = rates(phase.local, phase.rounds, plan.round, len(table))
    place = places(rows, table) if phase.algorithm.needs_places else None
    return Item(visit.client, unit, table, speed, seed_for(*name) >> 1, visit.examples, place)


def _train_items(
    stage: Stage,
    plan: CohortPlan,
    items: list[Item],
    owners: list[VisitPlan],
    memories: dict[int, State],
    received: Parts,
    way: str,
) -> list[Done]:
    algorithm, n = stage.phase.algorithm, len(items)
    visit = visits(stage, items, plan.round, [o.relative for o in owners], plan.num_sampled)
    each = [Visit(*fields) for fields in zip(*(t.unbind() for t in visit), strict=True)]
    kept = [_on_device(memories[item.client], stage.device) for item in items]
    states = [
        namespace(memory, "algorithm") or algorithm.init_client(received, one)
        for memory, one in zip(kept, each, strict=True)
    ]
    states = [algorithm.prepare(received, state, one) for state, one in zip(states, each, strict=True)]
    starts = [
        _start(stage, memory, received, state, one) for memory, state, one in zip(kept, states, each, strict=True)
    ]
    start, state = stack(starts), {key: stack([s[key] for s in states]) for key in states[0]}
    buffers = stack([_buffers(stage, memory, received) for memory in kept])
    steppers = _steppers(stage, start, kept)
    trained = WAYS[way](stage, items, start, buffers, received, state, visit, steppers)
    uploads = mapped(lambda t, s, v: algorithm.upload(t, received, s, v), n)(trained.weights, trained.state, visit)
    after = [{key: row_like(trained.state[key], k, group) for key, group in states[k].items()} for k in range(n)]
    losses = (trained.sums / trained.counts.clamp_min(1e-12)).tolist()
    micro = len(steppers)
    return [
        Done(
            owners[k],
            each[k],
            {part: row(tensors, k) for part, tensors in uploads.items()},
            row(trained.weights, k),
            row(trained.buffers, k),
            after[k],
            [trained.optimizer[m * n + k] for m in range(micro)] if trained.optimizer else [],
            losses[k],
            private_steps=trained.private_steps,
        )
        for k in range(n)
    ]


def _one_upload(stage: Stage, plan: CohortPlan, visit: VisitPlan, units: list[Done], received: Parts) -> Done:
    """The units of a visit as one release: each one's whole update clipped, then summed, noised and divided.

    What the client remembers may follow from the release alone, so `trained` is what the server could know of it.
    """
    assert stage.mechanism is not None
    name = (plan.phase, plan.round, visit.client)
    updates = [unit.upload["weights"] for unit in units] if visit.units else []
    release = stage.mechanism.release(updates, received, name)
    first, delta = units[0], release.parts["weights"]
    trained = {**first.trained, **{name: received["weights"][name] + t for name, t in delta.items()}}
    loss = sum(unit.loss for unit in units) / len(units)
    return Done(visit, first.visit, release.parts, trained, first.buffers, first.state, [], loss, release)


def _start(stage: Stage, memory: State, received: Parts, state: State, visit: Visit) -> Weights:
    private = namespace(memory, "private").get("weights") or stage.binding.values(stage.roles.private)
    known = {**private, **received["weights"]}
    start = {name: known[name] for name in stage.roles.trained}
    mentor = start if stage.mentor is None else stage.mentor.binding.values(stage.mentor.trained)
    sample, mentor_sample = stage.samples
    facts = Facts(sample, dict(mentor), mentor_sample)
    extras = stage.phase.algorithm.extra(facts, received, state, visit)
    for group, tensors in extras.items():
        start |= {f"{EXTRA}/{group}/{name}": tensor for name, tensor in tensors.items()}
    return start


def _buffers(stage: Stage, memory: State, received: Parts) -> Weights:
    mine = namespace(memory, "buffers").get("weights") or received.get("buffers") or {}
    return {name: t.clone() for name, t in (mine or stage.binding.values(stage.roles.buffers)).items()}


def _steppers(stage: Stage, start: Weights, kept: list[State]) -> list[tuple[MicroStep, Stepper]]:
    steppers = []
    for number, micro in enumerate(stage.phase.algorithm.micro_steps()):
        names = select(start, micro.trains, micro.spares, where="algorithm")
        before = [namespace(memory, f"optimizer{number}") for memory in kept]
        steppers.append((micro, Stepper(stage.phase.local, {name: start[name] for name in names}, before)))
    return steppers


def _remember(stage: Stage, done: Done, sent: Parts, received: Parts, residual: State) -> State:
    """Everything this client will find at its next visit, by namespace."""
    new = stage.phase.algorithm.remember(sent, done.trained, received, done.state, done.visit)
    memory = {f"algorithm:{key}": tensors for key, tensors in new.items()}
    memory |= {f"codec:{part}": tensors for part, tensors in residual.items()}
    if stage.roles.private:
        memory["private:weights"] = {name: done.trained[name] for name in stage.roles.private}
    if stage.keep_local:
        memory["local:weights"] = {name: done.trained[name] for name in stage.roles.shared}
    if stage.roles.buffers and stage.phase.buffers == "local":
        memory["buffers:weights"] = done.buffers
    for number, state in enumerate(done.optimizer):
        memory |= {f"optimizer{number}:{key}": tensors for key, tensors in state.items()}
    return {group: {n: t.detach().cpu().contiguous() for n, t in tensors.items()} for group, tensors in memory.items()}


@timed("sum")
def _fold(stage: Stage, folds: dict[str, Fold], result: CohortResult, done: Done, sent: Parts, position: int) -> None:
    for part, tensors in sent.items():
        rule = stage.phase.algorithm.reduce.get(part, "weighting")
        if rule == "gather":
            result.gathered.setdefault(part, []).append(tensors)
            continue
        weighted = scale(tensors, done.plan.weight) if rule == "weighting" else tensors
        if part not in folds:
            folds[part] = Fold(empty=position)
        folds[part].push(weighted, own=weighted is not tensors)


def _client_row(plan: CohortPlan, done: Done) -> dict[str, Any]:
    visit = done.plan
    return {
        "phase": plan.phase,
        "round": plan.round + 1,
        "client": visit.client,
        "examples": visit.examples,
        "units": len(visit.units),
        "steps": int(done.visit.steps),
        "weight": visit.weight,
        "loss": done.loss,
    }


def _on_device(memory: State, device: torch.device) -> State:
    return {group: {name: t.to(device) for name, t in tensors.items()} for group, tensors in memory.items()}
