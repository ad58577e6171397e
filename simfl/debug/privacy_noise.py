"""Measurements of the noise of a privacy mechanism: rounds whose units have an update of zero release noise alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from simfl.debug.noise_statistics import Draws, Measurement, check_normals, check_pairs, check_scale, flattened
from simfl.debug.privacy_rounds import PrivacyTestRounds, ReleasedRound, RoundRequest
from simfl.privacy.mechanism import CLIP
from simfl.privacy.parts import WEIGHTS, noise_scales
from simfl.privacy.randomness import Randomness
from simfl.protocol import ClientUpdate, Weights
from simfl.weights import subtract

MIN_ROUNDS, MAX_ROUNDS = 6, 40  # of each phase
VALUES = 40_000  # values of noise to measure: an error of 2.1 % of the scale is found
COUNT = f"{CLIP}/left_alone"  # the message's count of units within the clip norm


def zero(name: str, received: Tensor, update: ClientUpdate) -> Tensor:
    """Return an update of zero."""
    return torch.zeros_like(received)


def check_noise(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check noise in messages, averages, counts and local steps, over rounds, clients, phases and runs."""
    if rounds.privacy.unit == "record":
        yield from check_normals("noise of local steps", _step_noise(rounds))
    else:
        messages, averages, counts = _zero_rounds(rounds)
        if messages:
            yield from check_normals("noise of messages", messages)
        yield from check_normals("noise of averages", averages)
        if counts:
            values = torch.cat([t.reshape(-1) for draw in counts.values() for t in draw.values()]).double().numpy()
            yield check_scale("noise of the count of units within the clip norm", values)
            yield from (one for one in check_normals("count", counts) if "without noise" in one.what)
    yield from _check_runs(rounds)


def deviation(rounds: PrivacyTestRounds, num_units: int) -> float:
    """Return the standard deviation of a message that is accounted for: sigma·S over the divisor of a client's sum."""
    privacy, sigma = rounds.privacy, rounds.sigma
    if privacy.adaptive is not None:
        sigma /= math.sqrt(1 - 1 / (2 * privacy.adaptive.count_noise) ** 2)
    return sigma * effective_clip(rounds) / divisor(rounds, num_units)


def effective_clip(rounds: PrivacyTestRounds) -> float:
    """Return the noise of a sum of weights over sigma: the largest change of all parts, in units of that noise."""
    return (rounds.privacy.clip or math.inf) * noise_scales(rounds.privacy)[WEIGHTS]


def in_noise_of_weights(rounds: PrivacyTestRounds, message: Weights) -> Weights:
    """Return a message with every part in units of its noise, times that of the weights; the count is left out."""
    scales = noise_scales(rounds.privacy)
    return {n: t * (scales[WEIGHTS] / scales[_part(rounds, n)]) for n, t in message.items() if n != COUNT}


def _part(rounds: PrivacyTestRounds, name: str) -> str:
    """Return the part of a tensor of a message."""
    part = name.split("/")[0]
    return part if part in rounds.privacy.parts else WEIGHTS


def divisor(rounds: PrivacyTestRounds, num_units: int) -> float:
    """Return the divisor of the sum of a client with this many units."""
    privacy = rounds.privacy
    if privacy.unit != "group":
        return 1.0
    return float(privacy.groups_per_client or 1) if privacy.denominator == "fixed" else float(max(1, num_units))


def average_deviation(rounds: PrivacyTestRounds, released: ReleasedRound) -> float:
    """Return the standard deviation of an average that is accounted for."""
    each = [deviation(rounds, len(plan.units)) for plan in released.plans]
    if rounds.privacy.noise == "central":
        return max(each) / rounds.noise_cohort
    return math.sqrt(sum(one**2 for one in each)) / rounds.num_clients


def _zero_rounds(rounds: PrivacyTestRounds) -> tuple[Draws, Draws, Draws]:
    """Return noise over its accounted deviation: of messages, averages and counts."""
    messages, averages, counts = dict[str, Weights](), dict[str, Weights](), dict[str, Weights]()
    phases = range(len(rounds.experiment.phases))
    total = -(-VALUES // max(1, sum(t.numel() for t in rounds.round(0.0).average.values())))
    for phase in phases:
        bare = rounds.run(RoundRequest(0.0, phase, craft=zero))
        for number in range(min(MAX_ROUNDS, max(MIN_ROUNDS, -(-total // len(phases))))):
            released = rounds.run(RoundRequest(rounds.sigma, phase, number, craft=zero))
            where = f"phase {phase}, round {number + 1}"
            averages[where] = _over(released.average, average_deviation(rounds, released))
            counts |= _count_noise(rounds, released, bare, where)
            for plan in released.plans if rounds.privacy.noise == "client" else ():
                message = in_noise_of_weights(rounds, released.messages[plan.client])
                name = f"client {plan.client} in {where}"
                messages[name] = _over(message, deviation(rounds, len(plan.units)))
    return messages, averages, counts


def _count_noise(rounds: PrivacyTestRounds, released: ReleasedRound, bare: ReleasedRound, where: str) -> Draws:
    """Return the noise of the counts of a round, of each client or, with central noise, of all together."""
    privacy, adaptive = rounds.privacy, rounds.privacy.adaptive
    if adaptive is None:
        return {}
    scale = adaptive.count_noise * rounds.sigma
    if privacy.noise == "client":
        return {
            f"client {plan.client} in {where}": {
                COUNT: (released.messages[plan.client][COUNT] - bare.messages[plan.client][COUNT])
                * (divisor(rounds, len(plan.units)) / scale)
            }
            for plan in released.plans
        }
    assert released.clip is not None
    assert bare.clip is not None
    moved = -math.log(released.clip / bare.clip) / adaptive.learning_rate
    units = divisor(rounds, len(released.plans[0].units))
    return {where: {COUNT: torch.tensor([moved * units * rounds.noise_cohort / scale])}}


def _step_noise(rounds: PrivacyTestRounds) -> Draws:
    """Return the noise of the gradients of several local steps at which no weight moves, over its deviation."""
    found: dict[str, Weights] = {}
    phase = rounds.experiment.phases[0]
    scale = rounds.sigma * (rounds.privacy.clip or math.inf) / phase.local.batch_size
    size = sum(t.numel() for t in rounds.round(0.0).average.values())
    for number in range(min(MAX_ROUNDS, max(2, VALUES // (9 * size)))):
        bare, noisy = (rounds.run(RoundRequest(s, 0, number, still=True)) for s in (0.0, rounds.sigma))
        for client, steps in noisy.gradients.items():
            for k, gradient in enumerate(steps):
                name = f"client {client}, step {k + 1} in round {number + 1}"
                found[name] = _over(subtract(gradient, bare.gradients[client][k]), scale)
    return found


def _check_runs(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check that two runs share no noise, and that no draw of a secure run can be repeated."""
    secure = (rounds.given.privacy or rounds.privacy).secure
    sources = [Randomness.from_system() if secure else Randomness.fresh() for _ in range(2)]
    yield check_pairs(
        "noise of two runs", {f"run {k + 1}": flattened(_noise(rounds, source)) for k, source in enumerate(sources)}
    )


def _noise(rounds: PrivacyTestRounds, source: Randomness) -> Weights:
    """Return the noise of an average by another source."""
    own = replace(source, source="seed") if source.source == "key" else source  # samples as without noise
    if rounds.privacy.unit == "record":
        return subtract(rounds.run(RoundRequest(rounds.sigma, randomness=own)).average, rounds.round(0.0).average)
    return rounds.run(RoundRequest(rounds.sigma, craft=zero, randomness=own)).average


def _over(tensors: Weights, scale: float) -> Weights:
    return {name: t.detach().double().cpu() / scale for name, t in tensors.items()}
