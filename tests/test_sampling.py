"""Sampling of clients: C·K in decimals, without replacement or independently, and groups within a client."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import Toy, experiment, run
from hypothesis import given
from hypothesis import strategies as st

from simfl.algorithms.scaffold import Scaffold
from simfl.experiment import Privacy
from simfl.runs import tables
from simfl.sampling import auto_clients_per_batch, num_sampled, sample_clients, sample_groups


def phase(**settings):
    return experiment(**settings).phases[0]


@pytest.mark.parametrize(
    ("participation", "clients", "floor", "half", "ceil"),
    [
        (0.7, 10, 7, 7, 7),  # 6.999… in binary
        (0.29, 100, 29, 29, 29),  # 28.999…
        (0.57, 100, 57, 57, 57),  # 56.99…
        (0.1, 35, 3, 4, 4),  # 3.5
        (0.1, 25, 2, 3, 3),  # 2.5: a half goes up
        (0.2, 12, 2, 2, 3),  # 2.4
        (0.35, 10, 3, 4, 4),  # 3.5
        (0.01, 10, 1, 1, 1),  # 0.1: at least one
        (1e-9, 10, 1, 1, 1),
        (1.0, 10, 10, 10, 10),
        (0.999, 10, 9, 10, 10),  # 9.99, never more than there are
        (0.5, 1, 1, 1, 1),
        (0.3, 3, 1, 1, 1),  # 0.9: one at least
    ],
)
def test_the_number_of_clients_is_exact_and_rounded_as_requested(participation, clients, floor, half, ceil):
    for rounding, number in [("floor", floor), ("round", half), ("ceil", ceil)]:
        requested = phase(participation=participation, rounding=rounding)
        assert num_sampled(requested, clients) == number, rounding
        assert len(set(sample_clients(requested, clients, 42, 0, 0))) == number


def test_clients_per_round_is_the_number_of_sampled_clients():
    assert num_sampled(phase(clients_per_round=3, participation=None), 10) == 3


def test_full_participation_samples_all_clients_in_order():
    assert sample_clients(phase(participation=1.0), 10, 42, 0, 3) == list(range(10))


@given(st.integers(0, 2**31), st.integers(0, 9), st.integers(0, 999))
def test_a_sample_depends_on_seed_phase_and_round_alone(seed, index, number):
    requested = phase(participation=0.3)
    sample = sample_clients(requested, 50, seed, index, number)
    assert sample == sorted(set(sample))
    assert len(sample) == 15
    assert set(sample) <= set(range(50))
    assert sample == sample_clients(requested, 50, seed, index, number)
    assert sample == sample_clients(replace(requested, algorithm=Scaffold()), 50, seed, index, number)
    others = [(seed + 1, index, number), (seed, index + 1, number), (seed, index, number + 1)]
    assert any(sample != sample_clients(requested, 50, *other) for other in others)


def test_all_clients_are_sampled_equally_often():
    """3 of 10 in 1,000 rounds: 300 each, standard deviation sqrt(1000 · 0.3 · 0.7) = 14.5; 5 are allowed."""
    requested, counts = phase(participation=0.3), np.zeros(10)
    for number in range(1000):
        counts[sample_clients(requested, 10, 42, 0, number)] += 1
    assert counts.sum() == 3000
    assert abs(counts - 300).max() < 5 * 14.5


def test_poisson_sampling_includes_each_client_independently():
    """q = 0.25 of 8 clients in 2,000 rounds: binomial numbers of mean 2 and variance 1.5; empty in 0.75^8 = 10 %."""
    requested = phase(poisson=0.25)
    sizes = np.array([len(sample_clients(requested, 8, 42, 0, number)) for number in range(2000)])
    assert num_sampled(requested, 8) is None
    assert sizes.mean() == pytest.approx(2.0, abs=5 * (1.5 / 2000) ** 0.5)
    assert sizes.var() == pytest.approx(1.5, abs=0.25)
    assert (sizes == 0).mean() == pytest.approx(0.75**8, abs=0.035)
    assert sample_clients(phase(poisson=1.0), 8, 42, 0, 0) == list(range(8))


def test_a_round_without_clients_counts_and_changes_nothing(tmp_path):
    case = experiment("scaffold", poisson=0.01, rounds=3)
    assert [sample_clients(case.phases[0], 10, 42, 0, number) for number in range(3)] == [[], [], []]
    summary = run(case, tmp_path)
    assert (summary["status"], summary["rounds"], summary["bytes"]["total"]) == ("completed", 3, 0)
    assert summary["final"] == summary["initial"]
    rows = tables.rows(tmp_path / "rounds.parquet")
    assert [(row["step"], row["sampled"], row["examples"], row["loss"]) for row in rows] == [
        (1, 0, 0, None),
        (2, 0, 0, None),
        (3, 0, 0, None),
    ]
    assert run(case, tmp_path, resume=True)["state_sha256"] == summary["state_sha256"]


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_one_client_per_round_and_a_single_client_work(mode, tmp_path):
    assert run(experiment(mode=mode, clients_per_round=1), tmp_path / "of many")["status"] == "completed"
    alone = experiment(mode=mode, participation=1.0, data=Toy(sizes=(30,)))
    summary = run(alone, tmp_path / "alone")
    assert summary["final"]["accuracy"] > summary["initial"]["accuracy"]
    assert [row["sampled"] for row in tables.rows(tmp_path / "alone" / "rounds.parquet")] == [1, 1, 1]


# groups


def test_all_groups_take_part_by_default():
    assert sample_groups(6, Privacy(), 42, 0, 0, 3) == [0, 1, 2, 3, 4, 5]
    assert sample_groups(6, Privacy(groups_per_client=9), 42, 0, 0, 3) == [0, 1, 2, 3, 4, 5]


@given(st.integers(1, 5), st.integers(0, 99), st.integers(0, 99))
def test_sampled_groups_are_distinct_and_in_order(count, number, client):
    sampled = sample_groups(6, Privacy(groups_per_client=count), 42, 0, number, client)
    assert sampled == sorted(set(sampled))
    assert len(sampled) == count
    assert set(sampled) <= set(range(6))


def test_groups_are_sampled_separately_for_each_client_and_round():
    privacy = Privacy(groups_per_client=2)
    by_round = {tuple(sample_groups(6, privacy, 42, 0, number, 3)) for number in range(40)}
    by_client = {tuple(sample_groups(6, privacy, 42, 0, 1, client)) for client in range(40)}
    assert len(by_round) > 10  # of 15 pairs
    assert len(by_client) > 10


def test_with_a_group_rate_groups_are_included_independently():
    # mean 6 · 0.5 = 3, standard deviation of the mean of 400 is √(6/4/400) = 0.061
    privacy = Privacy(group_rate=0.5)
    counts = [len(sample_groups(6, privacy, 42, 0, number, 3)) for number in range(400)]
    assert abs(np.mean(counts) - 3) < 0.25
    assert set(counts) >= {1, 2, 3, 4, 5}


def test_secure_choices_cannot_be_made_again():
    privacy = Privacy(groups_per_client=10, secure=True)
    assert sample_groups(1000, privacy, 42, 0, 0, 3) != sample_groups(1000, privacy, 42, 0, 0, 3)


@pytest.mark.parametrize(("mode", "expected", "clients_per_batch"), [
    ("vectorized", 1, 1), ("vectorized", 2, 2), ("vectorized", 7, 8), ("vectorized", 50, 16),
    ("sequential", 1, 1), ("sequential", 32, 1), ("sequential", 33, 2), ("sequential", 1000, 32),
    ("sequential", 0.3, 1),
])  # fmt: skip
def test_automatic_clients_per_batch_is_a_power_of_two(mode, expected, clients_per_batch):
    """Side by side all at once up to 16; one by one at most some 32 calls a round."""
    assert auto_clients_per_batch(mode, expected) == clients_per_batch


def test_a_gpu_takes_more_clients_side_by_side():
    assert [auto_clients_per_batch("vectorized", expected, "cuda") for expected in (3, 50, 1000)] == [4, 64, 64]
