"""Sampling schemes as events, their cost in each view, and the noise that a budget requires."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Toy, experiment, then

from simfl import config
from simfl.data.partition.holdout import assign
from simfl.data.partition.partitioners import Official
from simfl.errors import ConfigError, PrivacyError
from simfl.experiment import Privacy
from simfl.privacy import pld
from simfl.privacy.accounting import Event
from simfl.privacy.budget import Budget, forecast
from simfl.privacy.scheme import Population, Scheme
from simfl.privacy.statement import statement

TRACK2 = Path(__file__).parent.parent.parent / "experiments" / "pfl_docvqa"
GROUPS = Privacy(clip=0.5, groups_per_client=50, noise_multiplier=1.0)


def budget(privacy: Privacy, population: Population | None = None, rounds: int = 5, **settings: Any) -> Budget:
    """Return a budget for 2 of 10 clients with at least 400 groups each."""
    sampled = settings if "poisson" in settings else {"clients_per_round": 2, **settings}
    sampled = {name: value for name, value in sampled.items() if value is not None}
    given = experiment("fedavg", rounds=rounds, weighting="uniform", **sampled)
    population = population or Population(10, (400, 401, 429), (4000, 5000))
    return Budget(Scheme(privacy, given.phases, population), privacy.noise_multiplier or 1.0)


def events(given: Budget, view: str) -> list[Event]:
    """Return the event of one round, for each kind of unit that may have the highest cost."""
    return [pair[0] for (pair,) in given.scheme.histories(given.noise_multiplier, {0: 1}, view)]


def only_event(given: Budget, view: str) -> Event:
    (event,) = events(given, view)
    return event


def test_the_formula_multiplies_both_rates_and_uses_the_noise_of_one_client() -> None:
    # q = (2/10)·(50/400)
    assert only_event(budget(GROUPS), "formula") == Event(1.0, 0.025)


def test_averages_carry_the_noise_of_all_clients_and_a_fixed_size_halves_it() -> None:
    # sigma·√2 over a difference of 2 S; a client is sampled at 2/10, a group at 50/400
    event = only_event(budget(GROUPS), "averages")
    assert event == Event(math.sqrt(2) / 2, 0.125, 0.2)


def test_if_clients_store_their_messages_only_the_noise_of_one_client_counts() -> None:
    given = experiment("dp_clgecl", rounds=5, weighting="uniform", clients_per_round=2)
    event = only_event(Budget(Scheme(GROUPS, given.phases, Population(10, (400,), ())), 1.0), "averages")
    assert event == Event(0.5, 0.125, 0.2)


def test_messages_carry_the_noise_of_one_client_and_reveal_its_sampling() -> None:
    assert only_event(budget(GROUPS), "messages") == Event(0.5, 0.125, 1.0)


def test_poisson_sampling_of_groups_keeps_the_noise() -> None:
    poisson = replace(GROUPS, group_rate=0.125)
    assert only_event(budget(poisson), "messages") == Event(1.0, 0.125)
    assert only_event(budget(poisson), "averages") == Event(math.sqrt(2), 0.125, 0.2)


def test_with_zero_out_a_sampled_slot_may_be_visible() -> None:
    assert only_event(budget(replace(GROUPS, adjacency="zero_out")), "messages") == Event(1.0, 1.0, 0.125)
    realised = replace(GROUPS, adjacency="zero_out", denominator="realised", group_rate=0.125)
    assert only_event(budget(realised), "messages") == Event(1.0, 1.0, 0.125)


def test_clients_with_fewer_groups_than_requested_contribute_all() -> None:
    few = Population(10, (30, 400), ())
    found = events(budget(GROUPS, few), "messages")
    assert Event(1.0, 1.0) in found  # all 30 groups contribute
    assert Event(0.5, 0.125) in found
    assert budget(GROUPS, few).scheme.rate(budget(GROUPS).scheme.phases[0]) == pytest.approx(
        0.2
    )  # (2/10)·min(1, 50/30)


def test_a_client_with_the_requested_number_of_groups_may_have_one_more() -> None:
    # all 50 groups of a client contribute; with one more, one of 51 is left out
    found = events(budget(GROUPS, Population(10, (50,), ())), "messages")
    assert found == [Event(1.0, 1.0), Event(0.5, 50 / 51)]


def test_central_noise_protects_averages_and_not_messages() -> None:
    central = budget(replace(GROUPS, noise="central", group_rate=0.125))
    assert only_event(central, "averages") == Event(1.0, 0.125, 0.2)
    assert central.epsilon({0: 1}, "messages") == math.inf


def test_events_with_clients_as_units() -> None:
    central = Privacy(unit="client", clip=1.0, noise="central", noise_multiplier=1.0)
    assert only_event(budget(central, poisson=0.2), "averages") == Event(1.0, 0.2)
    fixed = events(budget(replace(central, min_clients=10)), "averages")
    assert fixed == [Event(0.5, 0.2)]  # with more clients, each is sampled more rarely
    alone = Privacy(unit="client", clip=1.0, noise_multiplier=1.0, adjacency="zero_out")
    assert only_event(budget(alone), "averages") == Event(math.sqrt(2), 1.0, 0.2)
    assert only_event(budget(alone), "messages") == Event(1.0, 1.0)


def test_without_a_public_number_of_clients_both_adjacencies_are_accounted_and_zero_out_is_claimed() -> None:
    given = budget(Privacy(unit="client", clip=1.0, noise="central", noise_multiplier=1.0))
    assert events(given, "averages") == [Event(0.5, 0.2), Event(1.0, 1.0, 0.2)]
    assert given.scheme.adjacency == "zero_out"


def test_events_with_records_as_units() -> None:
    # 10 examples in batches of 8: two steps of 8/10 each; 40 examples: five steps of 8/40
    record = Privacy(unit="record", clip=1.0, noise_multiplier=2.0, adjacency="zero_out")
    small = budget(record, Population(10, (), (10, 40)))
    assert sorted(events(small, "averages"), key=lambda e: e.steps) == [
        Event(2.0, 0.8, 0.2, 2),
        Event(2.0, 0.2, 0.2, 5),
    ]


def test_a_record_more_that_makes_a_step_more_is_accounted() -> None:
    # 20 records in batches of 10: two steps; 21: three steps
    record = Privacy(unit="record", clip=1.0, noise_multiplier=1.0)
    given = budget(
        record, Population(1, (), (20,)), rounds=10, participation=1.0, clients_per_round=None, batch_size=10
    )
    assert {event.steps for event in events(given, "averages")} == {2, 3}
    assert given.epsilon({0: 10}) >= 19.80
    assert given.scheme.adjacency == "zero_out"


def test_with_a_public_number_of_records_rate_and_steps_do_not_depend_on_the_data() -> None:
    record = Privacy(unit="record", clip=1.0, noise_multiplier=1.0, min_examples=16)
    given = budget(record, Population(10, (), (16,)))
    assert events(given, "averages") == [Event(1.0, 0.5, 0.2, 2)]
    assert given.scheme.adjacency == "add_remove"


@pytest.mark.parametrize("sizes", [(10,), (10, 60), (20, 40), (51,), (70, 90)])
def test_a_looser_bound_never_lowers_epsilon(sizes: tuple[int, ...]) -> None:
    exact = budget(GROUPS, Population(10, sizes))
    spent = exact.epsilon({0: 5})
    for bound in range(sizes[0], 0, -9):
        looser = budget(replace(GROUPS, min_groups=bound), Population(10, (bound,)))
        assert looser.epsilon({0: 5}) >= spent
        spent = looser.epsilon({0: 5})


def test_a_bound_on_the_number_of_clients_holds_where_clients_add_noise() -> None:
    def event(bound: int | None) -> Event:
        privacy = Privacy(
            unit="client", clip=0.5, noise="client", noise_multiplier=1.0, adjacency="zero_out", min_clients=bound
        )
        return only_event(budget(privacy), "averages")

    assert event(None) == event(10) == Event(math.sqrt(2), 1.0, 0.2)
    assert event(5) == Event(math.sqrt(2), 1.0, 0.4)
    assert event(1) == Event(1.0, 1.0, 1.0)  # a single client has its own noise alone, and is always sampled


def test_realised_divisors_carry_less_than_the_noise_of_all_clients() -> None:
    # clients with 1 and 50 groups, noise sigma·S/m of each: m_min·√(1/1² + 9/50²) = 1.0018 in place of √10
    realised = Privacy(clip=0.5, noise_multiplier=1.0, denominator="realised", adjacency="zero_out")
    given = budget(realised, Population(10, (1, 50)), rounds=1, participation=1.0, clients_per_round=None)
    assert only_event(given, "averages").noise_multiplier == pytest.approx(1.0018, abs=1e-4)
    assert given.epsilon({0: 1}) >= 4.7
    rated = budget(replace(realised, group_rate=0.5), Population(10, (50,)), participation=1.0, clients_per_round=None)
    assert only_event(rated, "averages").noise_multiplier == 1.0


def test_a_delta_that_allows_to_publish_a_unit_is_refused() -> None:
    given = replace(
        experiment("fedavg", weighting="uniform", clients_per_round=2),
        privacy=Privacy(unit="client", clip=1.0, noise="central", noise_multiplier=1.0, delta=0.1),
    )
    with pytest.raises(ConfigError, match=r"privacy\.delta: 0\.1 given, but there are 10 clients"):
        Budget.of(given, num_clients=10)


def test_multipliers_are_those_of_a_message_and_of_the_average() -> None:
    found = budget(GROUPS).scheme.multipliers(1.0)
    assert found == {"message_multiplier": 1.0, "average_multiplier": pytest.approx(math.sqrt(2))}


def test_visible_sampling_of_clients_costs_more_than_the_formula() -> None:
    # the same noise, 5 rounds: units of a client are sampled together, so the rate of the formula does not apply
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


def test_a_budget_with_given_noise_is_not_exceeded() -> None:
    given = budget(replace(GROUPS, epsilon=6.0))
    assert given.epsilon({0: 1}) < 6.0 < given.epsilon({0: 30})
    given.check({0: 1})
    with pytest.raises(PrivacyError, match=r"privacy: round 30 would raise epsilon to .*, but privacy.epsilon is 6"):
        given.check({0: 30})


def test_noise_that_does_not_allow_the_first_round_is_refused() -> None:
    def given(sigma: float) -> Budget:
        privacy = replace(GROUPS, epsilon=1.0, noise_multiplier=sigma, min_groups=400)
        return Budget.of(
            experiment("fedavg", weighting="uniform", clients_per_round=2, privacy=privacy), None, num_clients=10
        )

    assert given(3.0).noise_multiplier == 3.0
    for sigma, cost in ((0.0, "inf"), (0.1, r"[\d.]+")):
        message = f"privacy.epsilon: 1 given, but with noise_multiplier: {sigma:g} the first round costs {cost};"
        with pytest.raises(ConfigError, match=message):
            given(sigma)


def test_an_epsilon_that_the_accountant_does_not_find_is_not_called_a_lack_of_noise() -> None:
    privacy = replace(GROUPS, noise_multiplier=0.05, min_groups=400, accountant="pld")
    found = Budget.of(
        experiment("fedavg", weighting="uniform", clients_per_round=2, privacy=privacy), None, num_clients=10
    )
    text = " ".join(statement(found, found.everything).split())
    assert "The accountant 'pld' finds no finite epsilon for this noise at delta 1e-05" in text
    assert "No noise is added" not in text


def test_without_the_data_their_public_sizes_are_required() -> None:
    given = replace(
        experiment("fedavg", weighting="uniform", clients_per_round=2),
        privacy=Privacy(clip=1.0, groups_per_client=2, epsilon=3.0),
    )
    with pytest.raises(ConfigError, match=r"partition\.clients: needed"):
        forecast(given)
    with pytest.raises(ConfigError, match=r"privacy\.min_groups: needed"):
        forecast(given, num_clients=10)


@pytest.mark.parametrize(("target", "sigma"), [(1, 1.1477), (4, 0.6367), (8, 0.4681)])
def test_the_cost_of_the_competition_baseline_needs_no_data(target: int, sigma: float) -> None:
    found = forecast(config.load(TRACK2 / "track2_baseline.yaml", [f"privacy.epsilon={target}"]))
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
def test_the_noise_of_the_other_entries_meets_their_budgets(name: str, sigmas: tuple[float, ...]) -> None:
    given = config.load(TRACK2 / f"{name}.yaml")
    for target, sigma in zip((1, 4, 8), sigmas, strict=True):
        assert given.privacy is not None
        noisy = replace(given, privacy=replace(given.privacy, epsilon=None, noise_multiplier=sigma))
        spent = Budget.of(noisy).epsilon({0: given.phases[0].rounds}, "formula")
        assert spent == pytest.approx(target, rel=1e-3)


def test_a_cap_of_examples_bounds_the_steps_that_records_are_charged_for() -> None:
    """Four passes over 200 records are 80 steps of 10; over at most 50 they are 20, each at four times the rate."""
    split, found = Toy(sizes=(200,) * 5).load(Path()).splits["train"], []
    for most in (None, 50):
        partition = Official(groups="group", max_examples=most)
        given = experiment(
            "dp_sgd",
            privacy=Privacy(unit="record", clip=1.0, noise_multiplier=1.0, adjacency="zero_out"),
            partition=partition,
            epochs=4,
            batch_size=10,
        )
        scheme = Budget.of(given, assign(partition, split, 0)).scheme
        event = scheme.histories(1.0, {0: 1}, "messages")[0][0][0]
        found.append((event.steps, event.sampling_rate))
    assert found == [(80, 0.05), (20, 0.2)]
