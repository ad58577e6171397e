"""An experiment's sampling scheme as events that can be accounted, in three views of one mechanism.

    K  clients of a round of N     M  units of a visit to a client that has |G|     S  clip     sigma  noise multiplier

    averages   who sees the models alone. That a client was visited may show in them, as all its M units do, so the
               chance K/N of a visit makes a loss rarer, never smaller: an event of probability `visited`.
    messages   the server too, which knows whom it visited. Needs noise of each client's own.
    formula    as PFL-DocVQA's analysis (Tito et al. 2024, theorem B.9): a Poisson sample at the rate
               q = (K/N)·M/min|G|, with each client's own sigma. It takes the units of a client for sampled one by one.

A sample of fixed size gives up another unit for the one that is added, so two of them differ by 2S: half the sigma.
With `zero_out` the place of a unit stays and its update becomes zero; a sampled place may show, and is then `visited`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simfl.algorithms.base import Algorithm
from simfl.data.partition.manifest import Partition
from simfl.experiment import Phase, Privacy
from simfl.privacy.accounting import Event, History
from simfl.sampling import num_sampled

VIEWS = ("averages", "messages", "formula")


@dataclass(frozen=True)
class Population:
    """What accounting takes for public: how many clients there are, and the sizes that a client has."""

    num_clients: int
    groups: tuple[int, ...] = ()  # distinct numbers of groups, ascending
    examples: tuple[int, ...] = ()  # distinct numbers of examples, ascending

    @staticmethod
    def of(partition: Partition) -> Population:
        """Of a partition."""
        sizes = (tuple(int(n) for n in np.unique(counts)) for counts in (partition.num_groups, partition.sizes))
        return Population(len(partition), *sizes)


@dataclass(frozen=True)
class Scheme:
    """Who is sampled how often, in every phase."""

    privacy: Privacy
    phases: tuple[Phase, ...]
    population: Population

    def rate(self, phase: Phase) -> float:
        """q by the formula: of a client's visit times of a unit's choice at the smallest client."""
        privacy, visited = self.privacy, _visited(phase, self.population)
        if privacy.unit == "client":
            return visited
        if privacy.unit == "record":
            return min(1.0, phase.local.batch_size / max(1, min(self.population.examples)))
        if privacy.group_rate is not None:
            return visited * privacy.group_rate
        count = privacy.groups_per_client
        return visited if count is None else visited * min(1.0, count / max(1, min(self.population.groups)))

    def histories(self, sigma: float, charged: Mapping[int, int], view: str) -> list[History]:
        """What is accounted, for each kind of unit that may pay most."""
        rounds = [(self.phases[index], times) for index, times in sorted(charged.items())]
        if view == "formula":
            events = [(self._by_formula(phase, sigma), times) for phase, times in rounds]
            return [events]
        return [[(self._event(phase, size, view, sigma), n) for phase, n in rounds] for size in self._sizes()]

    def _by_formula(self, phase: Phase, sigma: float) -> Event:
        smallest = min(self.population.examples, default=1)
        steps = _steps(phase, smallest) if self.privacy.unit == "record" else 1
        return Event(sigma, self.rate(phase), steps=steps)

    def _sizes(self) -> list[int]:
        """Numbers of units that a client may have, with the protected one; the rate falls as they grow."""
        privacy, population = self.privacy, self.population
        if privacy.unit == "client":
            varies = privacy.noise == "central" and any(phase.clients_per_round is not None for phase in self.phases)
            return [population.num_clients, population.num_clients + 1][: 1 + varies]
        if privacy.unit == "record":
            smallest: dict[tuple[int, ...], int] = {}
            for n in reversed(population.examples or (1,)):
                smallest[tuple(_steps(phase, n) for phase in self.phases)] = n
            return list(smallest.values())
        count = privacy.groups_per_client
        if privacy.group_rate is not None or count is None:
            return [max(population.groups, default=1)]
        with_one_more = sorted({n + more for n in population.groups for more in (0, 1)})
        whole, drawn = [n for n in with_one_more if n <= count], [n for n in with_one_more if n > count]
        return whole[:1] + drawn[:1]

    def _event(self, phase: Phase, size: int, view: str, sigma: float) -> Event:
        privacy = self.privacy
        if view == "messages" and privacy.noise == "central" and privacy.unit != "record":
            return Event(0.0, 1.0)  # messages are bare
        visited = 1.0 if view == "messages" else _visited(phase, self.population)
        clients = num_sampled(phase, self.population.num_clients)
        if privacy.unit == "record":
            rate = min(1.0, phase.local.batch_size / size)
            return Event(sigma, rate, visited, _steps(phase, size))
        if privacy.noise == "client" and view == "averages" and clients is not None and _forgets(phase):
            sigma *= math.sqrt(clients)  # an average holds the noise of all its clients
        if privacy.unit == "group":
            return _drawn(privacy, sigma, visited, size, privacy.groups_per_client, privacy.group_rate)
        if privacy.noise == "client":
            return Event(sigma, 1.0, visited)
        return _drawn(privacy, sigma, 1.0, size, clients, phase.poisson)

    def multipliers(self, sigma: float) -> dict[str, float]:
        """Sigma of a client's message and of the average released in the first phase, by what one unit can change."""
        phase = self.phases[0]
        if self.privacy.unit == "record":
            return {"message_multiplier": sigma, "average_multiplier": sigma}
        if self.privacy.noise == "central":
            return {"message_multiplier": 0.0, "average_multiplier": sigma}
        clients = num_sampled(phase, self.population.num_clients)
        return {"message_multiplier": sigma, "average_multiplier": sigma * math.sqrt(clients or 1)}


def _forgets(phase: Phase) -> bool:
    """Whether clients keep nothing of what they sent.

    Otherwise a later average follows from single messages too, of which each has one client's noise alone: then these
    have to be accounted, though nobody sees them.
    """
    keeps = phase.local.keep_optimizer or phase.personal_params or phase.codec.upload.error_feedback
    return not keeps and type(phase.algorithm).init_client is Algorithm.init_client


def _drawn(privacy: Privacy, sigma: float, visited: float, size: int, count: int | None, rate: float | None) -> Event:
    """The event of a unit among `size`, of which `count` are drawn, or each at its own `rate`."""
    fixed = privacy.denominator == "fixed"
    if rate is not None:
        return Event(sigma, rate, visited) if fixed else Event(sigma, 1.0, visited * rate)
    if count is None or size <= count:
        return Event(sigma, 1.0, visited)
    if privacy.adjacency == "zero_out":
        return Event(sigma, 1.0, visited * count / size)
    return Event(sigma / 2, count / size, visited)


def _visited(phase: Phase, population: Population) -> float:
    """The probability that a client is visited in a round."""
    count = num_sampled(phase, population.num_clients)
    return float(phase.poisson or 1.0) if count is None else min(1.0, count / population.num_clients)


def _steps(phase: Phase, examples: int) -> int:
    local = phase.local
    return local.steps if local.steps is not None else local.epochs * -(-examples // local.batch_size)
