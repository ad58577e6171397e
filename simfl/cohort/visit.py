"""A cohort from start to end on a worker: remember, train, clip, encode, decode, remember, and one sum per part.

The ways of training differ in how many visits they take at once, and in nothing else of what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simfl import ledger
from simfl.cohort import group
from simfl.cohort.attempts import attempt
from simfl.cohort.fold import Fold
from simfl.cohort.group import Group
from simfl.cohort.plan import Ahead, CohortPlan, VisitPlan, nothing_ahead
from simfl.cohort.release import Released, release
from simfl.cohort.stacking import row, sent_to
from simfl.cohort.stage import Stage
from simfl.cohort.wire import finite
from simfl.memory import EMPTY, Memory
from simfl.protocol import Parts, Weights
from simfl.timing import Clock, measured, timed
from simfl.weights import stack_sum

Outcome = tuple[Group, Released, int]  # the client's place in both


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


def train_cohort(
    stage: Stage,
    store: Memory,
    plan: CohortPlan,
    received: Parts,
    way: str,
    on_error: str,
    ahead: Ahead = nothing_ahead,
) -> CohortResult:
    """Every visit of the cohort; ClientError names the client that failed, unless failures are skipped.

    Nobody looks at single uploads, but at their sums: a GPU is not asked what came out before all of its work is on
    its way, and while it is at work the batches of the round after are drawn. If something is not finite, the visits
    are made once more, as they are pure functions, and looked at one group after the other.
    """
    ahead = ahead if stage.device.type == "cuda" else nothing_ahead
    result = _cohort(stage, store, plan, received, way, on_error, _coded(stage), ahead)
    if result is None:
        result = _cohort(stage, store, plan, received, way, on_error, look=True)
    assert result is not None
    return result


def _cohort(
    stage: Stage,
    store: Memory,
    plan: CohortPlan,
    received: Parts,
    way: str,
    on_error: str,
    look: bool,
    ahead: Ahead = nothing_ahead,
) -> CohortResult | None:
    """The cohort, or None if nobody looked and something was not finite."""
    result, folds, position = CohortResult(plan.index, plan.size), dict[str, Fold](), 0
    losses: list[Tensor] = []
    for visits, outcomes in _outcomes(stage, store, plan, received, way, on_error, result.said, look):
        first = position
        for outcome in _together(outcomes):
            if outcome is None:
                result.skipped.append(visits[position - first].client)
                for fold in folds.values():
                    fold.push(None)
                position += 1
                continue
            trained, released = outcome
            _fold(stage, folds, result, trained, released, position, plan.width)
            position += len(trained)
            with measured("commit"):
                _keep(store, result, trained, released)
            result.ledger += [line for lines in released.rows for line in lines]
            result.clients += [_client_row(plan, trained, k) for k in range(len(trained))]
            losses.append(trained.losses)
    result.sums = {part: total for part, fold in folds.items() if (total := fold.total()) is not None}
    with measured("commit"):
        store.sync(result.memory.values())
    group.draw(stage, ahead())
    with measured("train"):  # waits for all that a GPU has to do
        if not look and not _is_finite(result):
            return None
        for row, loss in zip(result.clients, torch.cat(losses).tolist() if losses else [], strict=True):
            row["loss"] = loss
    result.said += [] if stage.programs is None else stage.programs.news()  # said once: not by a pass that is repeated
    return result


def _coded(stage: Stage) -> bool:
    """Whether a format is used that cannot hold what is not finite, and so must not meet it."""
    codec = stage.phase.codec
    ways = [codec.upload, *(own.upload for own in codec.parts.values())]
    return not all(way.lossless for way in ways if way is not None)


def _is_finite(result: CohortResult) -> bool:
    """Whether all that is returned is: a sum is not if what was added is not. A sum that overflows counts as well."""
    uploads = [*result.sums.values(), *(one for part in result.gathered.values() for one in part)]
    found = [finite({name: t[None] for name, t in upload.items()}) for upload in uploads if upload]
    return not found or bool(torch.cat(found).all())


def _outcomes(
    stage: Stage, store: Memory, plan: CohortPlan, received: Parts, way: str, on_error: str, said: list[str], look: bool
) -> Iterator[tuple[Sequence[VisitPlan], list[Outcome | None]]]:
    """Visits, trained and released, None for one that is skipped; at a time no more than are trained together."""
    size = plan.width if way == "batch" and stage.mechanism is None else 1  # units of a client fill the program
    for first in range(0, len(plan.visits), size):
        visits = plan.visits[first : first + size]
        yield visits, _finished(stage, store, plan, visits, received, way, on_error, said, look)


def _finished(
    stage: Stage,
    store: Memory,
    plan: CohortPlan,
    visits: Sequence[VisitPlan],
    received: Parts,
    way: str,
    on_error: str,
    said: list[str],
    look: bool,
) -> list[Outcome | None]:
    """Visits that are trained together, if none of them fails."""
    with measured("load"):
        memories = {visit.client: store.get(visit.memory) for visit in visits}

    def train(some: Sequence[VisitPlan]) -> list[tuple[Group, int]]:
        groups = group.train(stage, plan, some, memories, received, way)
        return [(one, k) for one in groups for k in range(len(one))]

    def let_go(some: Sequence[VisitPlan], whole: Group) -> list[Outcome]:
        part = whole if len(some) == len(whole) else whole.only(whole.plans.index(some[0]))
        released = release(stage, plan, part, received, memories, look)
        return [(part, released, k) for k in range(len(part))]

    outcomes: list[Outcome | None] = []
    for found in attempt(stage, plan, visits, train, on_error, said):
        if found is None:
            outcomes.append(None)
        elif found[1] == 0:  # the first of its group
            release_some: Callable[[Sequence[VisitPlan]], list[Outcome]] = partial(let_go, whole=found[0])
            released = attempt(stage, plan, found[0].plans, release_some, on_error, said)
            outcomes.extend(released)
    return outcomes


def _together(outcomes: Sequence[Outcome | None]) -> Iterator[tuple[Group, Released] | None]:
    """The groups of neighbouring outcomes, and None for each that is skipped."""
    for outcome in outcomes:
        if outcome is None:
            yield None
        elif outcome[2] == 0:
            yield outcome[0], outcome[1]


def _keep(store: Memory, result: CohortResult, trained: Group, released: Released) -> None:
    """What the clients remember, on the disk."""
    for visit, memory in zip(trained.plans, released.memory, strict=True):
        result.memory[visit.client] = store.write(memory) if memory else EMPTY


@timed("sum")
def _fold(
    stage: Stage,
    folds: dict[str, Fold],
    result: CohortResult,
    trained: Group,
    released: Released,
    position: int,
    width: int,
) -> None:
    """Add a group's uploads to the sums. A group of several fills an aligned block of `width` positions."""
    n = len(trained)
    for part, tensors in released.sent.items():
        rule = stage.phase.algorithm.reduce.get(part, "weighting")
        if rule == "gather":
            result.gathered.setdefault(part, []).extend(row(tensors, k) for k in range(n))
            continue
        weights = [visit.weight for visit in trained.plans] if rule == "weighting" else [1.0] * n
        weighted = tensors if all(weight == 1.0 for weight in weights) else _weighted(tensors, weights)
        if part not in folds:
            folds[part] = Fold(empty=position)
        folds[part].push(stack_sum(weighted), 1 if n == 1 else width, own=n > 1 or weighted is not tensors)


def _weighted(tensors: Weights, weights: list[float]) -> Weights:
    """Rows times weights."""
    if len(weights) == 1 or not tensors:
        return {name: t * weights[0] for name, t in tensors.items()}
    factors = sent_to(next(iter(tensors.values())).device, np.array(weights, dtype=np.float32))
    return {name: t * factors.reshape(-1, *[1] * (t.dim() - 1)) for name, t in tensors.items()}


def _client_row(plan: CohortPlan, trained: Group, k: int) -> dict[str, Any]:
    visit = trained.plans[k]
    return {
        "phase": plan.phase,
        "round": plan.round + 1,
        "client": visit.client,
        "examples": visit.examples,
        "units": len(visit.units),
        "steps": trained.items[k].steps,
        "weight": visit.weight,
        "loss": float("nan"),  # not known yet
    }
