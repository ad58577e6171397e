"""The sampling scheme of an experiment as events for accounting, in three views of one mechanism.

    K  clients of a round, of N     M  units of a client in a round, of |G|     S  clip norm     sigma  noise multiplier

    averages   An observer sees the models. They may reveal that a client was sampled, since all its M units contribute,
               so the probability K/N makes a privacy loss rarer, not smaller: it is the `client_rate` of the event.
    messages   The server is an observer too; it knows the sampled clients. Needs noise by each client.
    formula    The analysis of PFL-DocVQA (Tito et al. 2024, theorem B.9): a Poisson sample at the rate
               q = (K/N)·M/min|G| with the sigma of one client. It assumes that units are sampled independently.

In a sample of fixed size, an added unit replaces another one, so two samples differ by up to 2S: half the sigma. With
`zero_out` the slot of a unit remains and its update becomes zero; that the slot was sampled may be visible, and its
probability is then part of `client_rate`.
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
    """The sizes that accounting assumes to be public: the number of clients, and numbers of groups and examples."""

    num_clients: int
    groups: tuple[int, ...] = ()  # distinct numbers of groups per client, ascending
    examples: tuple[int, ...] = ()  # distinct numbers of examples per client, ascending

    @staticmethod
    def of(partition: Partition) -> Population:
        """Build a `Population` from a partition."""
        sizes = (tuple(int(n) for n in np.unique(counts)) for counts in (partition.num_groups, partition.sizes))
        return Population(len(partition), *sizes)


@dataclass(frozen=True)
class Scheme:
    """The sampling of clients and units in every phase."""

    privacy: Privacy
    phases: tuple[Phase, ...]
    population: Population

    def rate(self, phase: Phase) -> float:
        """Return q by the formula: the sampling rate of a client times that of a unit of the smallest client."""
        privacy, client_rate = self.privacy, _client_rate(phase, self.population)
        if privacy.unit == "client":
            return client_rate
        if privacy.unit == "record":
            return min(1.0, phase.local.batch_size / max(1, min(self.population.examples)))
        if privacy.group_rate is not None:
            return client_rate * privacy.group_rate
        count = privacy.groups_per_client
        return client_rate if count is None else client_rate * min(1.0, count / max(1, min(self.population.groups)))

    def histories(self, sigma: float, charged: Mapping[int, int], view: str) -> list[History]:
        """Return the events to account for, for each kind of unit that may have the highest cost."""
        rounds = [(self.phases[index], times) for index, times in sorted(charged.items())]
        if view == "formula":
            events = [(self._formula_event(phase, sigma), times) for phase, times in rounds]
            return [events]
        return [[(self._event(phase, size, view, sigma), n) for phase, n in rounds] for size in self._sizes()]

    def _formula_event(self, phase: Phase, sigma: float) -> Event:
        smallest = min(self.population.examples, default=1)
        steps = _steps(phase, smallest) if self.privacy.unit == "record" else 1
        return Event(sigma, self.rate(phase), steps=steps)

    def _sizes(self) -> list[int]:
        """Return numbers of units that a client may have, including the protected one; a larger one lowers the rate."""
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
        complete, sampled = [n for n in with_one_more if n <= count], [n for n in with_one_more if n > count]
        return complete[:1] + sampled[:1]

    def _event(self, phase: Phase, size: int, view: str, sigma: float) -> Event:
        privacy = self.privacy
        if view == "messages" and privacy.noise == "central" and privacy.unit != "record":
            return Event(0.0, 1.0)  # messages carry no noise
        client_rate = 1.0 if view == "messages" else _client_rate(phase, self.population)
        clients = num_sampled(phase, self.population.num_clients)
        if privacy.unit == "record":
            rate = min(1.0, phase.local.batch_size / size)
            return Event(sigma, rate, client_rate, _steps(phase, size))
        if privacy.noise == "client" and view == "averages" and clients is not None and _keeps_no_upload(phase):
            sigma *= math.sqrt(clients)  # an average holds the noise of all its clients
        if privacy.unit == "group":
            return _sampled(privacy, sigma, client_rate, size, privacy.groups_per_client, privacy.group_rate)
        if privacy.noise == "client":
            return Event(sigma, 1.0, client_rate)
        return _sampled(privacy, sigma, 1.0, size, clients, phase.poisson)

    def multipliers(self, sigma: float) -> dict[str, float]:
        """Return noise multipliers of a client's message and of the released average, in the first phase."""
        phase = self.phases[0]
        if self.privacy.unit == "record":
            return {"message_multiplier": sigma, "average_multiplier": sigma}
        if self.privacy.noise == "central":
            return {"message_multiplier": 0.0, "average_multiplier": sigma}
        clients = num_sampled(phase, self.population.num_clients)
        return {"message_multiplier": sigma, "average_multiplier": sigma * math.sqrt(clients or 1)}


def _keeps_no_upload(phase: Phase) -> bool:
    """Return whether the clients' states are independent of their earlier uploads.

    Otherwise a later average depends on single messages, each with the noise of one client only. These must then be
    accounted for, although no observer sees them.
    """
    kept = phase.local.keep_optimizer or phase.personal_params or phase.codec.upload.error_feedback
    return not kept and type(phase.algorithm).init_client is Algorithm.init_client


def _sampled(
    privacy: Privacy, sigma: float, client_rate: float, size: int, count: int | None, rate: float | None
) -> Event:
    """Return the event of one of `size` units, of which `count` are sampled, or each at the rate `rate`."""
    fixed = privacy.denominator == "fixed"
    if rate is not None:
        return Event(sigma, rate, client_rate) if fixed else Event(sigma, 1.0, client_rate * rate)
    if count is None or size <= count:
        return Event(sigma, 1.0, client_rate)
    if privacy.adjacency == "zero_out":
        return Event(sigma, 1.0, client_rate * count / size)
    return Event(sigma / 2, count / size, client_rate)


def _client_rate(phase: Phase, population: Population) -> float:
    """Return the probability that a client is sampled in a round."""
    count = num_sampled(phase, population.num_clients)
    return float(phase.poisson or 1.0) if count is None else min(1.0, count / population.num_clients)


def _steps(phase: Phase, examples: int) -> int:
    local = phase.local
    return local.steps if local.steps is not None else local.epochs * -(-examples // local.batch_size)
