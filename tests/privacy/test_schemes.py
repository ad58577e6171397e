"""Sampling schemes as events, what they cost in each view, and the noise that a budget asks for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import experiment, then

from simfl import config
from simfl.errors import ConfigError, PrivacyError
from simfl.experiment import Privacy
from simfl.privacy import pld
from simfl.privacy.accounting import Event
from simfl.privacy.budget import Budget, foresee
from simfl.privacy.scheme import Population, Scheme

TRACK2 = Path(__file__).parent.parent.parent / "experiments" / "pfl_docvqa"
GROUPS = Privacy(clip=0.5, groups_per_client=50, noise_multiplier=1.0)


def budget(privacy: Privacy, population: Population | None = None, rounds: int = 5, **settings: Any) -> Budget:
    """2 of 10 clients, who have 400 groups at least."""
    sampled = settings if "poisson" in settings else {"clients_per_round": 2, **settings}
    given = experiment("fedavg", rounds=rounds, weighting="uniform", **sampled)
    population = population or Population(10, (400, 401, 429), (4000, 5000))
    return Budget(Scheme(privacy, given.phases, population), privacy.noise_multiplier or 1.0)


def events(given: Budget, view: str) -> list[Event]:
    """The event of one round, for each kind of unit that may pay most."""
    return [pair[0] for (pair,) in given.scheme.histories(given.noise_multiplier, {0: 1}, view)]


def only_event(given: Budget, view: str) -> Event:
    (event,) = events(given, view)
    return event


def test_the_formula_multiplies_both_rates_and_keeps_a_clients_own_noise() -> None:
    # q = (2/10)·(50/400)
    assert only_event(budget(GROUPS), "formula") == Event(1.0, 0.025)


def test_averages_hold_all_clients_noise_and_a_sample_of_fixed_size_gives_up_another() -> None:
    # sigma·√2 over a difference of 2 S; a client is visited with 2/10, a group drawn with 50/400
    event = only_event(budget(GROUPS), "averages")
    assert event == Event(math.sqrt(2) / 2, 0.125, 0.2)


def test_where_clients_remember_their_messages_one_clients_noise_counts() -> None:
    given = experiment("dp_clgecl", rounds=5, weighting="uniform", clients_per_round=2)
    event = only_event(Budget(Scheme(GROUPS, given.phases, Population(10, (400,), ())), 1.0), "averages")
    assert event == Event(0.5, 0.125, 0.2)


def test_messages_hold_one_clients_noise_and_show_its_visit() -> None:
    assert only_event(budget(GROUPS), "messages") == Event(0.5, 0.125, 1.0)


def test_groups_drawn_each_on_its_own_lose_nothing() -> None:
    poisson = replace(GROUPS, group_rate=0.125)
    assert only_event(budget(poisson), "messages") == Event(1.0, 0.125)
    assert only_event(budget(poisson), "averages") == Event(math.sqrt(2), 0.125, 0.2)


def test_with_zero_out_a_sampled_place_may_show() -> None:
    assert only_event(budget(replace(GROUPS, adjacency="zero_out")), "messages") == Event(1.0, 1.0, 0.125)
    realised = replace(GROUPS, adjacency="zero_out", denominator="realised", group_rate=0.125)
    assert only_event(budget(realised), "messages") == Event(1.0, 1.0, 0.125)


def test_clients_with_fewer_groups_than_asked_for_are_accounted_whole() -> None:
    few = Population(10, (30, 400), ())
    found = events(budget(GROUPS, few), "messages")
    assert Event(1.0, 1.0) in found  # of 30 groups all take part
    assert Event(0.5, 0.125) in found
    assert budget(GROUPS, few).scheme.rate(budget(GROUPS).scheme.phases[0]) == pytest.approx(
        0.2
    )  # (2/10)·min(1, 50/30)


def test_one_more_group_than_asked_for_can_be_given_up() -> None:
    # all 50 groups of a client take part; with one more, one of 51 is left out
    found = events(budget(GROUPS, Population(10, (50,), ())), "messages")
    assert found == [Event(1.0, 1.0), Event(0.5, 50 / 51)]


def test_central_noise_is_the_averages_own_and_messages_are_bare() -> None:
    central = budget(replace(GROUPS, noise="central", group_rate=0.125))
    assert only_event(central, "averages") == Event(1.0, 0.125, 0.2)
    assert central.epsilon({0: 1}, "messages") == math.inf


def test_clients_as_units() -> None:
    central = Privacy(unit="client", clip=1.0, noise="central", noise_multiplier=1.0)
    assert only_event(budget(central, poisson=0.2), "averages") == Event(1.0, 0.2)
    fixed = events(budget(central), "averages")
    assert fixed == [Event(0.5, 0.2), Event(0.5, 2 / 11)]
    alone = Privacy(unit="client", clip=1.0, noise_multiplier=1.0, adjacency="zero_out")
    assert only_event(budget(alone), "averages") == Event(math.sqrt(2), 1.0, 0.2)
    assert only_event(budget(alone), "messages") == Event(1.0, 1.0)


def test_records_as_units() -> None:
    # 10 examples in batches of 8: two steps of 8/10 each; 40 examples: five steps of 8/40
    record = Privacy(unit="record", clip=1.0, noise_multiplier=2.0)
    small = budget(record, Population(10, (), (10, 40)))
    assert sorted(events(small, "averages"), key=lambda e: e.steps) == [
        Event(2.0, 0.8, 0.2, 2),
        Event(2.0, 0.2, 0.2, 5),
    ]


def test_multipliers_of_a_message_and_of_the_average() -> None:
    found = budget(GROUPS).scheme.multipliers(1.0)
    assert found == {"message_multiplier": 1.0, "average_multiplier": pytest.approx(math.sqrt(2))}


def test_sampled_clients_that_show_cost_more_than_the_formula_says() -> None:
    # the same noise, 5 rounds: units of a client are sampled together, so the formula's rate is not theirs
    given = budget(replace(GROUPS, group_rate=0.125, noise_multiplier=1.1477))
    exact = pld.epsilon([(1.1477 * math.sqrt(2), 0.125, 0.2, 1, 5)], 1e-5)
    formula = pld.epsilon([(1.1477, 0.025, 1.0, 1, 5)], 1e-5)
    assert given.epsilon({0: 5}, "formula") == pytest.approx(0.9999, abs=1e-4)
    assert exact > formula


def test_the_noise_meets_the_budget_over_all_phases() -> None:
    one = experiment("fedavg", rounds=3, weighting="uniform", clients_per_round=2)
    two = experiment("fedavg", rounds=4, weighting="uniform", clients_per_round=5)
    both = replace(then(one, two), privacy=Privacy(clip=1.0, groups_per_client=2, epsilon=3.0, min_groups=3))
    made = Budget.of(both, num_clients=10)
    spent = made.epsilon({0: 3, 1: 4})
    assert 3.0 * (1 - 1e-5) < spent <= 3.0
    assert made.epsilon({0: 3}) < made.epsilon({0: 3, 1: 1}) < spent


def test_a_budget_with_noise_of_its_own_ends_before_it_is_overdrawn() -> None:
    given = budget(replace(GROUPS, epsilon=6.0))
    assert given.epsilon({0: 1}) < 6.0 < given.epsilon({0: 30})
    given.afford({0: 1})
    with pytest.raises(PrivacyError, match=r"privacy: round 30 would bring epsilon to .*, and privacy.epsilon is 6"):
        given.afford({0: 30})


def test_without_the_data_their_public_facts_are_asked_for() -> None:
    given = replace(
        experiment("fedavg", weighting="uniform", clients_per_round=2),
        privacy=Privacy(clip=1.0, groups_per_client=2, epsilon=3.0),
    )
    with pytest.raises(ConfigError, match=r"partition\.clients: needed"):
        foresee(given)
    with pytest.raises(ConfigError, match=r"privacy\.min_groups: needed"):
        foresee(given, num_clients=10)


@pytest.mark.parametrize(("target", "sigma"), [(1, 1.1477), (4, 0.6367), (8, 0.4681)])
def test_the_competitions_baseline_is_foreseen_without_its_data(target: int, sigma: float) -> None:
    found = foresee(config.load(TRACK2 / "track2_baseline.yaml", [f"privacy.epsilon={target}"]))
    assert found.noise_multiplier == pytest.approx(sigma, abs=5e-5)
    assert (found.sampling_rate, found.rounds, found.delta) == (pytest.approx(0.025), 5, 1e-5)
    assert target * (1 - 1e-5) < found.epsilon <= target
    assert found.views["averages"] > found.epsilon


@pytest.mark.parametrize(
    ("name", "sigmas"),
    [  # the same formula at other rates and rounds: (q, T) is (.0225, 30), (.025, 30), (.025, 14), (.025, 12)
        ("track2_lora", (1.2088, 0.695, 0.5289)),
        ("track2_lora_paper", (1.2422, 0.7108, 0.5395)),
        ("track2_clgecl", (1.1904, 0.6759, 0.5064)),
        ("track2_clgecl_momentum", (1.1826, 0.6694, 0.5002)),
    ],
)
def test_the_other_entries_have_noise_of_their_own(name: str, sigmas: tuple[float, ...]) -> None:
    given = config.load(TRACK2 / f"{name}.yaml")
    for target, sigma in zip((1, 4, 8), sigmas, strict=True):
        noisy = replace(given, privacy=replace(given.privacy, epsilon=None, noise_multiplier=sigma))
        spent = Budget.of(noisy).epsilon({0: given.phases[0].rounds}, "formula")
        assert spent == pytest.approx(target, rel=1e-3)
