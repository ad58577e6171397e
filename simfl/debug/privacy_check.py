"""A white-box check of a privacy mechanism: the experiment's own rounds with and without noise, with units left out.

Without noise, a unit left out must change what is released by S over the denominators at most. What noise
adds must have the standard deviation that the accounts assume, in every tensor, and two noises must have nothing in
common: of two clients, rounds, phases or tensors of one shape. Limits are 6 standard errors wide, so that a right
mechanism fails once in 10^8 times or less.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from simfl.debug.privacy_rounds import (
    LONG,
    Change,
    PrivacyTestRounds,
    Round,
    with_another_example,
    without_client,
    without_group,
)
from simfl.errors import ConfigError, SimflError
from simfl.experiment import Experiment
from simfl.privacy.measured import Measured, distance, scales, unrelated
from simfl.protocol import Weights
from simfl.weights import subtract

LEFT_OUT = 3  # units, one at a time
SLACK = 1 + 1e-3  # of a released difference over the clip, for sums in float32


def check(experiment: Experiment, cache: Path, seed: int | None = None) -> list[Measured]:
    """Everything measured; ConfigError for an experiment without noise. `seed`: in place of the experiment's."""
    if experiment.privacy is None or (experiment.privacy.epsilon is None and not experiment.privacy.noise_multiplier):
        raise ConfigError("privacy: there is no noise to check; give privacy.epsilon or privacy.noise_multiplier")
    with tempfile.TemporaryDirectory(prefix="simfl-check-") as scratch:
        bench = PrivacyTestRounds(experiment if seed is None else replace(experiment, seed=seed), cache, Path(scratch))
        try:
            return [*sampling(bench), *sensitivity(bench), *noise(bench)]
        except SimflError as error:
            return [Measured(f"a round fails: {str(error).splitlines()[0]}", math.nan, "none fails", False)]


def sampling(bench: PrivacyTestRounds) -> Iterator[Measured]:
    """No unit takes part twice, and only what is trained travels."""
    base, names = bench.round(0.0), set(bench.setting.roles(0).shared)
    twice = sum(len(visit.names) - len(set(visit.names)) for visit in base.plans)
    yield Measured("units sampled more than once in a visit", twice, "0", twice == 0)
    strangers = len({name for sent in base.messages.values() for name in sent} ^ names)
    yield Measured("tensors that travel and are not trained, or the reverse", strangers, "0", strangers == 0)


def sensitivity(bench: PrivacyTestRounds) -> Iterator[Measured]:
    """What leaving a unit out changes."""
    base, limit = bench.round(0.0), _limit(bench)
    for title, left_out in _targets(bench, base):
        other = bench.round(0.0, without=left_out)
        change = distance(base.average, other.average)
        yield Measured(
            f"change of the average without {title}", change, f"at most {limit:.4g}", change <= limit * SLACK
        )


def _clip(bench: PrivacyTestRounds) -> float:
    clip = bench.privacy.clip or math.inf
    return clip * LONG if bench.privacy.unit == "record" else clip


def _limit(bench: PrivacyTestRounds) -> float:
    privacy = bench.privacy
    clip = _clip(bench)
    if privacy.unit == "record":
        return 2 * clip / (bench.experiment.phases[0].local.batch_size * bench.clients)
    units = (privacy.groups_per_client or 1) if privacy.unit == "group" else 1
    if privacy.denominator == "realised":  # what is left is divided by less
        count = min(len(visit.units) for visit in bench.round(0.0).plans) if privacy.unit == "group" else bench.clients
        others = bench.clients if privacy.unit == "group" else 1
        return 2 * clip / (others * max(1, count - 1))
    return clip / (units * bench.clients)


def _targets(bench: PrivacyTestRounds, base: Round) -> list[tuple[str, Change]]:
    visits, unit = base.plans, bench.privacy.unit
    if unit == "client":
        return [(f"client {v.client}", without_client(v.client)) for v in visits[:LEFT_OUT]]
    if unit == "record":
        return [
            (f"example {place} of client {v.client}", with_another_example(v.client, place))
            for v in visits
            for place in range(2)
        ]
    some = [(visit.client, name) for visit in visits for name in dict.fromkeys(visit.names)]
    chosen = some[:: max(1, len(some) // LEFT_OUT)][:LEFT_OUT]
    return [(f"group {name} of client {client}", without_group(client, name)) for client, name in chosen]


def noise(bench: PrivacyTestRounds) -> Iterator[Measured]:
    """Scale in messages and in the average, and independence of all that is drawn."""
    drawn: dict[str, Weights] = {}
    for phase, number in ((0, 0), (0, 1), (1, 0)):
        bare, loud = bench.round(0.0, phase, number), bench.round(bench.sigma, phase, number)
        where = f"phase {phase}, round {number + 1}"
        if bench.privacy.noise == "client":
            for client, sent in loud.messages.items():
                drawn[f"client {client} in {where}"] = subtract(sent, bare.messages[client])
        else:
            drawn[f"the server in {where}"] = subtract(loud.average, bare.average)
        if number == phase == 0:
            noise = subtract(loud.average, bare.average)
            yield from scales("noise of the average", noise, _deviation(bench, bench.clients, average=True))
    first = next(iter(drawn))
    if bench.privacy.noise == "client":
        yield from scales(f"noise of {first}", drawn[first], _deviation(bench, bench.clients, average=False))
    yield from unrelated(drawn)


def _deviation(bench: PrivacyTestRounds, clients: int, average: bool) -> float:
    """What the accounts assume: sigma·S over what sums are divided by."""
    privacy, base = bench.privacy, bench.round(0.0)
    sigma, clip = bench.sigma, _clip(bench)
    if privacy.adaptive is not None:
        sigma /= math.sqrt(1 - 1 / (2 * privacy.adaptive.count_noise) ** 2)
    if privacy.unit == "record":
        units = float(bench.experiment.phases[0].local.batch_size)
    elif privacy.unit == "group" and privacy.denominator == "fixed":
        units = float(privacy.groups_per_client or 1)
    else:
        units = float(min(len(visit.units) for visit in base.plans))
    over = 1.0 if not average else clients if privacy.noise == "central" else math.sqrt(clients)
    return sigma * clip / (units * over)


def lines(measured: Sequence[Measured]) -> list[str]:
    """The check for a reader; the last line is the verdict."""
    out = [f"{'holds' if m.holds else 'BROKEN':<7} {m.what}: {m.value:.4g} (allowed: {m.allowed})" for m in measured]
    broken = sum(not m.holds for m in measured)
    verdict = "the mechanism does what its accounts assume" if not broken else f"{broken} of {len(measured)} are broken"
    return [*out, verdict]
