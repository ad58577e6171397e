"""Sampling of a round's clients, and of each client's groups.

The algorithm's name is not part of any seed, so methods are compared on equal samples of clients.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal

import numpy as np

from simfl.experiment import Phase, Privacy
from simfl.seeds import rng, system_rng

ROUNDING = {"floor": ROUND_FLOOR, "round": ROUND_HALF_UP, "ceil": ROUND_CEILING}


def num_sampled(phase: Phase, num_clients: int) -> int | None:
    """Return how many clients each round samples; None under Poisson sampling, where the number is random.

    C·K is computed in decimals (0.7 · 10 is 7, never 6.999…), rounded by the phase's `rounding`, and at least 1.
    """
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
    return sorted(int(k) for k in generator.choice(num_clients, size=count, replace=False))


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
