"""Bounds of attacks against brute force, published values and their own coverage."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from simfl.audit import statistics
from simfl.audit.one_run import guess_coins, participation_mu, smallest_error
from simfl.privacy import accounting, pld
from simfl.privacy.accounting import Event


def test_the_interval_of_a_rate_is_that_of_clopper_and_pearson() -> None:
    found = statistics.rate(10, 100)  # their tables: 10 of 100
    assert (round(found.low, 4), round(found.high, 4)) == (0.0490, 0.1762)
    assert statistics.rate(0, 20).low == 0.0
    assert statistics.rate(0, 20).high == pytest.approx(1 - 0.025 ** (1 / 20))  # (1 − p)^n = 2.5 %
    assert statistics.rate(20, 20).high == 1.0


def test_the_one_run_p_value_equals_the_sums_over_binomial_probabilities() -> None:
    m, r, v, epsilon, delta = 30, 12, 10, 0.8, 1e-3
    accuracy = math.exp(epsilon) / (1 + math.exp(epsilon))
    probability = [math.comb(r, k) * accuracy**k * (1 - accuracy) ** (r - k) for k in range(r + 1)]
    slack = max(sum(probability[k] for k in range(v) if k >= v - i) / i for i in range(1, m + 1))
    expected = sum(probability[v:]) + 2 * m * delta * slack
    assert statistics.one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(expected)


def test_perfect_guesses_give_the_pure_bound_of_randomised_response() -> None:
    # all r guesses right and delta 0: accuracy^r = 5 %
    r = 100
    accuracy = 0.05 ** (1 / r)
    found = statistics.one_run_epsilon(r, r, r, 0.0)
    assert found == pytest.approx(math.log(accuracy / (1 - accuracy)), abs=1e-3)


def test_the_one_run_bound_holds_for_randomised_response_in_19_of_20_runs() -> None:
    """Each coin is revealed rightly with the accuracy of epsilon: the bound is above it in at most 5 % of runs."""
    epsilon, m, rng = 1.0, 400, np.random.default_rng(0)
    correct = rng.binomial(m, 1 / (1 + math.exp(-epsilon)), 100)
    above = [statistics.one_run_epsilon(m, m, int(v), 1e-5) > epsilon for v in correct]
    exact = binom.sf(binom.isf(0.05, m, 1 / (1 + math.exp(-epsilon))), m, 1 / (1 + math.exp(-epsilon)))
    assert np.mean(above) <= exact + 0.05


def test_epsilon_of_a_gaussian_is_that_of_the_numerical_accountant() -> None:
    for sigma in (0.6, 3.0):
        exact = statistics.gaussian_epsilon(1 / sigma, 1e-5)
        assert exact == pytest.approx(pld.epsilon([(sigma, 1.0, 1.0, 1, 1)], 1e-5), rel=2e-3)
        assert exact <= accounting.epsilon([(Event(sigma, 1.0), 1)], 1e-5) + 1e-6
    assert statistics.gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.3766, abs=2e-3)  # Balle and Wang 2018, sigma 1


def test_delta_of_a_gaussian_is_the_integral_of_what_exceeds_the_bound() -> None:
    mu, epsilon = 1.3, 0.9
    x = np.linspace(-12, 12, 400_001)
    excess = np.maximum(0.0, norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x)).sum() * (x[1] - x[0])
    assert statistics.gaussian_delta(mu, epsilon) == pytest.approx(excess, rel=1e-5)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_bound_on_mu_is_below_the_truth_and_grows_towards_it(mu: float) -> None:
    rng, found = np.random.default_rng(1), {}
    for n in (200, 20_000):
        draws = [participation_mu(*_products(rng, n, mu)) for _ in range(60)]
        found[n] = float(np.mean([bound for bound, _ in draws]))
        assert sum(bound > mu for bound, _ in draws) <= 3
        assert np.mean([estimate for _, estimate in draws]) == pytest.approx(mu, rel=0.1)
    assert found[200] < found[20_000] < mu
    assert found[20_000] > 0.85 * mu


def _products(rng: np.random.Generator, n: int, mu: float) -> tuple[np.ndarray, np.ndarray]:
    included = rng.random(n) < 0.5
    return included + rng.normal(size=n) / mu, included


def test_the_smallest_error_that_is_found_shrinks_with_the_number_of_canaries() -> None:
    factors = [smallest_error(1.0, n, n) for n in (50, 500, 50_000)]
    assert None not in factors
    assert sorted(factors, reverse=True) == factors  # type: ignore[type-var]
    assert factors[-1] == pytest.approx(1.0, abs=0.05)


def test_guesses_of_independent_scores_prove_nothing_and_of_the_coins_much() -> None:
    rng = np.random.default_rng(2)
    coins = rng.random(500) < 0.5
    assert guess_coins(rng.normal(size=500), coins, 1e-5) < 0.3
    assert guess_coins(np.where(coins, 1.0, -1.0), coins, 1e-5) > 3.5
    assert guess_coins(np.where(coins, -1.0, 1.0), coins, 1e-5) == 0.0


def test_the_area_under_the_curve_is_the_share_of_ordered_pairs() -> None:
    rng = np.random.default_rng(3)
    members, others = rng.integers(0, 6, 17).astype(float), rng.integers(-1, 5, 13).astype(float)
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(members, others)]
    assert statistics.auc(members, others) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
def test_the_interval_of_the_area_covers_the_truth_in_19_of_20_samples(shift: float) -> None:
    rng, truth, covered = np.random.default_rng(4), float(norm.cdf(shift / math.sqrt(2))), 0
    for _ in range(200):
        found = statistics.roc(rng.normal(size=25) + shift, rng.normal(size=30), ()).auc
        assert 0.0 <= found.low <= found.value <= found.high <= 1.0
        covered += found.low <= truth <= found.high
    assert covered >= 0.9 * 200


def test_an_area_of_one_has_an_interval() -> None:
    found = statistics.auc_interval(1.0, 8, 8)
    assert 0.5 < found.low < 0.9
    assert found.high == 1.0


def test_true_positives_are_counted_above_the_largest_other_scores() -> None:
    members, others = np.array([5.0, 2.0, 98.5, 200.0]), np.arange(100.0)
    found = statistics.true_positives(members, others, 0.01)  # one other unit may be above the threshold: 98
    assert found is not None
    assert found.value == 0.5
    assert statistics.true_positives(members, others, 0.001) is None  # 100 units do not resolve it
