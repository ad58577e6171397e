"""A cohort from start to end on a worker: update_state, train, clip, encode, decode, update_state, and one sum per part.

The modes of training differ in how many visits they take at once, and in nothing else of what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from simfl.aggregation.tree import PartSums
from simfl.client_state import EMPTY, ClientStore
from simfl.protocol import Parts, Weights
from simfl.timing import Clock, measured
from simfl.training import client_updates as group
from simfl.training.client_updates import UpdateGroup
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlan, CohortPlan, NextRound, no_next_round
from simfl.training.release import ReleasedUpdates, release
from simfl.training.retry import attempt
from simfl.transport import ledger
from simfl.transport.upload import finite


class Outcome(NamedTuple):
    """A visit as one of the group that it was trained and released in."""

    group: UpdateGroup
    released: ReleasedUpdates
    place: int


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
    stage: PhaseContext,
    store: ClientStore,
    plan: CohortPlan,
    received: Parts,
    mode: str,
    on_error: str,
    ahead: NextRound = no_next_round,
) -> CohortResult:
    """Every visit of the cohort; ClientError names the client that failed, unless failures are skipped.

    Nobody looks at single uploads, but at their sums: a GPU is not asked what came out before all of its work is on
    its mode, and while it is at work the batches of the round after are drawn. If something is not finite, the visits
    are made once more, as they are pure functions, and looked at one group after the other.
    """
    cohort = _Cohort(stage, store, plan, received, mode, on_error, look=_coded(stage))
    result = cohort.trained(ahead if stage.device.type == "cuda" else no_next_round)
    if result is None:
        result = replace(cohort, look=True).trained()
    assert result is not None
    return result


@dataclass(frozen=True)
class _Cohort:
    """A cohort, and all that its training takes."""

    stage: PhaseContext
    store: ClientStore
    plan: CohortPlan
    received: Parts
    mode: str
    on_error: str
    look: bool  # whether each upload is, before anything is made of it

    def trained(self, ahead: NextRound = no_next_round) -> CohortResult | None:
        """Every visit made once; None if nobody looked and something was not finite."""
        result, sums = CohortResult(self.plan.index, self.plan.size), PartSums(self.stage.phase.algorithm.reduce)
        losses: list[Tensor] = []
        size = (
            self.plan.clients_per_batch if self.mode == "vectorized" and self.stage.mechanism is None else 1
        )  # units fill the program
        for first in range(0, len(self.plan.visits), size):
            losses += self._add(self.plan.visits[first : first + size], result, sums)
        result.sums, result.gathered = sums.totals(), sums.gathered
        with measured("commit"):
            self.store.sync(result.memory.values())
        group.draw(self.stage, ahead())
        with measured("train"):  # waits for all that a GPU has to do
            if not self.look and not _is_finite(result):
                return None
            for row, loss in zip(result.clients, torch.cat(losses).tolist() if losses else [], strict=True):
                row["loss"] = loss
        programs = self.stage.programs
        result.said += [] if programs is None else programs.news()  # said once: not by a pass that is repeated
        return result

    def _add(self, visits: Sequence[ClientPlan], result: CohortResult, sums: PartSums) -> list[Tensor]:
        """Visits that are trained together, from their memory to the cohort's sums; their losses.

        A function of its own, so that nothing of them is held while the next are trained.
        """
        losses: list[Tensor] = []
        for visit, outcome in zip(visits, self._outcomes(visits, result.said), strict=True):
            if outcome is None:
                result.skipped.append(visit.client)
                sums.skip()
            elif outcome.place == 0:
                trained, released = outcome.group, outcome.released
                weights = [own.weight for own in trained.plans]
                sums.add(released.sent, weights, self.plan.clients_per_batch, released.spare)
                with measured("commit"):
                    _keep(self.store, result, trained, released)
                result.ledger += [line for lines in released.rows for line in lines]
                result.clients += [_client_row(self.plan, trained, k) for k in range(len(trained))]
                losses.append(trained.losses)
        return losses

    def _outcomes(self, visits: Sequence[ClientPlan], said: list[str]) -> list[Outcome | None]:
        """Of each of these visits, which are trained together if none of them fails; None for one that is left out."""
        with measured("load"):
            memories = {visit.client: self.store.get(visit.memory) for visit in visits}

        def train(some: Sequence[ClientPlan]) -> list[tuple[UpdateGroup, int]]:
            groups = group.train(self.stage, self.plan, some, memories, self.received, self.mode)
            return [(one, k) for one in groups for k in range(len(one))]

        def let_go(whole: UpdateGroup, some: Sequence[ClientPlan]) -> list[Outcome]:
            part = whole if len(some) == len(whole) else whole.only(whole.plans.index(some[0]))
            released = release(self.stage, self.plan, part, self.received, memories, self.look)
            return [Outcome(part, released, k) for k in range(len(part))]

        outcomes: list[Outcome | None] = []
        for found in attempt(self.stage, self.plan, visits, train, self.on_error, said):
            if found is None:
                outcomes.append(None)
            elif found[1] == 0:  # the first of its group
                release_some: Callable[[Sequence[ClientPlan]], list[Outcome]] = partial(let_go, found[0])
                released = attempt(self.stage, self.plan, found[0].plans, release_some, self.on_error, said)
                outcomes.extend(released)
        return outcomes


def _coded(stage: PhaseContext) -> bool:
    """Whether a format is used that cannot hold what is not finite, and so must not meet it."""
    codec = stage.phase.codec
    modes = [codec.upload, *(own.upload for own in codec.parts.values())]
    return not all(mode.lossless for mode in modes if mode is not None)


def _is_finite(result: CohortResult) -> bool:
    """Whether all that is returned is: a sum is not if what was added is not. A sum that overflows counts as well."""
    uploads = [*result.sums.values(), *(one for part in result.gathered.values() for one in part)]
    found = [finite({name: t[None] for name, t in upload.items()}) for upload in uploads if upload]
    return not found or bool(torch.cat(found).all())


def _keep(store: ClientStore, result: CohortResult, trained: UpdateGroup, released: ReleasedUpdates) -> None:
    """What the clients update_state, on the disk."""
    for visit, memory in zip(trained.plans, released.memory, strict=True):
        result.memory[visit.client] = store.write(memory) if memory else EMPTY


def _client_row(plan: CohortPlan, trained: UpdateGroup, k: int) -> dict[str, Any]:
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
