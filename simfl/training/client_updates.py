"""Visits that are trained together, from what their clients update_state to their last local step. Tensors are [n, …].

Nothing here is done once for each client that can be done once for all: a round of a small model has more clients than
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from simfl.aggregation.tree import TreeReducer
from simfl.algorithms.base import Algorithm
from simfl.errors import ConfigError
from simfl.privacy.mechanism import Mechanism, Release
from simfl.privacy.units import Clipped
from simfl.protocol import ClientUpdate, Parts, State, Weights
from simfl.seeds import seed_for
from simfl.stacking import map_rows, stack_rows, take_row_like
from simfl.timing import timed
from simfl.training import sequential as loop
from simfl.training import vectorized as batch
from simfl.training.context import PhaseContext, TrainingResult, TrainingUnit, visits
from simfl.training.initial_state import InitialState, on_device
from simfl.training.plan import ClientPlan, CohortPlan, batches, places, poisson_batches, rates

EMPTY_UNIT = np.empty(0, np.int64)  # of a client that was visited and had no unit sampled
MODES: dict[str, Callable[..., TrainingResult]] = {"sequential": loop.train, "vectorized": batch.train}


@dataclass(frozen=True)
class UpdateGroup:
    """After the last local step."""

    plans: tuple[ClientPlan, ...]
    items: tuple[TrainingUnit, ...]
    visit: ClientUpdate
    upload: Parts
    trained: Weights
    buffers: Weights
    state: State  # as the algorithm's `observe` left it; what not all clients have is in `before` alone
    before: tuple[State, ...]  # of each client as the visit began: what is beyond its shapes in `state` is padding
    optimizer: tuple[tuple[State, ...], ...]  # of each client, one a micro-step; empty if it is not kept
    losses: Tensor  # [n]
    release: Release | None = None  # of a visit whose units are hidden
    private_steps: int = 0  # local steps with a gradient that was clipped and noised example by example

    def __len__(self) -> int:
        return len(self.plans)

    def state_of(self, k: int) -> State:
        """Of one client."""
        return {
            key: take_row_like(self.state[key], k, group) if key in self.state else group
            for key, group in self.before[k].items()
        }

    def only(self, k: int) -> UpdateGroup:
        """One client as a group of its own."""
        if len(self) == 1:
            return self
        here = slice(k, k + 1)

        def rows(tensors: Weights) -> Weights:
            return {name: t[here] for name, t in tensors.items()}

        state = {key: {name: t[None] for name, t in group.items()} for key, group in self.state_of(k).items()}
        return replace(
            self,
            plans=self.plans[here],
            items=self.items[here],
            visit=ClientUpdate(*(t[here] for t in self.visit)),
            upload={part: rows(tensors) for part, tensors in self.upload.items()},
            trained=rows(self.trained),
            buffers=rows(self.buffers),
            state=state,
            before=self.before[here],
            optimizer=self.optimizer[here],
            losses=self.losses[here],
        )


@timed("train")
def train(
    stage: PhaseContext,
    plan: CohortPlan,
    plans: Sequence[ClientPlan],
    memories: dict[int, State],
    received: Parts,
    mode: str,
) -> list[UpdateGroup]:
    """All these visits: one group, or where each client releases its units as one message, a group for each client."""
    if stage.mechanism is None or stage.mechanism.unit == "record":
        items = [_item(stage, plan, visit, *_units(visit)[0]) for visit in plans]
        return list(_in_chunks(stage, plan, items, list(plans), memories, received, mode))
    return [_hidden(stage, plan, visit, memories, received, mode) for visit in plans]


def _hidden(
    stage: PhaseContext, plan: CohortPlan, visit: ClientPlan, memories: dict[int, State], received: Parts, mode: str
) -> UpdateGroup:
    """One client's units, trained apart: each one's whole update clipped, then summed, noised and divided.

    What the client remembers may follow from the release alone, so `trained` is what the server could know of it.
    """
    mechanism = stage.mechanism
    assert mechanism is not None
    items = [_item(stage, plan, visit, unit, rows) for unit, rows in _units(visit)]
    groups = _in_chunks(stage, plan, items, [visit] * len(items), memories, received, mode)
    units, first, losses = _summed(mechanism, groups, received)
    name = (plan.phase, plan.round, visit.client)
    release = mechanism.release(units if visit.units else None, received, name)
    parts = {part: {name: t[None] for name, t in tensors.items()} for part, tensors in release.parts.items()}
    known = {name: received["weights"][name] + t for name, t in parts["weights"].items()}
    return replace(
        first,
        upload=parts,
        trained={**first.trained, **known},
        optimizer=((),),
        losses=losses.double().mean()[None],
        release=replace(release, parts=parts),
    )


def _summed(
    mechanism: Mechanism, groups: Iterator[UpdateGroup], received: Parts
) -> tuple[Clipped, UpdateGroup, Tensor]:
    """Units clipped and added up as they come, the first one as a group of its own, and all losses."""
    fold, norms, losses, first = TreeReducer(), list[Tensor](), list[Tensor](), None
    for group in groups:
        units = mechanism.clipped(group.upload["weights"], received)
        fold.push(units.total, len(group))
        norms.append(units.norms)
        losses.append(group.losses)
        first = first or group.only(0)
    total = fold.total()
    assert first is not None
    assert total is not None
    return Clipped(total, torch.cat(norms)), first, torch.cat(losses)


def _units(visit: ClientPlan) -> list[tuple[int, np.ndarray]]:
    """The name and the rows of each unit; of a visit without any, one that has no examples."""
    return list(zip(visit.names or range(len(visit.units)), visit.units, strict=True)) or [(-1, EMPTY_UNIT)]


def _in_chunks(
    stage: PhaseContext,
    plan: CohortPlan,
    items: list[TrainingUnit],
    owners: list[ClientPlan],
    memories: dict[int, State],
    received: Parts,
    mode: str,
) -> Iterator[UpdateGroup]:
    """As many items at a time as the mode takes, trained when they are asked for."""
    size = len(items) if mode == "vectorized" else 1
    for first in range(0, len(items), size):
        yield _trained(stage, plan, items[first : first + size], owners[first : first + size], memories, received, mode)


def draw(stage: PhaseContext, plans: Sequence[CohortPlan]) -> None:
    """The batches of these cohorts, kept until they are trained; those that were kept before are dropped."""
    if plans:
        stage.drawn.clear()
    for plan in plans:
        for visit in plan.visits:
            for unit, rows in _units(visit):
                stage.drawn[plan.round, visit.client, unit] = _drawn(stage, plan, visit, unit, rows)


def _item(stage: PhaseContext, plan: CohortPlan, visit: ClientPlan, unit: int, rows: np.ndarray) -> TrainingUnit:
    ahead = stage.drawn.pop((plan.round, visit.client, unit), None)
    return _drawn(stage, plan, visit, unit, rows) if ahead is None else ahead


def _drawn(stage: PhaseContext, plan: CohortPlan, visit: ClientPlan, unit: int, rows: np.ndarray) -> TrainingUnit:
    phase, name = stage.phase, (stage.seed, "visit", plan.phase, plan.round, visit.client, unit)
    draw = poisson_batches if stage.mechanism is not None and stage.mechanism.unit == "record" else batches
    table = draw(rows, phase.local, *name, steps=visit.steps)
    speed = rates(phase.local, phase.rounds, plan.round, len(table))
    place = places(rows, table) if phase.algorithm.needs_positions else None
    return TrainingUnit(visit.client, unit, table, speed, seed_for(*name) >> 1, visit.examples, place)


def _trained(
    stage: PhaseContext,
    plan: CohortPlan,
    items: list[TrainingUnit],
    owners: list[ClientPlan],
    memories: dict[int, State],
    received: Parts,
    mode: str,
) -> UpdateGroup:
    algorithm, n = stage.phase.algorithm, len(items)
    visit = visits(stage, items, plan.round, [o.relative for o in owners], plan.num_sampled)
    beginning = InitialState(stage, received, visit, [on_device(memories[item.client], stage.device) for item in items])
    states, start = beginning.states, beginning.weights()
    state = {key: stack_rows([s[key] for s in states]) for key in states[0] if all(key in s for s in states)}
    trained = MODES[mode](stage, items, start, beginning.buffers(), received, state, visit, beginning.kept)
    visit = visit._replace(step=visit.num_steps.to(torch.int64))  # all local steps are taken
    uploads = _uploads(algorithm, n)(trained.weights, received, trained.state, visit)
    _check_parts(stage, uploads)
    if stage.programs is not None:
        uploads = _apart(uploads, [trained.weights, *trained.state.values()])
    losses = trained.sums / trained.counts.clamp_min(1e-12)
    kept = trained.optimizer
    return UpdateGroup(
        tuple(owners),
        tuple(items),
        visit,
        uploads,
        trained.weights,
        trained.buffers,
        trained.state,
        tuple(states),
        tuple(tuple(kept[k::n]) for k in range(n)),
        losses,
        private_steps=trained.private_steps,
    )


def _uploads(algorithm: Algorithm, n: int) -> Callable[..., Parts]:
    """What n clients send. The default is a difference of tensors, whether or not they are stacked."""
    if type(algorithm).upload is Algorithm.upload:
        return algorithm.upload
    return lambda trained, received, state, visit: map_rows(lambda t, s, v: algorithm.upload(t, received, s, v), n)(
        trained, state, visit
    )


def _check_parts(stage: PhaseContext, uploads: Parts) -> None:
    """Raise ConfigError for an uploaded part that the algorithm's `reduce` does not name."""
    algorithm = stage.phase.algorithm
    for part in uploads:
        if part not in algorithm.reduce:
            name, allowed = type(algorithm).__name__, ", ".join(algorithm.reduce)
            raise ConfigError(
                f"phases.{stage.index}.algorithm: {name} uploads the part {part!r}, which its `reduce` does not name;"
                f" it names {allowed}"
            )


def _apart(uploads: Parts, lent: list[Weights]) -> Parts:
    """The uploads, copied where they lie in tensors that the next visits of a program will be trained in."""
    places = {t.untyped_storage().data_ptr() for tensors in lent for t in tensors.values()}

    def own(tensor: Tensor) -> Tensor:
        return tensor.clone() if tensor.untyped_storage().data_ptr() in places else tensor

    return {part: {name: own(t) for name, t in tensors.items()} for part, tensors in uploads.items()}
