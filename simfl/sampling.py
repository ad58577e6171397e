"""Who takes part in a round, and with which of its groups.

The algorithm's name is not part of any seed, so methods are compared on equal cohorts.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal

import numpy as np

from simfl.experiment import Phase, Privacy
from simfl.seeds import rng, unrepeatable

ROUNDING = {"floor": ROUND_FLOOR, "round": ROUND_HALF_UP, "ceil": ROUND_CEILING}


def num_sampled(phase: Phase, clients: int) -> int | None:
    """How many clients each round samples; None under Poisson sampling, where it is drawn.

    C·K is computed in decimals (0.7 · 10 is 7, never 6.999…), rounded as the phase says, and at least 1.
    """
    if phase.poisson is not None:
        return None
    if phase.clients_per_round is not None:
        return phase.clients_per_round
    product = Decimal(str(1.0 if phase.participation is None else phase.participation)) * clients
    return min(clients, max(1, int(product.to_integral_value(ROUNDING[phase.rounding]))))


def expected_clients(phase: Phase, clients: int) -> float:
    """How many clients a round samples on average."""
    count = num_sampled(phase, clients)
    return float((phase.poisson or 0.0) * clients) if count is None else float(count)


def sample_clients(
    phase: Phase, clients: int, seed: int, phase_index: int, round_number: int, secure: bool = False
) -> list[int]:
    """The clients of a round in ascending order: without replacement, or each on its own (which may be nobody).

    `secure`: as nobody can draw them again.
    """
    generator = unrepeatable() if secure else rng(seed, "clients", phase_index, round_number)
    count = num_sampled(phase, clients)
    if count is None:
        assert phase.poisson is not None
        return [int(k) for k in np.flatnonzero(generator.random(clients) < phase.poisson)]
    return sorted(int(k) for k in generator.choice(clients, size=count, replace=False))


def sample_groups(
    groups: int, privacy: Privacy, seed: int, phase_index: int, round_number: int, client: int
) -> list[int]:
    """Which of a client's groups take part, ascending: each on its own, so many of them, or all."""
    name = (seed, "groups", phase_index, round_number, client)
    generator = unrepeatable() if privacy.secure else rng(*name)
    if privacy.group_rate is not None:
        return [int(j) for j in np.flatnonzero(generator.random(groups) < privacy.group_rate)]
    count = privacy.groups_per_client
    if count is None or count >= groups:
        return list(range(groups))
    return sorted(int(j) for j in generator.choice(groups, size=count, replace=False))


def auto_clients_per_batch(mode: str, expected: float, device: str = "cpu") -> int:
    """Visits per cohort, a power of two, when the experiment leaves it open.

    One at a time the width does not touch the result: wide enough that a round is at most some thirty calls. As one
    program: 16 on a CPU, whose cache holds no more, and 64 on a GPU, which is halved where it does not fit.
    """
    if mode == "vectorized":
        most = 64 if device == "cuda" else 16
        return min(most, 1 << max(0, math.ceil(math.log2(max(1.0, expected)))))
    return 1 << max(0, math.ceil(math.log2(max(1.0, expected / 32))))
