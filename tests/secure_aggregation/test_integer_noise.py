"""Discrete Gaussian and Skellam noise: samplers, rounding, and the published accounts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import signal, special, stats

from simfl.codecs.base import MessageContext
from simfl.experiment import SecureAggregation
from simfl.privacy import discrete_noise
from simfl.privacy.accounting import Event, divergences, epsilon
from simfl.privacy.discrete import DiscreteNoise, rounded_norm, sum_gap
from simfl.privacy.randomness import Randomness
from simfl.secure_aggregation.channel import DistributedNoise, SecureChannel, _rounded
from simfl.secure_aggregation.protocol import secure_round

DELTA = 1e-5


def gaussian_masses(variance: float, reach: int) -> np.ndarray:
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    return weights / weights.sum()


def skellam_masses(variance: float, reach: int) -> np.ndarray:
    return special.ive(np.abs(np.arange(-reach, reach + 1)), variance)  # of the parameters v / 2 and v / 2


def brute_divergence(masses: np.ndarray, shift: int, alpha: float) -> float:
    """Return the Rényi divergence of order alpha between integer noise and the same noise shifted."""
    p, q = masses[shift:], masses[:-shift]  # P(x + shift) and P(x)
    kept = (p > 1e-300) & (q > 1e-300)
    return float(special.logsumexp(alpha * np.log(p[kept]) + (1 - alpha) * np.log(q[kept]))) / (alpha - 1)


def brute_epsilon(masses: np.ndarray, shift: int, times: int) -> float:
    """Return epsilon at DELTA of `times` releases, by convolution of the privacy loss distribution, rounded down."""
    p, q = masses[shift:], masses[:-shift]
    kept = (p > 1e-300) & (q > 1e-300)
    step, losses = 2e-3, np.log(p[kept] / q[kept])
    near = np.abs(losses) < 60.0
    cells = np.floor(losses[near] / step).astype(int)
    density = np.bincount(cells - cells.min(), weights=p[kept][near])
    total, first = density, cells.min()
    for _ in range(times - 1):
        total, first = signal.fftconvolve(total, density), first + cells.min()
    values = step * (first + np.arange(len(total)))
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        positive = values > middle
        excess = float((total[positive] * -np.expm1(middle - values[positive])).sum())
        low, high = (middle, high) if excess > DELTA else (low, middle)
    return high


@pytest.mark.parametrize("variance", [1, 30])
def test_the_discrete_gaussian_has_its_masses(variance: int) -> None:
    drawn, reach = discrete_noise.discrete_gaussian(np.random.default_rng(3), variance, 100_000), 4 * variance
    expected = gaussian_masses(variance, 10 * variance + 20)
    middle = 10 * variance + 20
    for value in range(-min(reach, 8), min(reach, 8) + 1):
        mass = expected[middle + value]
        assert abs((drawn == value).mean() - mass) < 6 * math.sqrt(mass * (1 - mass) / 1e5) + 1e-6


def test_large_noise_has_its_variance() -> None:
    rng, variance = np.random.default_rng(0), 10**12
    for drawn in (
        discrete_noise.discrete_gaussian(rng, variance, 40_000),
        discrete_noise.skellam(rng, float(variance), 40_000),
    ):
        assert abs(drawn.var() / variance - 1) < 6 * math.sqrt(2 / 40_000)
        assert abs(drawn.mean()) < 6e6 / 200
        assert stats.kstest(drawn / 1e6, "norm").pvalue > 1e-6


def test_undecided_draws_are_decided_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discrete_noise, "UNDECIDED", 2.0)  # every draw takes the exact path
    first = discrete_noise.discrete_gaussian(np.random.default_rng(5), 9, 300)
    monkeypatch.undo()
    assert (first == discrete_noise.discrete_gaussian(np.random.default_rng(5), 9, 300)).all()
    assert discrete_noise._decays_exactly(np.random.default_rng(0), 0, Fraction(1))
    assert not discrete_noise._decays_exactly(np.random.default_rng(0), 2**53 - 1, Fraction(1, 2))


@pytest.mark.parametrize("mechanism", ["discrete_gaussian", "skellam"])
@pytest.mark.parametrize(("levels", "sigma"), [(3, 1.0), (20, 0.7), (5, 3.0)])
def test_the_account_is_above_brute_force_in_one_dimension(mechanism: str, levels: int, sigma: float) -> None:
    noise = DiscreteNoise(mechanism, levels, 1, 1)
    change = math.floor(noise.sensitivity)
    variance, reach = noise.variance(sigma), int((22 * sigma + 14) * levels) + 20
    masses = gaussian_masses(variance, reach) if mechanism == "discrete_gaussian" else skellam_masses(variance, reach)
    for alpha, bound in zip((2.0, 5.0, 12.0), noise.divergences(sigma, (2.0, 5.0, 12.0)), strict=True):
        assert brute_divergence(masses, change, alpha) <= bound * (1 + 1e-9)
    event = Event(sigma, 1.0, discrete=noise)
    exact = brute_epsilon(masses, change, 4)
    assert exact <= epsilon([(event, 4)], DELTA, "rdp_fine")
    if levels == 20:  # rounding to whole steps is a small part of the change
        assert epsilon([(event, 4)], DELTA, "rdp_fine") <= 1.25 * exact


def test_fine_integer_noise_costs_what_real_noise_costs() -> None:
    for mechanism in ("discrete_gaussian", "skellam"):
        event = Event(4.0, 1.0, 0.3, discrete=DiscreteNoise(mechanism, 1 << 19, 1024, 10))
        real = Event(4.0, 1.0, 0.3)
        assert math.isclose(epsilon([(event, 20)], DELTA), epsilon([(real, 20)], DELTA), rel_tol=5e-3)
        assert epsilon([(event, 20)], DELTA) >= epsilon([(real, 20)], DELTA)


def test_dp_accounting_agrees_without_rounding() -> None:
    """dp-accounting has the discrete Gaussian in one dimension as a loss distribution."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    sigma, levels = 1.0, 8
    found = pld.from_discrete_gaussian_mechanism(
        sigma * levels, sensitivity=levels, value_discretization_interval=1e-3, use_connect_dots=False
    ).self_compose(5)
    exact = brute_epsilon(gaussian_masses((sigma * levels) ** 2, 60 * levels), levels, 5)
    assert math.isclose(found.get_epsilon_for_delta(DELTA), exact, rel_tol=5e-3)
    noise = DiscreteNoise("discrete_gaussian", levels, 1, 1)
    bound = epsilon([(Event(sigma * noise.sensitivity / levels, 1.0, discrete=noise), 5)], DELTA, "rdp_fine")
    assert exact <= bound <= 1.25 * exact


def test_formulas_by_hand() -> None:
    assert math.isclose(rounded_norm(10.0, 16), min(math.sqrt(100 + 4 + 10 + 2), 14.0))
    assert rounded_norm(1.0, 1) == min(math.sqrt(1 + 0.25 + 1.5), 2.0)
    gap = 10 * (math.exp(-2 * math.pi**2 * 0.2 / 2) + math.exp(-2 * math.pi**2 * 0.2 * 2 / 3))
    assert math.isclose(sum_gap(0.2, 3), gap)
    noise = DiscreteNoise("skellam", 10, 16, 4)
    d2, v = math.sqrt(116), 400.0
    d1 = d2 * 4
    expected = 3 * d2**2 / (2 * v) + min((5 * d2**2 + 6 * d1) / (4 * v**2), 3 * d1 / (2 * v))
    assert math.isclose(divergences(Event(2.0, 1.0, discrete=noise), (3.0,))[0], expected)
    two, three = noise.divergences(2.0, (2.0, 3.0))
    assert math.isclose(noise.divergences(2.0, (2.5,))[0], (0.5 * two + 0.5 * 2 * three) / 1.5)


def test_fewer_survivors_leave_less_noise() -> None:
    shares = [DiscreteNoise("skellam", 100, 64, n).share(1.0) for n in (5, 10)]
    assert shares == [2000.0, 1000.0]
    assert 5 * shares[0] == 10 * shares[1] == DiscreteNoise("skellam", 100, 64, 5).variance(1.0)


def test_rounding_keeps_the_norm_and_the_mean() -> None:
    values = np.random.default_rng(0).normal(size=64)
    limit = rounded_norm(float(np.linalg.norm(values)), 64)
    rng, total = np.random.default_rng(1), np.zeros(64)
    for _ in range(400):
        rounded = _rounded(rng, values, limit)
        assert np.linalg.norm(rounded) <= limit
        total += rounded
    assert np.abs(total / 400 - values).mean() < 0.08
    assert (_rounded(rng, values, 0.0) == np.trunc(values)).all()  # where no try succeeds


@pytest.mark.parametrize("mechanism", ["discrete_gaussian", "skellam"])
def test_the_decoded_mean_has_the_noise_of_the_account(mechanism: str) -> None:
    sigma, clip, n, count = 0.8, 0.5, 6, 1000
    spec = DiscreteNoise(mechanism, 1 << 12, 1024, n)
    channel = SecureChannel(
        SecureAggregation(value_bits=13), noise=DistributedNoise(spec, sigma, clip, Randomness.from_seed(1, {}))
    )
    secure = secure_round(channel.settings, (1, "secure_aggregation", 0, 0), range(n))
    updates = torch.from_numpy(np.random.default_rng(0).normal(size=(n, count))).float()
    updates *= clip / updates.norm(dim=1, keepdim=True)
    contexts = [MessageContext((1, 0, 0, "upload", client, "weights")) for client in range(n)]
    encoded = channel.encode("weights", {"w": updates}, [1.0] * n, contexts, secure)
    masked = channel.masked(encoded.integers, "weights", list(range(n)), secure)
    found = channel.mean("weights", masked.sum(0), encoded.layout, float(n), secure)["w"]
    noise = (found - updates.mean(0)).double() * n / (sigma * clip)
    assert abs(float(noise.var()) - 1) < 6 * math.sqrt(2 / count) + 0.05
    assert abs(float(noise.mean())) < 6 / math.sqrt(count)


def test_the_bound_on_sums_holds_for_drawn_noise() -> None:
    noise = DiscreteNoise("skellam", 1000, 4096, 10)
    drawn = discrete_noise.skellam(np.random.default_rng(0), 12 * noise.share(1.0), 200_000)
    assert np.abs(drawn).max() < noise.largest_sum(1.0, 12)
    assert noise.largest_sum(1.0, 12) < 12 * 1000 + 12 + 8 * 1000 * math.sqrt(1.2)
