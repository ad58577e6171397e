"""Privacy accounting, against published values, closed forms and an independent implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simfl.privacy import pld
from simfl.privacy.accounting import ORDERS, Event, divergences, epsilon, noise_multiplier

DELTA = 1e-5


def cost(sigma: float, q: float, times: int, accountant: str = "rdp") -> float:
    return epsilon([(Event(sigma, q), times)], DELTA, accountant)


@pytest.mark.parametrize(
    ("q", "sigma", "alpha", "expected"),
    [
        (0.025, 1.145, 2.0, 0.0007148633),
        (0.025, 1.145, 5.5, 0.0022902537),
        (0.025, 1.145, 8.0, 0.0040521700),
        (0.01, 1.0, 10.0, 0.0382704189),
        (0.1, 2.0, 32.0, 1.6272023010),
        (1.0, 1.145, 5.0, 5.0 / (2 * 1.145**2)),
    ],
)
def test_divergences_match_published_values(q: float, sigma: float, alpha: float, expected: float) -> None:
    assert divergences(Event(sigma, q), (alpha,))[0] == pytest.approx(expected, abs=1e-9)


def test_the_default_orders_are_those_of_the_competition() -> None:
    orders = ORDERS["rdp"]
    assert (orders[0], orders[98], orders[99], orders[-1]) == (1.1, 10.9, 12, 63)
    assert len(orders) == 99 + 52
    assert 11 not in orders


@pytest.mark.parametrize(("target", "sigma"), [(1, 1.1477), (4, 0.6367), (8, 0.4681)])
def test_the_noise_for_the_budgets_of_the_competition_matches(target: float, sigma: float) -> None:
    found = noise_multiplier(target, DELTA, lambda s: [[(Event(s, 0.025), 5)]])
    assert found == pytest.approx(sigma, abs=5e-5)
    assert target * (1 - 1e-5) < cost(found, 0.025, 5) <= target


@pytest.mark.parametrize(
    ("sigma", "q", "times", "expected"),
    [
        (1.145, 0.025, 5, 1.0057),  # the noise in the starter kit for epsilon 1 exceeds the budget
        (0.637, 0.025, 5, 3.9959),
        (0.468, 0.025, 5, 8.0039),
        (1.182, 0.025, 5, 0.9326),
        (1.21, 0.0225, 30, 0.9978),
        (0.695, 0.0225, 30, 4.0000),
        (0.553, 0.0225, 30, 7.130),
    ],
)
def test_the_cost_of_published_noise_matches(sigma: float, q: float, times: int, expected: float) -> None:
    assert cost(sigma, q, times) == pytest.approx(expected, abs=6e-4)


def test_a_client_rate_makes_a_loss_less_likely_and_not_smaller() -> None:
    # one release: delta at epsilon is multiplied by the client rate, so epsilon is that at delta / client_rate
    sampled = pld.epsilon([(1.1, 0.125, 0.2, 1, 1)], DELTA)
    assert sampled == pytest.approx(pld.epsilon([(1.1, 0.125, 1.0, 1, 1)], DELTA / 0.2), rel=1e-3)
    assert cost(1.1, 0.025, 1, "pld") < sampled < pld.epsilon([(1.1, 0.125, 1.0, 1, 1)], DELTA)


def test_a_client_rate_in_renyi_divergence_by_hand() -> None:
    # alpha 2, sigma 1, q 1: exp(D) = e; client rate 1/2: log((1 + e) / 2)
    assert divergences(Event(1.0, 1.0, 0.5), (2.0,))[0] == pytest.approx(math.log((1 + math.e) / 2), abs=1e-12)


slow = [pytest.param(name, marks=pytest.mark.slow) for name in ("rdp_fine", "prv")]


@pytest.mark.parametrize("accountant", ["rdp", "pld", *slow])
def test_cost_decreases_with_noise_and_increases_with_rounds(accountant: str) -> None:
    base = cost(1.0, 0.1, 3, accountant)
    assert cost(1.2, 0.1, 3, accountant) < base < cost(1.0, 0.1, 6, accountant)
    assert base < cost(1.0, 0.2, 3, accountant)


def test_numerical_accountants_agree_and_are_tighter() -> None:
    rdp, fine, prv, loss = (cost(1.1477, 0.025, 5, name) for name in ("rdp", "rdp_fine", "prv", "pld"))
    assert loss == pytest.approx(prv, abs=0.011)  # the upper end of prv is 0.01 above what it estimates
    assert loss < prv < fine <= rdp


def test_cost_is_infinite_without_noise_and_zero_without_rounds() -> None:
    assert cost(0.0, 0.1, 1) == math.inf
    assert epsilon([], DELTA) == epsilon([(Event(0.0, 1.0), 0)], DELTA) == 0.0


def test_phases_with_different_noise_compose() -> None:
    # without sampling, sigma 1 and sigma 2 together are one Gaussian: 1/1 + 1/4 = 5/4 = 1/sigma², so sigma = √0.8
    both = [(Event(1.0, 1.0), 1), (Event(2.0, 1.0), 1)]
    for accountant in ("rdp", "pld"):
        assert epsilon(both, DELTA, accountant) == pytest.approx(cost(math.sqrt(0.8), 1.0, 1, accountant), rel=2e-3)


def test_fractional_orders_match_an_integral() -> None:
    # D = log E over N(0, sigma²) of ((1 − q) + q·exp((2z − 1) / 2 sigma²))^alpha / (alpha − 1)
    sigma, q = 1.145, 0.025
    z = np.linspace(-15 * sigma, 15 * sigma + 30, 400_001)
    density = np.exp(-(z**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    ratio = 1 - q + q * np.exp((2 * z - 1) / (2 * sigma**2))
    for alpha in (1.5, 5.5, 10.9):
        moment = float((density * ratio**alpha).sum() * (z[1] - z[0]))
        found = divergences(Event(sigma, q), (alpha,))[0]
        assert found == pytest.approx(math.log(moment) / (alpha - 1), abs=1e-9)


CASES = [(1.1477, 0.025, 5), (0.8, 0.01, 300), (0.47, 0.025, 5)]


@pytest.mark.parametrize(("sigma", "q", "times"), CASES)
def test_an_independent_accountant_agrees(sigma: float, q: float, times: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)), times)
    exact = dp.pld.PLDAccountant().compose(event).get_epsilon(DELTA)
    assert exact - 1e-9 <= cost(sigma, q, times, "pld") <= exact * 1.005
    assert exact < cost(sigma, q, times)


@pytest.mark.parametrize(("sigma", "q"), [(1.145, 0.025), (0.6, 0.1), (3.0, 1.0)])
def test_divergences_agree_with_the_independent_accountant(sigma: float, q: float) -> None:
    dp = pytest.importorskip("dp_accounting")  # at integer orders; at fractional ones its series is truncated earlier
    orders = (2.0, 3.0, 8.0, 32.0)
    accountant = dp.rdp.RdpAccountant(list(orders))
    accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)))
    assert divergences(Event(sigma, q), orders) == pytest.approx(tuple(accountant._rdp), abs=1e-9)
