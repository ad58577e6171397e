"""Properties of schedules over random profiles: conservation, order, independence of the number of clients."""

import numpy as np
import pytest
from schedules import in_seconds, round_of, seconds_of

from simfl.virtual_time.availability import Always, Diurnal, Intervals
from simfl.virtual_time.instants import FOREVER, SECOND, draws, factors, nanoseconds
from simfl.virtual_time.profiles import Profile, Work, client_profiles, durations
from simfl.virtual_time.rounds import APPLIED, LATE, UNFINISHED
from simfl.virtual_time.settings import RoundTime


def random_round(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    availability = [
        None,
        Diurnal(share=0.5, zones=50.0, spread=1.0, period=50.0).schedule(count, seed),
        Intervals(((0.0, 20.0), (25.0, 60.0)), period=70.0, shift=70.0).schedule(count, seed),
    ][int(rng.integers(3))]
    parts = [rng.integers(0 if name != "compute" else 1, 20, count).tolist() for name in ("down", "compute", "up")]
    rates = {"failure_rate": float(rng.choice([0.0, 0.3])), "jitter": float(rng.choice([0.0, 0.5])), "seed": seed}
    times = seconds_of(*parts, availability=availability, **rates)
    deadline = [None, float(rng.integers(1, 40))][int(rng.integers(2))]
    stragglers = float(rng.choice([0.0, 0.5]))
    settings = RoundTime(
        over_selection=float(rng.choice([1.0, 1.3, 2.0])),
        deadline=deadline,
        partial_work=bool(rng.integers(2)) and (deadline is not None or stragglers > 0),
        stragglers=stragglers,
        late=str(rng.choice(["cancel", "upload"])),
    )
    wanted = int(rng.integers(1, count + 1))
    return times, settings, wanted, round_of(times, settings, wanted, clock=int(rng.integers(100)))


@pytest.mark.parametrize("seed", range(60))
def test_every_started_update_has_one_outcome_and_rounds_are_consistent(seed):
    times, settings, wanted, found = random_round(seed)
    applied = found.applied
    assert len(found.outcome) == len(found.clients) == len(set(found.clients.tolist()))  # one outcome each
    assert len(applied) <= wanted
    assert found.asked <= found.start <= found.end
    assert (found.stopped[applied] <= found.end).all()
    assert (found.start + found.durations.total[applied] == found.stopped[applied]).all()
    assert sum(found.parts.values()) == found.end - found.asked
    assert all(part >= 0 for part in found.parts.values())
    if settings.deadline is not None:
        assert found.end - found.start <= int(nanoseconds(settings.deadline))
    lost = found.outcome > LATE
    assert (found.stopped[lost & (found.outcome != UNFINISHED)] <= found.end).all()
    assert not found.uploads[lost].any()
    assert found.uploads[applied].all()
    assert (found.steps >= 1).all()
    assert (found.steps <= times.steps[found.clients]).all()
    if len(applied) < wanted:  # nobody else could have been applied
        arrives = found.start + found.durations.total <= found.end
        assert not (arrives & (found.outcome == LATE)).any()


def test_a_schedule_does_not_depend_on_the_order_of_its_clients_or_on_others():
    """Durations of a client are functions of its own name: a cohort and a part of it agree."""
    profile = Profile(devices={"phone_low": 0.5, "laptop": 0.5}, device_spread=0.5, network_spread=1.0, jitter=0.3)
    few, many = (client_profiles(profile, count, 7) for count in (10, 1000))
    for name in ("flops", "download", "upload", "device"):
        assert np.array_equal(getattr(few, name), getattr(many, name)[:10])
    clients = np.array([3, 7, 900])
    work = Work(np.full(3, 1e6), np.full(3, 1e6), np.full(3, 50.0), 1e8)
    whole = durations(many, clients, work, 0, 5)
    for k in range(3):
        one = durations(many, clients[k : k + 1], Work(*(part[k : k + 1] for part in work[:3]), work.flops), 0, 5)
        assert [int(part[0]) for part in one] == [int(part[k]) for part in whole]
    others = durations(many, clients, work, 0, 6)
    assert (others.compute != whole.compute).all()  # each update has its own jitter


def test_draws_are_uniform_and_differ_by_name():
    clients = np.arange(20_000)
    a, b, c = draws((1, "a"), clients), draws((1, "b"), clients), draws((1, "a"), clients, 1)
    for one in (a, b, c):
        assert abs(one.mean() - 0.5) < 0.01
        assert abs(np.mean(one < 0.1) - 0.1) < 0.01
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03
    assert abs(np.corrcoef(a, c)[0, 1]) < 0.03
    assert np.array_equal(a, draws((1, "a"), clients))


def test_factors_have_median_1_and_the_given_bounds():
    found = factors(0.5, np.array([0.0, 0.25, 0.5, 0.75, 1.0 - 2**-24]))
    assert found[:4] == pytest.approx([1 / 1.5, 1 / 1.25, 1.0, 1.25])
    assert found[4] < 1.5


def test_fractions_of_devices():
    profile = Profile(devices={"phone_low": 0.2, "phone_high": 0.5, "h100": 0.3})
    found = client_profiles(profile, 20_000, 3)
    assert np.bincount(found.device) / 20_000 == pytest.approx([0.2, 0.5, 0.3], abs=0.01)


@pytest.mark.parametrize(
    "availability",
    [
        Diurnal(share=0.3, zones=100.0, spread=0.5, period=100.0),
        Intervals(((5.0, 10.0), (10.0, 12.0)), period=40.0, shift=40.0),
    ],
    ids=["diurnal", "intervals"],
)
def test_availability_against_every_second(availability):
    """Both questions against a walk over single instants."""
    schedule, clients = availability.schedule(20, 5), np.arange(20)
    step = SECOND // 2
    grid = np.stack([schedule.next_available(clients, at * step) == at * step for at in range(600)])
    for at in range(0, 150, 7):
        following, until = schedule.next_available(clients, at * step), schedule.available_until(clients, at * step)
        for k in clients:
            later = np.flatnonzero(grid[at:, k])
            assert following[k] <= (at + later[0]) * step < following[k] + step
            if grid[at, k]:
                gap = np.flatnonzero(~grid[at:, k])
                assert (at + gap[0]) * step - step < until[k] <= (at + gap[0]) * step
            else:
                assert until[k] == at * step


def test_always_is_always():
    schedule, clients = Always().schedule(3, 0), np.arange(3)
    assert schedule.next_available(clients, 7).tolist() == [7, 7, 7]
    assert schedule.available_until(clients, 7).tolist() == [FOREVER] * 3


def test_adjoining_intervals_are_one_also_over_the_end_of_the_period():
    schedule = Intervals(((0.0, 10.0), (10.0, 20.0), (30.0, 40.0)), period=40.0).schedule(1, 0)
    one = np.zeros(1, np.int64)
    until = [schedule.available_until(one, at * SECOND)[0] // SECOND for at in (0, 15, 30, 39)]
    assert until == [20, 20, 60, 60]
    full = Intervals(((0.0, 40.0),), period=40.0).schedule(1, 0)
    assert full.available_until(one, 5)[0] == FOREVER


def test_nanoseconds_round_up_and_stop_at_forever():
    assert nanoseconds(np.array([0.0, 1e-10, 1.5, 1e30])).tolist() == [0, 1, 1_500_000_000, FOREVER]


def test_the_whole_model_is_vectorized_over_a_million_clients():
    profile = Profile(availability=Diurnal())
    found = client_profiles(profile, 100_000, 1)
    clients = np.arange(100_000)
    work = Work(np.full(100_000, 4e6), np.full(100_000, 4e6), np.full(100_000, 10.0), 1e9)
    assert (durations(found, clients, work, 0, 0).total > 0).all()
    assert 0.3 < np.mean(found.availability.next_available(clients, SECOND) == SECOND) < 0.36


def test_the_curve_of_arrivals():
    found = round_of(seconds_of([0] * 4, [1, 2, 3, 4], [0] * 4), RoundTime(), 4)
    assert in_seconds(found.stopped) == [1, 2, 3, 4]
    assert (found.outcome == APPLIED).all()
