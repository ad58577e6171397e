"""`simfl check-privacy`: white-box tests of a privacy mechanism, on an experiment's own rounds.

Without noise, leaving one unit out must change what is released by at most S over the denominators. The noise must have
the standard deviation that accounting assumes, in every tensor, and any two draws must be independent: of two clients,
rounds, phases, or tensors of one shape. Limits are 6 standard errors wide, so a correct mechanism fails at most once in
10^8 checks.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from simfl.debug.noise_statistics import Measurement, check_independence, check_scale, distance
from simfl.debug.privacy_rounds import (
    LONG_STEP,
    PlanChange,
    PrivacyTestRounds,
    ReleasedRound,
    with_another_example,
    without_client,
    without_group,
)
from simfl.errors import ConfigError, SimflError
from simfl.experiment import Experiment
from simfl.protocol import Weights
from simfl.weights import subtract

MAX_LEFT_OUT = 3  # units, one at a time
FLOAT32_SLACK = 1 + 1e-3  # factor for rounding of sums in float32


def check(experiment: Experiment, cache: Path, seed: int | None = None) -> list[Measurement]:
    """Test the privacy mechanism of an experiment.

    Args:
        experiment: The experiment.
        cache: The cache folder.
        seed: A seed to use in place of the experiment's.

    Raises:
        ConfigError: The experiment adds no noise.
    """
    if experiment.privacy is None or (experiment.privacy.epsilon is None and not experiment.privacy.noise_multiplier):
        raise ConfigError("privacy: there is no noise to check; give privacy.epsilon or privacy.noise_multiplier")
    with tempfile.TemporaryDirectory(prefix="simfl-check-") as scratch:
        rounds = PrivacyTestRounds(experiment if seed is None else replace(experiment, seed=seed), cache, Path(scratch))
        try:
            return [*check_sampling(rounds), *check_sensitivity(rounds), *check_noise(rounds)]
        except SimflError as error:
            return [Measurement(f"a round fails: {str(error).splitlines()[0]}", math.nan, "no failure", False)]


def check_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Format the measurements; the last line is the verdict."""
    lines = [f"{'ok' if m.holds else 'FAILED':<7} {m.what}: {m.value:.4g} (allowed: {m.allowed})" for m in measurements]
    failed = sum(not m.holds for m in measurements)
    verdict = f"{failed} of {len(measurements)} checks failed" if failed else "the mechanism matches its accounting"
    return [*lines, verdict]


def check_sampling(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check that no unit is sampled twice, and that exactly the trained tensors are uploaded."""
    base, names = rounds.round(0.0), set(rounds.run_context.parameter_groups(0).shared)
    twice = sum(len(plan.unit_names) - len(set(plan.unit_names)) for plan in base.plans)
    yield Measurement("units sampled more than once by a client", twice, "0", twice == 0)
    mismatched = len({name for message in base.messages.values() for name in message} ^ names)
    yield Measurement("tensors uploaded but not trained, or the reverse", mismatched, "0", mismatched == 0)


def check_sensitivity(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check the change of the average when one unit is left out."""
    base, limit = rounds.round(0.0), _sensitivity(rounds)
    for title, change in _units_to_leave_out(rounds, base):
        other = rounds.round(0.0, without=change)
        found = distance(base.average, other.average)
        allowed = f"at most {limit:.4g}"
        yield Measurement(f"change of the average without {title}", found, allowed, found <= limit * FLOAT32_SLACK)


def check_noise(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check the scale of the noise in messages and in the average, and the independence of all draws."""
    draws: dict[str, Weights] = {}
    for phase, number in ((0, 0), (0, 1), (1, 0)):
        bare, noisy = rounds.round(0.0, phase, number), rounds.round(rounds.sigma, phase, number)
        where = f"phase {phase}, round {number + 1}"
        if rounds.privacy.noise == "client":
            for client, message in noisy.messages.items():
                draws[f"client {client} in {where}"] = subtract(message, bare.messages[client])
        else:
            draws[f"the server in {where}"] = subtract(noisy.average, bare.average)
        if number == phase == 0:
            noise = subtract(noisy.average, bare.average)
            yield from check_scale("noise of the average", noise, _deviation(rounds, average=True))
    first = next(iter(draws))
    if rounds.privacy.noise == "client":
        yield from check_scale(f"noise of {first}", draws[first], _deviation(rounds, average=False))
    yield from check_independence(draws)


def _clip(rounds: PrivacyTestRounds) -> float:
    clip = rounds.privacy.clip or math.inf
    return clip * LONG_STEP if rounds.privacy.unit == "record" else clip


def _sensitivity(rounds: PrivacyTestRounds) -> float:
    """Return the largest change of the average that one unit may cause."""
    privacy, clip, num_clients = rounds.privacy, _clip(rounds), rounds.num_clients
    if privacy.unit == "record":
        return 2 * clip / (rounds.experiment.phases[0].local.batch_size * num_clients)
    units = (privacy.groups_per_client or 1) if privacy.unit == "group" else 1
    if privacy.denominator == "realised":  # the sum of the other units is divided by a smaller number
        plans = rounds.round(0.0).plans
        count = min(len(plan.units) for plan in plans) if privacy.unit == "group" else num_clients
        others = num_clients if privacy.unit == "group" else 1
        return 2 * clip / (others * max(1, count - 1))
    return clip / (units * num_clients)


def _units_to_leave_out(rounds: PrivacyTestRounds, base: ReleasedRound) -> list[tuple[str, PlanChange]]:
    plans, unit = base.plans, rounds.privacy.unit
    if unit == "client":
        return [(f"client {plan.client}", without_client(plan.client)) for plan in plans[:MAX_LEFT_OUT]]
    if unit == "record":
        return [
            (f"example {position} of client {plan.client}", with_another_example(plan.client, position))
            for plan in plans
            for position in range(2)
        ]
    groups = [(plan.client, name) for plan in plans for name in dict.fromkeys(plan.unit_names)]
    chosen = groups[:: max(1, len(groups) // MAX_LEFT_OUT)][:MAX_LEFT_OUT]
    return [(f"group {name} of client {client}", without_group(client, name)) for client, name in chosen]


def _deviation(rounds: PrivacyTestRounds, average: bool) -> float:
    """Return the standard deviation that accounting assumes: sigma·S over the divisor of the sums."""
    privacy, plans, num_clients = rounds.privacy, rounds.round(0.0).plans, rounds.num_clients
    sigma, clip = rounds.sigma, _clip(rounds)
    if privacy.adaptive is not None:
        sigma /= math.sqrt(1 - 1 / (2 * privacy.adaptive.count_noise) ** 2)
    if privacy.unit == "record":
        units = float(rounds.experiment.phases[0].local.batch_size)
    elif privacy.unit == "group" and privacy.denominator == "fixed":
        units = float(privacy.groups_per_client or 1)
    else:
        units = float(min(len(plan.units) for plan in plans))
    divisor = 1.0 if not average else num_clients if privacy.noise == "central" else math.sqrt(num_clients)
    return sigma * clip / (units * divisor)
