"""Who takes part in a round, and with which of its groups.

The algorithm's name is not part of any seed, so methods are compared on equal cohorts.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal

import numpy as np

from simfl.experiment import Phase, Privacy
from simfl.seeds import rng

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


def sample_clients(phase: Phase, clients: int, seed: int, phase_index: int, round_number: int) -> list[int]:
    """The clients of a round in ascending order: without replacement, or each on its own (which may be nobody)."""
    generator = rng(seed, "clients", phase_index, round_number)
    count = num_sampled(phase, clients)
    if count is None:
        assert phase.poisson is not None
        return [int(k) for k in np.flatnonzero(generator.random(clients) < phase.poisson)]
    return sorted(int(k) for k in generator.choice(clients, size=count, replace=False))


def sample_groups(
    groups: list[tuple[str, np.ndarray]], privacy: Privacy, seed: int, phase_index: int, round_number: int, client: int
) -> tuple[np.ndarray, ...]:
    """The rows of each sampled group of a client in the order of the groups; all, unless the experiment limits them."""
    count = privacy.groups_per_client
    if count is None or count >= len(groups):
        return tuple(rows for _, rows in groups)
    chosen = rng(seed, "groups", phase_index, round_number, client).choice(len(groups), size=count, replace=False)
    return tuple(groups[int(j)][1] for j in sorted(chosen))


def auto_width(way: str, expected: float) -> int:
    """Visits per cohort, a power of two, when the experiment leaves it open.

    One at a time the width does not touch the result: wide enough that a round is at most some thirty calls. As one
    program: 16.
    """
    if way == "batch":
        return min(16, 1 << max(0, math.ceil(math.log2(max(1.0, expected)))))
    return 1 << max(0, math.ceil(math.log2(max(1.0, expected / 32))))
