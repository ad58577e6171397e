"""What a run may spend and has spent, and the noise that its budget asks for.

`foresee(experiment, partition)` gives epsilon, delta, noise multiplier and sampling rate without running anything. It
needs the partition only where neither `privacy.min_groups` nor what the data set publishes stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError, PrivacyError
from simfl.experiment import Experiment, Phase, Privacy
from simfl.privacy import accounting
from simfl.privacy.accounting import Event, History
from simfl.privacy.scheme import VIEWS, Population, Scheme


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
    views = {view: budget.epsilon(budget.everything, view) for view in VIEWS}
    rounds = sum(budget.everything.values())
    rate = budget.rate(experiment.phases[0])
    return Forecast(views[budget.view], budget.privacy.delta, budget.noise_multiplier, rate, rounds, views)


@dataclass(frozen=True)
class Budget:
    """The accounts of one experiment. `charged` is always: rounds by phase, those about to be released included."""

    scheme: Scheme
    noise_multiplier: float  # sigma in all

    @staticmethod
    def of(experiment: Experiment, partition: Partition | None = None, num_clients: int | None = None) -> Budget:
        """With the noise that the experiment names, or that its epsilon asks for; ConfigError if none would do."""
        privacy = experiment.privacy
        if privacy is None:
            raise ConfigError(
                "privacy: null, so nothing is accounted; give privacy.epsilon or privacy.noise_multiplier"
            )
        scheme = Scheme(privacy, experiment.phases, _population(experiment, partition, num_clients))
        if privacy.noise_multiplier is not None or privacy.epsilon is None:
            return Budget(scheme, privacy.noise_multiplier or 0.0)
        return Budget(scheme, _calibrated(scheme, privacy.epsilon))

    @property
    def privacy(self) -> Privacy:
        """The experiment's section."""
        return self.scheme.privacy

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The experiment's."""
        return self.scheme.phases

    def rate(self, phase: Phase) -> float:
        """q of a phase, by the formula of PFL-DocVQA."""
        return self.scheme.rate(phase)

    @property
    def everything(self) -> dict[int, int]:
        """All rounds, by phase."""
        return {index: phase.rounds for index, phase in enumerate(self.scheme.phases)}

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
        histories = self.scheme.histories(self.noise_multiplier, charged, view or self.view)
        return _worst(tuple(tuple(history) for history in histories), self.privacy.delta, self.privacy.accountant)

    def afford(self, charged: Mapping[int, int]) -> None:
        """PrivacyError if these rounds cost more than may be spent."""
        spent = self.epsilon(charged)
        if spent > self.limit * (1 + 1e-9):
            rounds = sum(charged.values())
            raise PrivacyError(
                f"privacy: round {rounds} would bring epsilon to {spent:.4g}, and privacy.epsilon is {self.limit:g};"
                " the budget is spent, nothing more is released"
            )


@lru_cache(maxsize=4096)
def _worst(histories: tuple[tuple[tuple[Event, int], ...], ...], delta: float, accountant: str) -> float:
    return max((accounting.epsilon(history, delta, accountant) for history in histories), default=0.0)


def _calibrated(scheme: Scheme, target: float) -> float:
    """The least sigma with which all rounds stay within epsilon. Every event's noise is a multiple of it."""
    privacy, charged = scheme.privacy, {index: phase.rounds for index, phase in enumerate(scheme.phases)}
    histories = tuple(tuple(history) for history in scheme.histories(1.0, charged, privacy.view))
    if any(event.noise_multiplier == 0.0 for history in histories for event, _ in history):
        raise ConfigError("privacy.view: messages, but with noise: central they carry none; allowed: averages, formula")
    sigma = _solved(histories, target, privacy.delta, privacy.accountant)
    if not math.isfinite(sigma):
        raise ConfigError(f"privacy.epsilon: {target:g} at delta {privacy.delta:g} is met by no noise")
    return sigma


@lru_cache(maxsize=64)
def _solved(histories: tuple[Any, ...], target: float, delta: float, accountant: str) -> float:
    def scaled(sigma: float) -> list[History]:
        return [[(replace(e, noise_multiplier=e.noise_multiplier * sigma), n) for e, n in h] for h in histories]

    return accounting.noise_multiplier(target, delta, scaled, accountant)


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
