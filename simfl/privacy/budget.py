"""The privacy budget of an experiment: what its rounds cost, what it may spend, and the noise that this requires.

`forecast(experiment, partition)` returns epsilon, delta, noise multiplier and sampling rate without running anything.
It needs the partition only if neither `privacy.min_groups` nor the published sizes of the data set replace it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from simfl.data.partition.holdout import expected_sizes
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError, PrivacyError
from simfl.experiment import Experiment, Phase, Privacy
from simfl.factorizations.base import root_mean_square
from simfl.privacy import accounting
from simfl.privacy.accounting import Event, History
from simfl.privacy.correlated import workload_of
from simfl.privacy.deployment import deployed_phases, deployed_privacy
from simfl.privacy.discrete import DiscreteNoise, discrete_noise
from simfl.privacy.scheme import VIEWS, Population, Scheme
from simfl.sampling import expected_clients, num_sampled


@dataclass(frozen=True)
class Forecast:
    """The privacy cost of an experiment, before it runs."""

    epsilon: float  # in the view of the experiment; infinity without noise
    delta: float
    noise_multiplier: float  # sigma, before adaptive clipping takes a part of it
    sampling_rate: float  # q of the first phase, by the formula of PFL-DocVQA
    rounds: int  # T, of all phases
    views: Mapping[str, float]  # epsilon of each view


def forecast(experiment: Experiment, partition: Partition | None = None, num_clients: int | None = None) -> Forecast:
    """Return the privacy cost of an experiment with `privacy`; nothing is run.

    Args:
        experiment: The experiment.
        partition: The partition. Without it, `privacy.min_groups` and `partition.clients` are used.
        num_clients: Number of clients, if `partition.clients` does not give it.

    Raises:
        ConfigError: The sizes are not known, or no noise meets the budget.
    """
    budget = Budget.of(experiment, partition, num_clients)
    views = {view: budget.epsilon(budget.everything, view) for view in VIEWS}
    rounds = sum(budget.everything.values())
    rate = budget.rate(experiment.phases[0])
    return Forecast(views[budget.view], budget.privacy.delta, budget.noise_multiplier, rate, rounds, views)


@dataclass(frozen=True)
class Budget:
    """The privacy budget of one experiment. `charged` always means rounds by phase, including those to be released."""

    scheme: Scheme
    noise_multiplier: float  # sigma of everything that a unit contributes

    @staticmethod
    def of(
        experiment: Experiment,
        partition: Partition | None = None,
        num_clients: int | None = None,
        num_values: Sequence[int] = (),
    ) -> Budget:
        """Return the budget with the noise that the experiment sets, or that its epsilon requires.

        Args:
            experiment: The experiment.
            partition: The partition; see `forecast`.
            num_clients: Number of clients, if `partition.clients` does not give it.
            num_values: Numbers that a client uploads in each phase, for integer noise, whose account depends on them.

        Raises:
            ConfigError: The experiment has no `privacy`, or no noise meets its epsilon.
        """
        privacy = experiment.privacy
        if privacy is None:
            raise ConfigError(
                "privacy: null, so nothing is accounted; give privacy.epsilon or privacy.noise_multiplier"
            )
        population = _population(experiment, partition, num_clients)
        scheme = _scheme(experiment, population, _discrete(experiment, population, num_values))
        _check_delta(scheme)
        if privacy.noise_multiplier is not None or privacy.epsilon is None:
            budget = Budget(scheme, privacy.noise_multiplier or 0.0)
        else:
            budget = Budget(scheme, _calibrate(scheme, privacy.epsilon))
        _check_modulus(experiment, budget)
        _check_first_round(budget)
        return budget

    @property
    def privacy(self) -> Privacy:
        """The privacy settings of the experiment."""
        return self.scheme.privacy

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the experiment."""
        return self.scheme.phases

    def rate(self, phase: Phase) -> float:
        """Return the sampling rate q of a phase, by the formula of PFL-DocVQA."""
        return self.scheme.rate(phase)

    def without_correlation(self) -> Budget:
        """Return the budget of the same experiment with independent noise, at the epsilon that all rounds cost."""
        spent = self.epsilon(self.everything, "averages")
        privacy = replace(self.privacy, factorization=None, noise_multiplier=None, epsilon=spent)
        scheme = replace(self.scheme, privacy=privacy)
        return Budget(scheme, _calibrate(scheme, spent))

    def model_error(self, index: int) -> float:
        """Return the error that the server's noise adds to each parameter of a phase's models.

        It is the root mean square over rounds and parameters, for server SGD with or without momentum; other server
        optimizers count as plain SGD. `privacy.noise` must be central.
        """
        privacy, phase = self.privacy, self.phases[index]
        expected = expected_clients(phase, privacy.min_clients or self.scheme.population.num_clients)
        units = (privacy.groups_per_client or 1) if privacy.unit == "group" else 1
        deviation = self.noise_multiplier * (privacy.clip or 0.0) / (expected * units)
        if privacy.factorization is not None:
            return deviation * self.scheme.correlation(index).error()
        return deviation * root_mean_square((workload_of(phase).matrix() ** 2).sum(1))

    @property
    def everything(self) -> dict[int, int]:
        """All rounds by phase."""
        return {index: phase.rounds for index, phase in enumerate(self.scheme.phases)}

    @property
    def view(self) -> str:
        """The view in which `epsilon` is limited."""
        return self.privacy.view

    @property
    def claimed_view(self) -> str:
        """The view in which differential privacy is claimed: a formula is no bound on what an observer learns."""
        return "averages" if self.view == "formula" else self.view

    @cached_property
    def limit(self) -> float:
        """The epsilon that may be spent; infinity without a limit."""
        return math.inf if self.privacy.epsilon is None else self.privacy.epsilon

    def epsilon(self, charged: Mapping[int, int], view: str | None = None) -> float:
        """Return the cost of these rounds in a view, at the experiment's delta, for the unit with the highest cost."""
        histories = self.scheme.histories(self.noise_multiplier, charged, view or self.view)
        return _worst_epsilon(
            tuple(tuple(history) for history in histories), self.privacy.delta, self.privacy.accountant
        )

    def check(self, charged: Mapping[int, int]) -> None:
        """Raise PrivacyError if these rounds cost more than may be spent."""
        spent = self.epsilon(charged)
        if spent > self.limit * (1 + 1e-9):
            rounds = sum(charged.values())
            raise PrivacyError(
                f"privacy: round {rounds} would raise epsilon to {spent:.4g}, but privacy.epsilon is {self.limit:g};"
                " the budget is spent and nothing more is released"
            )


def _scheme(experiment: Experiment, population: Population, discrete: tuple[DiscreteNoise, ...]) -> Scheme:
    """Return the sampling scheme of an experiment, or of the deployment that it simulates.

    Raises:
        ConfigError: The deployment is smaller than what is trained.
    """
    privacy = experiment.privacy
    assert privacy is not None
    if privacy.deployment is None:
        return Scheme(privacy, experiment.phases, population, discrete, experiment.secure_aggregation)
    deployment, trained = privacy.deployment, population.num_clients
    cohort = max(expected_clients(phase, trained) for phase in experiment.phases)
    for key, given, least in (
        ("clients_per_round", deployment.clients_per_round, math.ceil(cohort)),
        ("clients", deployment.clients, trained),
    ):
        if given < least:
            raise ConfigError(
                f"privacy.deployment.{key}: {given} given, but the run has {least}; allowed: {least} or more"
            )
    num_groups = deployment.clients * max(1, privacy.min_groups or 1)
    population = replace(population, num_clients=deployment.clients, num_groups=num_groups)
    return Scheme(deployed_privacy(privacy), deployed_phases(experiment.phases, deployment), population, discrete)


@lru_cache(maxsize=4096)
def _worst_epsilon(histories: tuple[tuple[tuple[Event, int], ...], ...], delta: float, accountant: str) -> float:
    return max((accounting.epsilon(history, delta, accountant) for history in histories), default=0.0)


def _calibrate(scheme: Scheme, target: float) -> float:
    """Return the smallest sigma with which all rounds cost at most the target epsilon.

    The noise of every event is a multiple of sigma.
    """
    privacy, charged = scheme.privacy, {index: phase.rounds for index, phase in enumerate(scheme.phases)}
    histories = tuple(tuple(history) for history in scheme.histories(1.0, charged, privacy.view))
    if any(event.noise_multiplier == 0.0 for history in histories for event, _ in history):
        raise ConfigError(
            "privacy.view: messages, but with noise: central messages carry no noise; allowed: averages, formula"
        )
    sigma = _solve_sigma(histories, target, privacy.delta, privacy.accountant)
    if not math.isfinite(sigma):
        raise ConfigError(f"privacy.epsilon: {target:g} at delta {privacy.delta:g} cannot be met by any noise")
    return sigma


@lru_cache(maxsize=64)
def _solve_sigma(
    histories: tuple[tuple[tuple[Event, int], ...], ...], target: float, delta: float, accountant: str
) -> float:
    def scaled(sigma: float) -> list[History]:
        return [[(replace(e, noise_multiplier=e.noise_multiplier * sigma), n) for e, n in h] for h in histories]

    return accounting.noise_multiplier(target, delta, scaled, accountant)


def _population(experiment: Experiment, partition: Partition | None, num_clients: int | None) -> Population:
    """Return the public sizes: of the partition or, without it, as the experiment and the data set declare them."""
    privacy = experiment.privacy
    assert privacy is not None
    min_groups = privacy.min_groups
    if partition is not None:
        return _bounded(Population.of(partition), privacy)
    published = experiment.data.published()
    sizes = None if published is None else expected_sizes(experiment.partition, published)
    clients = num_clients or (experiment.partition.clients if sizes is None else len(sizes))
    if clients is None:
        raise ConfigError("partition.clients: needed for privacy accounting without the data")
    examples = () if sizes is None else tuple(sorted({int(n) for n in sizes}))
    groups: tuple[int, ...] = () if min_groups is None else (min_groups,)
    if min_groups is None and published is not None and sizes is not None and tuple(sizes) == published.clients:
        groups = tuple(sorted(set(published.groups)))
    if privacy.unit == "group" and not groups:
        raise ConfigError("privacy.min_groups: needed for privacy accounting without the data")
    if privacy.unit == "record" and not examples:
        if privacy.min_examples is None:
            raise ConfigError("privacy.min_examples: needed for privacy accounting without the data")
        examples = (privacy.min_examples,)
    total = None if published is None else published.examples
    return _bounded(Population(clients, groups, examples, num_examples=total), privacy)


def _discrete(experiment: Experiment, population: Population, num_values: Sequence[int]) -> tuple[DiscreteNoise, ...]:
    """Return the integer noise of each phase; empty where noise is real.

    Raises:
        ConfigError: The number of uploaded values is not known.
    """
    privacy, secure = experiment.privacy, experiment.secure_aggregation
    if privacy is None or privacy.noise != "distributed" or secure is None:
        return ()
    if len(num_values) != len(experiment.phases):
        raise ConfigError("privacy.noise: distributed is accounted with the model's size; `simfl plan` knows it")
    clients = privacy.min_clients or population.num_clients
    return tuple(
        discrete_noise(privacy, secure, phase, clients, count)
        for phase, count in zip(experiment.phases, num_values, strict=True)
    )


def _check_modulus(experiment: Experiment, budget: Budget) -> None:
    """Raise ConfigError if the sum of updates and integer noise may exceed the modulus."""
    for phase, noise in zip(experiment.phases, budget.scheme.discrete, strict=False):
        assert experiment.secure_aggregation is not None
        clients, bits = budget.scheme.population.num_clients, experiment.secure_aggregation.bits
        largest = noise.largest_sum(budget.noise_multiplier, num_sampled(phase, clients) or clients)
        if largest > (1 << (bits - 1)) - 1:
            raise ConfigError(
                f"secure_aggregation.bits: {bits} hold sums up to {(1 << (bits - 1)) - 1:,}, but those of updates and"
                f" noise may reach {largest:,.0f} (clip norm: {noise.levels:,} steps; {noise.dimension:,} numbers);"
                f" allowed: bits: {math.ceil(math.log2(largest + 1)) + 1}, or a smaller value_bits"
            )


def _bounded(found: Population, privacy: Privacy) -> Population:
    """Replace sizes of the data by the public bounds that the experiment declares, after a check of these.

    Raises:
        ConfigError: The data do not keep a bound.
    """
    for name, bound, sizes in (
        ("groups", privacy.min_groups, found.groups),
        ("examples", privacy.min_examples, found.examples),
    ):
        if bound is not None and sizes and min(sizes) < bound:
            raise ConfigError(f"privacy.min_{name}: {bound} given, but a client has only {min(sizes)} {name}")
    if privacy.min_clients is not None and found.num_clients < privacy.min_clients:
        raise ConfigError(
            f"privacy.min_clients: {privacy.min_clients} given, but there are only {found.num_clients} clients"
        )
    groups = found.groups if privacy.min_groups is None else (privacy.min_groups,)
    examples = found.examples if privacy.min_examples is None else (privacy.min_examples,)
    return replace(found, groups=groups, examples=examples)


def _check_first_round(budget: Budget) -> None:
    """Raise ConfigError if the given noise is so small that the budget does not allow the first round."""
    limit, sigma = budget.privacy.epsilon, budget.privacy.noise_multiplier
    if limit is None or sigma is None:
        return
    spent = budget.epsilon({0: 1})
    if spent > limit * (1 + 1e-9):
        raise ConfigError(
            f"privacy.epsilon: {limit:g} given, but with noise_multiplier: {sigma:g} the first round costs {spent:.4g};"
            " allowed: more noise, or noise_multiplier: null, which computes it"
        )


def _check_delta(scheme: Scheme) -> None:
    """Raise ConfigError for a delta that allows to publish the data of one unit out of all."""
    privacy = scheme.privacy
    units = scheme.population.num_units(privacy.unit)
    if privacy.adds_noise and units is not None and privacy.delta * units >= 1.0:
        raise ConfigError(
            f"privacy.delta: {privacy.delta:g} given, but there are {units} {privacy.unit}s, and a delta of 1/{units}"
            f" or more allows to publish one of them; allowed: below {1 / units:.2g}"
        )
