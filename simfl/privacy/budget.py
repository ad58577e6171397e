"""What a run may spend and has spent: its sampling scheme as events, the noise that its budget asks for.

    K  clients of a round of N     M  units of a visit to a client that has |G|     S  clip     sigma  noise multiplier

`foresee(experiment, partition)` gives epsilon, delta, noise multiplier and sampling rate without running anything. It
needs the partition only where the experiment does not say `privacy.min_groups`.

Three views of one mechanism:

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from simfl.algorithms.base import Algorithm
from simfl.data.holdings import Partition
from simfl.errors import ConfigError, PrivacyError
from simfl.experiment import Experiment, Phase, Privacy
from simfl.privacy import accounting
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
class Forecast:
    """What an experiment will spend, as `simfl plan` shows it."""

    epsilon: float  # in the view that the experiment asks for; infinity without noise
    delta: float
    noise_multiplier: float  # sigma, before adaptive clipping takes its share
    sampling_rate: float  # q of the first phase, by the formula of PFL-DocVQA
    rounds: int  # T, of all phases
    views: Mapping[str, float]  # epsilon of each view


def foresee(experiment: Experiment, partition: Partition | None = None, num_clients: int | None = None) -> Forecast:
    """Epsilon, delta, noise multiplier and sampling rate of an experiment with `privacy`; nothing is run.

    Without a partition, `privacy.min_groups` and `partition.clients` (or `num_clients`) stand for it; ConfigError where
    they are missing, or where no noise meets the budget.
    """
    budget = Budget.of(experiment, partition, num_clients)
    charged = {index: phase.rounds for index, phase in enumerate(experiment.phases)}
    views = {view: budget.epsilon(charged, view) for view in VIEWS}
    rounds = sum(charged.values())
    rate = budget.rate(experiment.phases[0])
    return Forecast(views[budget.view], budget.privacy.delta, budget.noise_multiplier, rate, rounds, views)


@dataclass(frozen=True)
class Budget:
    """The accounts of one experiment. `charged` is always: rounds by phase, those about to be released included."""

    privacy: Privacy
    phases: tuple[Phase, ...]
    population: Population
    noise_multiplier: float  # sigma in all

    @staticmethod
    def of(experiment: Experiment, partition: Partition | None = None, num_clients: int | None = None) -> Budget:
        """With the noise that the experiment names, or that its epsilon asks for; ConfigError if none would do."""
        privacy = experiment.privacy
        if privacy is None:
            raise ConfigError(
                "privacy: null, so nothing is accounted; give privacy.epsilon or privacy.noise_multiplier"
            )
        population = _population(experiment, partition, num_clients)
        if privacy.noise_multiplier is not None or privacy.epsilon is None:
            return Budget(privacy, experiment.phases, population, privacy.noise_multiplier or 0.0)
        return Budget(privacy, experiment.phases, population, _calibrated(privacy, experiment.phases, population))

    @property
    def view(self) -> str:
        """The view that `epsilon` is meant in."""
        return self.privacy.view

    @cached_property
    def limit(self) -> float:
        """The epsilon that may be spent; infinity where none is set."""
        return math.inf if self.privacy.epsilon is None else self.privacy.epsilon

    def epsilon(self, charged: Mapping[int, int], view: str | None = None) -> float:
        """What these rounds cost in a view, at the experiment's delta, for the unit that pays most."""
        return _spent(self, tuple(sorted(charged.items())), view or self.view)

    def afford(self, charged: Mapping[int, int]) -> None:
        """PrivacyError if these rounds cost more than may be spent."""
        spent = self.epsilon(charged)
        if spent > self.limit * (1 + 1e-9):
            rounds = sum(charged.values())
            raise PrivacyError(
                f"privacy: round {rounds} would bring epsilon to {spent:.4g}, and privacy.epsilon is {self.limit:g};"
                " the budget is spent, nothing more is released"
            )

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

    def histories(self, charged: Mapping[int, int], view: str) -> list[History]:
        """What is accounted, for each kind of unit that may pay most."""
        rounds = [(self.phases[index], times) for index, times in sorted(charged.items())]
        if view == "formula":
            events = [(self._by_formula(phase), times) for phase, times in rounds]
            return [events]
        return [[(self._event(phase, size, view), n) for phase, n in rounds] for size in self._sizes()]

    def _by_formula(self, phase: Phase) -> Event:
        smallest = min(self.population.examples, default=1)
        steps = _steps(phase, smallest) if self.privacy.unit == "record" else 1
        return Event(self.noise_multiplier, self.rate(phase), steps=steps)

    def _sizes(self) -> list[int]:
        """Numbers of units that a client may have, with the protected one; the rate falls as they grow."""
        privacy, population = self.privacy, self.population
        if privacy.unit == "client":
            drawn = privacy.noise == "central" and any(phase.clients_per_round is not None for phase in self.phases)
            return [population.num_clients, population.num_clients + 1][: 1 + drawn]
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

    def _event(self, phase: Phase, size: int, view: str) -> Event:
        privacy, sigma = self.privacy, self.noise_multiplier
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

    def multipliers(self) -> dict[str, float]:
        """Sigma of a client's message and of the average released in the first phase, by what one unit can change."""
        sigma, phase = self.noise_multiplier, self.phases[0]
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
    keeps = phase.local.keep_optimizer or phase.private or phase.codec.upload.error_feedback
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


@lru_cache(maxsize=4096)
def _remembered(histories: tuple[tuple[tuple[Event, int], ...], ...], delta: float, accountant: str) -> float:
    return max((accounting.epsilon(history, delta, accountant) for history in histories), default=0.0)


def _spent(budget: Budget, charged: Iterable[tuple[int, int]], view: str) -> float:
    histories = tuple(tuple(history) for history in budget.histories(dict(charged), view))
    return _remembered(histories, budget.privacy.delta, budget.privacy.accountant)


@lru_cache(maxsize=64)
def _calibrated_once(histories_at_one: tuple[Any, ...], target: float, delta: float, accountant: str) -> float:
    def scaled(sigma: float) -> list[History]:
        return [[(replace(e, noise_multiplier=e.noise_multiplier * sigma), n) for e, n in h] for h in histories_at_one]

    return accounting.noise_multiplier(target, delta, scaled, accountant)


def _calibrated(privacy: Privacy, phases: tuple[Phase, ...], population: Population) -> float:
    """The least sigma with which all rounds stay within epsilon. Every event's noise is a multiple of it."""
    assert privacy.epsilon is not None
    unit = Budget(privacy, phases, population, 1.0)
    charged = {index: phase.rounds for index, phase in enumerate(phases)}
    histories = tuple(tuple(history) for history in unit.histories(charged, unit.view))
    if any(event.noise_multiplier == 0.0 for history in histories for event, _ in history):
        raise ConfigError("privacy.view: messages, but with noise: central they carry none; allowed: averages, formula")
    sigma = _calibrated_once(histories, privacy.epsilon, privacy.delta, privacy.accountant)
    if not math.isfinite(sigma):
        raise ConfigError(f"privacy.epsilon: {privacy.epsilon:g} at delta {privacy.delta:g} is met by no noise")
    return sigma


def _population(experiment: Experiment, partition: Partition | None, num_clients: int | None) -> Population:
    privacy = experiment.privacy
    assert privacy is not None
    least = privacy.min_groups
    if partition is not None:
        found = Population.of(partition)
        if privacy.unit == "group" and least is not None:
            if min(found.groups) < least:
                raise ConfigError(f"privacy.min_groups: {least} given, a client has {min(found.groups)} groups")
            return replace(found, groups=(least,))
        return found
    told = experiment.data.published()
    sizes = None if told is None else experiment.partition.expected(told)
    clients = num_clients or (experiment.partition.clients if sizes is None else len(sizes))
    if clients is None:
        raise ConfigError("partition.clients: needed to account for privacy without the data")
    examples = () if sizes is None else tuple(sorted({int(n) for n in sizes}))
    groups: tuple[int, ...] = () if least is None else (least,)
    if least is None and told is not None and sizes is not None and tuple(sizes) == told.clients:
        groups = tuple(sorted(set(told.groups)))
    if (privacy.unit == "record" and not examples) or (privacy.unit == "group" and not groups):
        raise ConfigError("privacy.min_groups: needed to account for privacy without the data")
    return Population(clients, groups, examples)
