"""The sampling scheme of an experiment as events for accounting, in three views of one mechanism.

    K  clients of a round, of N     M  units of a client in a round, of |G|     S  clip norm     sigma  noise multiplier

    averages   An observer sees the models. They may reveal that a client was sampled, since all its M units contribute,
               so the probability K/N makes a privacy loss rarer, not smaller: it is the `client_rate` of the event.
    messages   The server is an observer too; it knows the sampled clients. Needs noise by each client.
    formula    The analysis of PFL-DocVQA (Tito et al. 2024, theorem B.9): a Poisson sample at the rate
               q = (K/N)·M/min|G| with the sigma of one client. It assumes that units are sampled independently.

Where clients add noise and some may leave a round of secure aggregation, an average has the noise of the fewest that
its protocol accepts.

In a sample of fixed size, an added unit replaces another one, so two samples differ by up to 2S: half the sigma. With
`zero_out` the slot of a unit remains and its update becomes zero; that the slot was sampled may be visible, and its
probability is then part of `client_rate`.

With correlated noise, clients take turns, and all rounds of a phase are one mechanism; see `correlated`.

`add_remove` is claimed only where the release hides the number of units, because every divisor, rate and number of
steps is public: for clients with `min_clients`, for records with `min_examples`. Elsewhere `zero_out` is claimed, and
the cost is the higher one of both. A declared bound allows every number from itself on, and the worst of them counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simfl.algorithms.base import Algorithm
from simfl.data.partition.manifest import Partition
from simfl.experiment import Phase, Privacy, SecureAggregation
from simfl.privacy.accounting import Event, History
from simfl.privacy.correlated import Correlation
from simfl.privacy.discrete import DiscreteNoise, fewest_survivors
from simfl.sampling import num_sampled

VIEWS = ("averages", "messages", "formula")


@dataclass(frozen=True)
class Population:
    """The sizes that accounting assumes to be public: the number of clients, and numbers of groups and examples."""

    num_clients: int
    groups: tuple[int, ...] = ()  # distinct numbers of groups per client, ascending
    examples: tuple[int, ...] = ()  # distinct numbers of examples per client, ascending
    num_groups: int | None = None  # of all clients together; None: not known
    num_examples: int | None = None  # of all clients together; None: not known

    @staticmethod
    def of(partition: Partition) -> Population:
        """Build a `Population` from a partition."""
        groups, examples = (
            tuple(int(n) for n in np.unique(counts)) for counts in (partition.num_groups, partition.sizes)
        )
        return Population(len(partition), groups, examples, int(partition.num_groups.sum()), int(partition.sizes.sum()))

    def num_units(self, unit: str) -> int | None:
        """Return the number of privacy units; None if it is not known."""
        return {"client": self.num_clients, "group": self.num_groups, "record": self.num_examples}[unit]


@dataclass(frozen=True)
class Scheme:
    """The sampling of clients and units in every phase."""

    privacy: Privacy
    phases: tuple[Phase, ...]
    population: Population
    discrete: tuple[DiscreteNoise, ...] = ()  # integer noise of each phase, where each client adds a share of it
    secure: SecureAggregation | None = None  # its clients may leave a round, and their noise with them

    @property
    def adjacency(self) -> str:
        """The adjacency that is claimed: `add_remove` needs a release that hides the number of units."""
        privacy = self.privacy
        hides = {
            "group": True,
            "record": privacy.min_examples is not None,
            "client": privacy.min_clients is not None and all(map(_has_public_sample, self.phases)),
        }
        return privacy.adjacency if hides[privacy.unit] else "zero_out"

    @property
    def least_clients(self) -> int:
        """The smallest number of clients that is public: the declared bound or, without it, their number."""
        return self.privacy.min_clients or self.population.num_clients

    def rate(self, phase: Phase) -> float:
        """Return q by the formula: the sampling rate of a client times that of a unit of the smallest client."""
        privacy, client_rate = self.privacy, _client_rate(phase, self.least_clients)
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
        if self.privacy.factorization is not None:
            return self._correlated(sigma, charged, view)
        rounds = [(self.phases[index], times) for index, times in sorted(charged.items())]
        if view == "formula":
            events = [(self._formula_event(phase, sigma), times) for phase, times in rounds]
            return [events]
        found = (
            tuple((self._event(phase, size, view, sigma, adjacency), n) for phase, n in rounds)
            for adjacency in dict.fromkeys((self.privacy.adjacency, self.adjacency))
            for size in self._sizes(adjacency)
        )
        return list(dict.fromkeys(found))

    def _correlated(self, sigma: float, charged: Mapping[int, int], view: str) -> list[History]:
        """Return the events of correlated noise, for the unit that changes a release most."""
        if view != "averages":
            return [[(Event(0.0, 1.0), sum(charged.values()))]]  # messages have no noise, and no formula covers it
        events = [
            event
            for index, rounds in sorted(charged.items())
            for event in self.correlation(index).events(sigma / self._replaced, rounds, self.privacy.unit)
        ]
        return [events]

    @property
    def _replaced(self) -> float:
        """Largest change of a sum in clip norms: 2 where an added group takes the place of another one."""
        if self.privacy.unit != "group":
            return 1.0
        sizes = self._sizes(self.privacy.adjacency)
        events = (self._event(self.phases[0], size, "averages", 1.0, self.privacy.adjacency) for size in sizes)
        return max(1.0 / event.noise_multiplier for event in events)

    def correlation(self, index: int) -> Correlation:
        """Return the correlated noise of a phase."""
        found = Correlation.of(self.privacy, self.phases, index, self.population.num_clients)
        assert found is not None
        return found

    def _formula_event(self, phase: Phase, sigma: float) -> Event:
        smallest = min(self.population.examples, default=1)
        steps = _steps(phase, smallest) if self.privacy.unit == "record" else 1
        return Event(sigma, self.rate(phase), steps=steps)

    def _sizes(self, adjacency: str) -> list[int]:
        """Return numbers of units of which one may have the highest cost, each of the larger one of two neighbours.

        A larger number lowers the rate, so the smallest one of each kind suffices.
        """
        privacy, population = self.privacy, self.population
        if privacy.unit == "record":
            return self._numbers_of_records(adjacency)
        if privacy.unit == "client":
            counts = {num_sampled(phase, population.num_clients) for phase in self.phases} - {None}
            found = (population.num_clients,) if privacy.min_clients is None else (privacy.min_clients,)
            sizes = {n for k in counts or {None} for n in _worst_sizes(found, k, privacy.min_clients is not None)}
            return sorted(sizes) if privacy.noise == "central" and adjacency == "add_remove" else [found[0]]
        if privacy.group_rate is not None or privacy.groups_per_client is None:
            return [max(population.groups, default=1)]
        return _worst_sizes(population.groups, privacy.groups_per_client, privacy.min_groups is not None)

    def _numbers_of_records(self, adjacency: str) -> list[int]:
        """Return the smallest number of records for each number of steps; by `min_examples`, both are constant."""
        found, is_constant = self.population.examples or (1,), self.privacy.min_examples is not None
        more = (0,) if is_constant or adjacency == "zero_out" else (-1, 0, 1)
        smallest: dict[tuple[int, ...], int] = {}
        for n in sorted({max(1, n + k) for n in found for k in more}, reverse=True):
            smallest[tuple(_steps(phase, n) for phase in self.phases)] = n
        return list(smallest.values())

    def _event(self, phase: Phase, size: int, view: str, sigma: float, adjacency: str) -> Event:
        privacy = self.privacy
        if privacy.noise == "distributed":  # the server sees the sum; it knows who is sampled
            rate = 1.0 if view == "messages" else _client_rate(phase, self.least_clients)
            return Event(sigma, 1.0, rate, discrete=self.discrete[self.phases.index(phase)])
        if view == "messages" and privacy.noise == "central" and privacy.unit != "record":
            return Event(0.0, 1.0)  # messages carry no noise
        client_rate = 1.0 if view == "messages" else _client_rate(phase, self.least_clients)
        clients = num_sampled(phase, self.population.num_clients)
        if privacy.unit == "record":
            rate = min(1.0, phase.local.batch_size / size)
            return Event(sigma, rate, client_rate, _steps(phase, size))
        if privacy.noise == "client" and view == "averages" and _keeps_no_upload(phase):
            sigma *= self._combined_noise(phase)
        if privacy.unit == "group":
            sampled = Sample(size, privacy.groups_per_client, privacy.group_rate)
            return _sampled(privacy, sigma, client_rate, sampled, adjacency)
        if privacy.noise == "client":
            return Event(sigma, 1.0, client_rate)
        return _sampled(privacy, sigma, 1.0, Sample(size, clients, phase.poisson), adjacency)

    def multipliers(self, sigma: float) -> dict[str, float]:
        """Return noise multipliers of a client's message and of the released average, in the first phase."""
        phase = self.phases[0]
        if self.privacy.unit == "record":
            return {"message_multiplier": sigma, "average_multiplier": sigma}
        if self.privacy.noise in ("central", "distributed"):
            return {"message_multiplier": 0.0, "average_multiplier": sigma}
        return {"message_multiplier": sigma, "average_multiplier": sigma * self._combined_noise(phase)}

    def fewest_uploads(self, phase: Phase) -> int:
        """Return the fewest uploads of which an average is released; 1 if their number is random."""
        count = num_sampled(phase, self.least_clients)
        if count is None:
            return 1
        if self.secure is None:
            return min(count, self.least_clients)
        return fewest_survivors(self.secure, phase, self.least_clients)

    def _combined_noise(self, phase: Phase) -> float:
        """Return the noise of an average over clients, in units of the noise of one client.

        Where each client divides by its own number m of units, this is m_min·√(Σ 1/m²) for a unit of the client with
        the fewest; at worst, all others have the most.
        """
        privacy, clients = self.privacy, self.fewest_uploads(phase)
        if privacy.unit != "group" or privacy.denominator == "fixed":
            return math.sqrt(clients)
        if privacy.group_rate is not None:  # numbers at random, which may be far apart
            return 1.0
        limit = privacy.groups_per_client or math.inf
        fewest = min(*self.population.groups, limit)
        most = limit if privacy.min_groups is not None else min(max(self.population.groups), limit)
        return math.sqrt(1 + (clients - 1) * (fewest / most) ** 2)


def _worst_sizes(found: tuple[int, ...], count: int | None, is_bound: bool) -> list[int]:
    """Return the smallest number of units of which all are sampled, and the smallest of which `count` are sampled.

    Args:
        found: Numbers of units of the data; each neighbour may have one more.
        count: Number of sampled units; None: all, or each at a rate.
        is_bound: Whether `found` is a public lower bound, from which on every number is possible.
    """
    if count is None:
        return [min(found)]
    numbers = {n + more for n in found for more in (0, 1)} | ({max(min(found), count + 1)} if is_bound else set())
    complete, sampled = (sorted(n for n in numbers if (n > count) == more) for more in (False, True))
    return complete[:1] + sampled[:1]


def _keeps_no_upload(phase: Phase) -> bool:
    """Return whether the clients' states are independent of their earlier uploads.

    Otherwise a later average depends on single messages, each with the noise of one client only. These must then be
    accounted for, although no observer sees them.
    """
    kept = phase.local.keep_optimizer or phase.personal_params or phase.codec.upload.error_feedback
    return not kept and type(phase.algorithm).init_client is Algorithm.init_client


@dataclass(frozen=True)
class Sample:
    """A sample of units."""

    size: int  # units to sample from
    count: int | None  # units that are sampled; None: all
    rate: float | None  # rate at which each is sampled, in place of `count`


def _sampled(privacy: Privacy, sigma: float, client_rate: float, sample: Sample, adjacency: str) -> Event:
    """Return the event of one of the units that are sampled from."""
    fixed = privacy.denominator == "fixed"
    if sample.rate is not None:
        return Event(sigma, sample.rate, client_rate) if fixed else Event(sigma, 1.0, client_rate * sample.rate)
    if sample.count is None or sample.size <= sample.count:
        return Event(sigma, 1.0, client_rate)
    if adjacency == "zero_out":
        return Event(sigma, 1.0, client_rate * sample.count / sample.size)
    return Event(sigma / 2, sample.count / sample.size, client_rate)


def _has_public_sample(phase: Phase) -> bool:
    """Return whether the number of sampled clients, or their rate, does not depend on how many clients there are."""
    return phase.clients_per_round is not None or phase.poisson is not None


def _client_rate(phase: Phase, num_clients: int) -> float:
    """Return the probability that a client is sampled in a round, of at least this many."""
    count = num_sampled(phase, num_clients)
    return float(phase.poisson or 1.0) if count is None else min(1.0, count / num_clients)


def _steps(phase: Phase, examples: int) -> int:
    local = phase.local
    return local.steps if local.steps is not None else local.epochs * -(-examples // local.batch_size)
