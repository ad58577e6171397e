"""Measurements of correlated noise: turns of clients, rows of C⁻¹Z multiplied by C, the account of all rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from simfl.debug.noise_statistics import Measurement, at_most, check_normals
from simfl.debug.privacy_noise import average_deviation, zero
from simfl.debug.privacy_rounds import PrivacyTestRounds, RoundRequest
from simfl.privacy.correlated import Correlation
from simfl.privacy.mechanism import Mechanism
from simfl.privacy.randomness import Randomness
from simfl.protocol import Weights
from simfl.training.context import PhaseContext

MAX_ROUNDS, MIN_ROUNDS = 24, 8  # of a phase, whose noise is measured
VALUES = 40_000  # values of noise to measure, about
SLACK = 1 + 1e-9


def check_correlation(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check turns, account and noise of each phase whose noise is correlated over rounds."""
    for index in range(len(rounds.given.phases)):
        context = rounds.whole.phase_context(index, len(rounds.partition), rounds.sigma, Randomness.fresh())
        correlation = None if context.mechanism is None else context.mechanism.correlation
        if correlation is not None:
            simulated = rounds.privacy.deployment is not None  # whose clients take turns, and no others
            taken = _turns_of(correlation) if simulated else _rounds_of_clients(context)
            yield from _check_turns(index, correlation, taken)
            yield from _check_account(rounds, index, correlation, taken)
            yield from check_normals(f"phase {index}: noise of averages, times C", _white_noise(rounds, correlation))


def _rounds_of_clients(context: PhaseContext) -> dict[int, list[int]]:
    """Return the rounds of each client in the whole phase."""
    found: dict[int, list[int]] = {}
    for number in range(context.phase.rounds):
        for client in context.sample_clients(number):
            found.setdefault(client, []).append(number)
    return found


def _turns_of(correlation: Correlation) -> dict[int, list[int]]:
    """Return the rounds of clients that take part as often as the account allows, from each first round on."""
    allowed = correlation.participation
    return {
        first: list(range(first, allowed.rounds, allowed.separation))[: allowed.participations]
        for first in range(min(allowed.separation, allowed.rounds))
    }


def _check_turns(index: int, correlation: Correlation, taken: dict[int, list[int]]) -> Iterator[Measurement]:
    """Check that clients keep the participation that the account assumes."""
    participation, total = correlation.participation, correlation.participation.rounds
    gaps = [b - a for own in taken.values() for a, b in pairwise(own)]
    least, most = min(gaps, default=max(total, participation.separation)), max(map(len, taken.values()), default=0)
    text = f"phase {index}: fewest rounds from one participation of a client to the next"
    yield Measurement(text, least, f"at least {participation.separation}", least >= participation.separation)
    yield at_most(f"phase {index}: rounds with one client", most, participation.participations)


def _check_account(
    rounds: PrivacyTestRounds, index: int, correlation: Correlation, taken: dict[int, list[int]]
) -> Iterator[Measurement]:
    """Check that no client changes all rounds together by more than the account assumes, with equal updates."""
    budget = rounds.account.budget
    assert budget is not None
    matrix, unit = correlation.factor.matrix(), (rounds.given.privacy or rounds.privacy).unit
    (event, times), *_ = correlation.events(1.0, correlation.participation.rounds, unit)
    columns = [matrix[:, own] for own in taken.values()]
    largest = max((float(np.linalg.norm(one.sum(1))) for one in columns), default=0.0)
    norm = float(np.linalg.norm(matrix, axis=0).max())
    if correlation.amplified_by_sampling(unit):
        overlap = max((float(np.abs(np.triu(one.T @ one, 1)).max()) for one in columns), default=0.0)
        yield at_most(f"phase {index}: overlap of two participations, where each is charged alone", overlap, 1e-12)
        yield at_most(
            f"phase {index}: change by one participation, in clip norms", norm, 1 / event.noise_multiplier * SLACK
        )
        worst = max(map(len, taken.values()), default=0)
        yield at_most(f"phase {index}: rounds with one client, where the account charges {times}", worst, times)
        return
    assumed = norm / event.noise_multiplier
    yield at_most(f"phase {index}: change of all rounds by one client, in clip norms", largest, assumed * SLACK)


def _white_noise(rounds: PrivacyTestRounds, correlation: Correlation) -> dict[str, Weights]:
    """Return the noise of consecutive averages times C, over the deviation that the account assumes."""
    size = sum(t.numel() for t in rounds.round(0.0).average.values())
    count = min(correlation.participation.rounds, MAX_ROUNDS, max(MIN_ROUNDS, math.ceil(VALUES / size)))
    released = []
    for number in range(count):
        if number == count // 2:  # a resumed run, which makes the rows before again
            correlation = replace(correlation)
        released.append(rounds.run(RoundRequest(rounds.sigma, 0, number, craft=zero, mechanism=_with(correlation))))
    matrix = correlation.factor.matrix()[:count, :count]
    deviation = average_deviation(rounds, released[0]) * float(
        np.linalg.norm(correlation.factor.matrix(), axis=0).max()
    )
    found: dict[str, Weights] = {f"round {number + 1}": {} for number in range(count)}
    for name in released[0].average:
        rows = torch.stack([one.average[name].double().reshape(-1) for one in released])
        white = torch.from_numpy(matrix) @ rows / deviation
        for number in range(count):
            found[f"round {number + 1}"][name] = white[number].view(released[0].average[name].shape)
    return found


def _with(correlation: Correlation) -> Callable[[Mechanism], Mechanism]:
    return lambda given: replace(given, correlation=correlation)
