"""Canaries: artificial privacy units with known updates, of which independent coins decide whether they take part.

A canary is a group of a client, or a client, without examples, so it is sampled like any other unit by the code of real
rounds. If its coin says so, its update, which is zero, is replaced by ten times the clip norm along a direction of its
own, before the clip. Directions are orthogonal: each uses coordinates that no other one uses, one (a Dirac canary) or
several with random signs. Everything after the update is the code of real rounds: clip, sum, noise, division, codec,
aggregation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch

from simfl.data.partition.manifest import Partition
from simfl.privacy.mechanism import Mechanism, Release
from simfl.privacy.units import Clipped
from simfl.protocol import AggregatedUpdates, Parts, Weights
from simfl.seeds import SeedName, rng
from simfl.training.plan import ClientPlan
from simfl.weights import add, subtract

EXCESS = 10.0  # norm of a canary's update, in clip norms
CHUNK_VALUES = 2**25  # of dense updates that are in memory at a time


@dataclass(frozen=True)
class Canaries(ABC):
    """The canaries of an audit, in the order of their owners.

    Attributes:
        owners: Client that holds each canary, or that it is, int64 [m].
        numbers: Number of each canary among the groups of its owner, int64 [m]; 0 where canaries are clients.
        included: Coins, bool [m].
    """

    owners: np.ndarray
    numbers: np.ndarray
    included: np.ndarray

    def __len__(self) -> int:
        return len(self.owners)

    @staticmethod
    def places(partition: Partition, unit: str, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return owners and numbers of canaries that are added to a partition."""
        clients = len(partition)
        if unit == "client":
            return clients + np.arange(number), np.zeros(number, np.int64)
        owners = np.sort(np.arange(number) % clients)
        return owners, partition.num_groups[owners] + np.arange(number) - np.searchsorted(owners, owners)

    @property
    @abstractmethod
    def has_known_updates(self) -> bool:
        """Return whether the update of a canary is known before it is trained."""

    @abstractmethod
    def start(self, received: Weights) -> None:
        """Begin a round with the trained tensors that clients receive."""

    @abstractmethod
    def scores(self, seen: Weights, which: np.ndarray | None = None) -> np.ndarray:
        """Return the score of each canary, or of some, on an update, float64 [n]."""

    @abstractmethod
    def final_scores(self, first: Weights, last: Weights) -> np.ndarray:
        """Return the score of each canary on the models before and after the audited rounds, float64 [m]."""

    def sampled(self, plans: Sequence[ClientPlan]) -> np.ndarray:
        """Return the canaries that take part in a round, whether or not their coin includes them, int64."""
        named = {plan.client: plan.unit_names or (0,) for plan in plans}
        pairs = zip(self.owners.tolist(), self.numbers.tolist(), strict=True)
        return np.array([k for k, (owner, number) in enumerate(pairs) if number in named.get(owner, ())], np.int64)

    def of(self, client: int) -> np.ndarray:
        """Return the canaries of a client, int64, ascending."""
        return np.flatnonzero(self.owners == client)

    def _some(self, which: np.ndarray | None) -> list[int]:
        return list(range(len(self))) if which is None else which.tolist()


@dataclass(frozen=True)
class DirectionCanaries(Canaries):
    """Canaries whose updates are orthogonal directions.

    Attributes:
        tensors: Name of each trained tensor and its number of values, in order.
        coordinates: Coordinates of each direction in the concatenated tensors, int64 [m, b].
        signs: Signs of these coordinates, float32 [m, b].
    """

    tensors: Mapping[str, int]
    coordinates: np.ndarray
    signs: np.ndarray

    @staticmethod
    def draw(
        partition: Partition, unit: str, number: int, tensors: Mapping[str, int], width: int, seed: int
    ) -> DirectionCanaries:
        """Draw owners, coins and directions.

        Args:
            partition: The partition without canaries.
            unit: `group` or `client`.
            number: Number of canaries m.
            tensors: Number of values of each trained tensor; m·`width` must not exceed their sum.
            width: Coordinates of a direction b.
            seed: Seed of coins and directions.
        """
        owners, numbers = Canaries.places(partition, unit, number)
        generator, total = rng(seed, "canaries"), sum(tensors.values())
        coordinates = generator.choice(total, size=(number, width), replace=False)
        signs = generator.choice(np.array([-1.0, 1.0], np.float32), size=(number, width))
        included = generator.random(number) < 0.5
        return DirectionCanaries(owners, numbers, included, tensors, coordinates, signs)

    @property
    def has_known_updates(self) -> bool:
        """Return whether the update of a canary is known before it is trained."""
        return True

    def start(self, received: Weights) -> None:
        """Do nothing: directions do not depend on the model."""

    def final_scores(self, first: Weights, last: Weights) -> np.ndarray:
        """Return the inner product of the model's change with each direction, float64 [m]."""
        return self.scores(subtract(last, first))

    def updates(self, which: np.ndarray, norm: float, like: Weights) -> Weights:
        """Return the updates of some canaries before the clip, [n, …] in every tensor."""
        rows = torch.zeros(len(which), sum(self.tensors.values()))
        values = torch.from_numpy(self.signs[which]) * (norm / self.coordinates.shape[1] ** 0.5)
        rows.scatter_(1, torch.from_numpy(self.coordinates[which]), values)
        parts = rows.split(list(self.tensors.values()), dim=1)
        return {
            name: part.reshape(len(which), *like[name].shape).to(like[name])
            for name, part in zip(self.tensors, parts, strict=True)
        }

    def scores(self, seen: Weights, which: np.ndarray | None = None) -> np.ndarray:
        """Return the inner product of an update with the direction of each canary, or of some, float64 [n]."""
        flat = np.concatenate([seen[name].detach().cpu().double().reshape(-1).numpy() for name in self.tensors])
        here = slice(None) if which is None else which
        products: np.ndarray = (flat[self.coordinates[here]] * self.signs[here]).sum(1)
        return products / self.coordinates.shape[1] ** 0.5


def with_canaries(partition: Partition, canaries: Canaries, unit: str) -> Partition:
    """Return a partition in which each canary is a group, or a client, without examples."""
    if unit == "client":
        return partition.with_empty_clients(len(canaries))
    counts = np.bincount(canaries.owners, minlength=len(partition)).tolist()
    return partition.with_empty_groups([[f"canary {k}.{i}" for i in range(n)] for k, n in enumerate(counts)])


class RoundRecord:
    """The canaries of the current round, and the average that the mechanism released in it."""

    def __init__(self) -> None:
        self.by_client: dict[int, tuple[list[int], np.ndarray]] = {}
        self.average: Weights = {}


@dataclass(frozen=True)
class CanaryMechanism(Mechanism):
    """A privacy mechanism whose clients hold canaries; its clip, noise and divisors are those of `Mechanism`.

    Attributes:
        canaries: The canaries.
        record: Record of the current round.
    """

    canaries: Canaries | None = None
    record: RoundRecord = field(default_factory=RoundRecord)

    @staticmethod
    def of(mechanism: Mechanism, canaries: Canaries) -> CanaryMechanism:
        """Return a mechanism with canaries."""
        own = {one.name: getattr(mechanism, one.name) for one in fields(Mechanism)}
        return CanaryMechanism(**own, canaries=canaries)

    def start_round(self, plans: Sequence[ClientPlan]) -> np.ndarray:
        """Note which canaries take part in a round, and return them."""
        assert self.canaries is not None
        which = self.canaries.sampled(plans)
        position = {plan.client: {name: k for k, name in enumerate(plan.unit_names or (0,))} for plan in plans}
        self.record.by_client = {}
        for k in which[self.canaries.included[which]].tolist():
            owner, number = int(self.canaries.owners[k]), int(self.canaries.numbers[k])
            positions, found = self.record.by_client.get(owner, ([], np.zeros(0, np.int64)))
            self.record.by_client[owner] = ([*positions, position[owner][number]], np.append(found, k))
        return which

    def release(self, units: Clipped | None, received: Parts, name: tuple[SeedName, ...]) -> Release:
        """Return the message of one client, with the updates of its canaries."""
        positions, which = self.record.by_client.get(int(name[-1]), ([], np.zeros(0, np.int64)))
        if units is not None and len(which) and isinstance(self.canaries, DirectionCanaries):
            units = self._with_canaries(units, received, positions, which)
        return super().release(units, received, name)

    def _with_canaries(self, units: Clipped, received: Parts, positions: list[int], which: np.ndarray) -> Clipped:
        assert isinstance(self.canaries, DirectionCanaries)
        clip = self.clip_of(received)
        assert clip is not None
        total, norms = units.total, units.norms.clone()
        size = max(1, CHUNK_VALUES // sum(self.canaries.tensors.values()))
        for first in range(0, len(which), size):
            here = slice(first, first + size)
            updates = self.canaries.updates(which[here], EXCESS * clip, received["weights"])
            clipped = self.clipped(updates, received)
            total = add(total, clipped.total)
            norms[positions[here]] = clipped.norms
        return replace(units, total=total, norms=norms)

    def averaged(
        self,
        means: AggregatedUpdates | None,
        units: Sequence[int],
        expected: float,
        received: Parts,
        name: tuple[SeedName, ...],
    ) -> AggregatedUpdates | None:
        """Return the average that the server steps with, and note it."""
        found = super().averaged(means, units, expected, received, name)
        self.record.average = {} if found is None else found.means["weights"]
        return found
