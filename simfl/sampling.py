"""Sampling of a round's clients, and of each client's groups.

The algorithm's name is not part of any seed, so methods are compared on equal samples of clients.

With correlated noise (`privacy.factorization`), clients take turns, so that two rounds with the same client are
`separation` or more rounds apart: a fixed number of clients follows one random order of all of them, again and again;
under Poisson sampling each client belongs to one of `separation` bins at random, and round t samples from bin t modulo
their number. The clients of a round depend on the seed and the round alone, not on the rounds before it.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from functools import lru_cache

import numpy as np

from simfl.errors import ConfigError
from simfl.experiment import Phase, Privacy
from simfl.factorizations.base import Factorization, Participation
from simfl.seeds import rng, system_rng

ROUNDING = {"floor": ROUND_FLOOR, "round": ROUND_HALF_UP, "ceil": ROUND_CEILING}


def num_sampled(phase: Phase, num_clients: int) -> int | None:
    """Return how many clients each round samples; None under Poisson sampling, where the number is random.

    C·K is computed in decimals (0.7 · 10 is 7, never 6.999…), rounded by the phase's `rounding`, and at least 1.
    """
    if phase.asynchronous is not None:
        return phase.asynchronous.buffer
    if phase.poisson is not None:
        return None
    if phase.clients_per_round is not None:
        return phase.clients_per_round
    product = Decimal(str(1.0 if phase.participation is None else phase.participation)) * num_clients
    return min(num_clients, max(1, int(product.to_integral_value(ROUNDING[phase.rounding]))))


def expected_clients(phase: Phase, num_clients: int) -> float:
    """Return how many clients a round samples on average."""
    count = num_sampled(phase, num_clients)
    return float((phase.poisson or 0.0) * num_clients) if count is None else float(count)


def sample_clients(
    phase: Phase, num_clients: int, seed: int, phase_index: int, round_number: int, secure: bool = False
) -> list[int]:
    """Return the clients of a round in ascending order.

    They are sampled without replacement; or each independently, and the list may then be empty. `secure`: from the
    operating system's random numbers, which cannot be repeated.
    """
    generator = system_rng() if secure else rng(seed, "clients", phase_index, round_number)
    count = num_sampled(phase, num_clients)
    if count is None:
        assert phase.poisson is not None
        return [int(k) for k in np.flatnonzero(generator.random(num_clients) < phase.poisson)]
    found: list[int] = np.sort(generator.choice(num_clients, size=count, replace=False)).tolist()
    return found


def sample_in_turns(
    phase: Phase, num_clients: int, seed: int, phase_index: int, round_number: int, separation: int
) -> list[int]:
    """Return the clients of a round in ascending order, where clients take turns; see the docstring of the module.

    Args:
        phase: The phase.
        num_clients: Number of clients.
        seed: Seed of the sampling.
        phase_index: Number of the phase.
        round_number: The round, from 0.
        separation: Number of bins under Poisson sampling.
    """
    count = num_sampled(phase, num_clients)
    if count is None:
        bins = np.array([_bin_of(client, seed, phase_index, separation) for client in range(num_clients)])
        drawn = rng(seed, "clients", phase_index, round_number).random(num_clients)
        chosen = (drawn < bin_rate(phase, separation)) & (bins == round_number % separation)
        return [int(k) for k in np.flatnonzero(chosen)]
    order = rng(seed, "turns", phase_index).permutation(num_clients)
    return sorted(int(order[(round_number * count + k) % num_clients]) for k in range(count))


@lru_cache(maxsize=2**16)
def _bin_of(client: int, seed: int, phase_index: int, separation: int) -> int:
    """Return the bin of a client, which does not depend on how many clients there are."""
    return int(rng(seed, "bin", phase_index, client).integers(separation))


def bin_rate(phase: Phase, separation: int) -> float:
    """Return the rate at which the clients of a bin are sampled, so that `poisson` is the mean over all rounds."""
    return min(1.0, (phase.poisson or 0.0) * separation)


def participation_of(phase: Phase, num_clients: int, factorization: Factorization) -> Participation:
    """Return the participation that sampling in turns keeps.

    Raises:
        ConfigError: Sampling cannot keep the separation or the number of participations that the experiment sets.
    """
    count, where = num_sampled(phase, num_clients), "privacy.factorization"
    if count is None:
        widest = math.floor(1 / (phase.poisson or 1.0) * (1 + 1e-12))
        usual = factorization.least_separation if factorization.amplifies else widest
        sampling = f"poisson: {phase.poisson:g} needs bins with a rate of at most 1"
    else:
        widest = usual = num_clients // max(1, count)
        sampling = f"{count} of {num_clients} clients per round take their turn again after {widest} rounds"
    separation = min(usual, widest) if factorization.separation is None else factorization.separation
    if separation > widest:
        raise ConfigError(f"{where}.separation: {separation} given, but {sampling}; allowed: at most {widest}")
    if separation < factorization.least_separation:
        least = factorization.least_separation
        raise ConfigError(
            f"{where}: {least} bands need a separation of at least {least} rounds, but it is {separation} ({sampling});"
            f" allowed: at most {separation} bands, or fewer clients per round"
        )
    most = -(-phase.rounds // separation) if count is None else -(-phase.rounds * count // num_clients)
    if factorization.participations is not None and factorization.participations < most:
        raise ConfigError(
            f"{where}.participations: {factorization.participations} given, but in {phase.rounds} rounds a client may"
            f" take part {most} times ({sampling}); allowed: at least {most}"
        )
    return Participation(phase.rounds, separation, most).first(phase.rounds)


def sample_groups(
    num_groups: int, privacy: Privacy, seed: int, phase_index: int, round_number: int, client: int
) -> list[int]:
    """Return which of a client's groups take part, ascending: each independently, a fixed number, or all."""
    name = (seed, "groups", phase_index, round_number, client)
    generator = system_rng() if privacy.secure else rng(*name)
    if privacy.group_rate is not None:
        return [int(j) for j in np.flatnonzero(generator.random(num_groups) < privacy.group_rate)]
    count = privacy.groups_per_client
    if count is None or count >= num_groups:
        return list(range(num_groups))
    return sorted(int(j) for j in generator.choice(num_groups, size=count, replace=False))


def auto_clients_per_batch(mode: str, expected: float, device: str = "cpu") -> int:
    """Return the clients per batch where the experiment leaves it open, a power of two.

    For `sequential` the number does not affect the result: it is so large that a round takes at most about thirty
    calls. For `vectorized` it is 16 on a CPU, whose cache holds no more, and 64 on a GPU, which is halved where it does
    not fit.
    """
    if mode == "vectorized":
        most = 64 if device == "cuda" else 16
        return min(most, 1 << max(0, math.ceil(math.log2(max(1.0, expected)))))
    return 1 << max(0, math.ceil(math.log2(max(1.0, expected / 32))))
