"""Synchronous rounds against schedules of ten clients that are computed by hand."""

import numpy as np
import pytest
from schedules import in_seconds, outcomes, round_of, seconds_of

from simfl.errors import RunError
from simfl.virtual_time.availability import Intervals
from simfl.virtual_time.instants import SECOND, draws
from simfl.virtual_time.rounds import num_started
from simfl.virtual_time.selection import History, Oort, Pool, Tiers
from simfl.virtual_time.settings import RoundTime

# client            0  1  2  3  4  5  6  7  8  9
DOWNLOAD = [1, 2, 1, 1, 3, 1, 1, 2, 1, 1]
COMPUTE = [4, 5, 1, 8, 1, 2, 9, 3, 2, 6]
UPLOAD = [2, 1, 1, 3, 2, 1, 2, 2, 2, 1]
ARRIVAL = [7, 8, 3, 12, 6, 4, 12, 7, 5, 8]  # the sums
EVERYONE = list(range(10))


def ten_clients(**settings):
    return seconds_of(DOWNLOAD, COMPUTE, UPLOAD, **settings)


def test_a_round_waits_for_all_clients():
    found = round_of(ten_clients(), RoundTime(), 10)
    assert in_seconds(found.stopped) == ARRIVAL
    assert found.end == 12 * SECOND
    assert set(outcomes(found).values()) == {"applied"}
    # clients 3 and 6 arrive last, at 12 s; the one with the higher number ends the round
    assert found.parts == {"download": SECOND, "compute": 9 * SECOND, "upload": 2 * SECOND, "waiting": 0}


def test_over_selection_keeps_the_first_uploads_and_ties_go_to_the_lower_number():
    found = round_of(ten_clients(), RoundTime(over_selection=2.0), 5, clients=EVERYONE)
    # in order: 2 (3 s), 5 (4 s), 8 (5 s), 4 (6 s), then 0 and 7 at 7 s
    assert outcomes(found) == {k: "applied" if k in (2, 5, 8, 4, 0) else "late" for k in EVERYONE}
    assert found.end == 7 * SECOND
    # at 7 s, client 7 has sent all of its upload, 1 (from 7 s), 3 and 6 (from 9, 10 s) and 9 (from 7 s) none
    assert found.clients[found.wasted].tolist() == [7]
    assert in_seconds(found.stopped) == [7, 7, 3, 7, 6, 4, 7, 7, 5, 7]
    assert in_seconds(found.compute) == [4, 5, 1, 6, 1, 2, 6, 3, 2, 6]


def test_late_clients_may_upload_in_vain():
    found = round_of(ten_clients(), RoundTime(over_selection=2.0, late="upload"), 5, clients=EVERYONE)
    assert found.end == 7 * SECOND
    assert found.clients[found.wasted].tolist() == [1, 3, 6, 7, 9]
    assert in_seconds(found.stopped) == ARRIVAL


def test_a_deadline_ends_the_round_and_an_upload_at_it_counts():
    found = round_of(ten_clients(), RoundTime(deadline=7.0), 10)
    assert found.end == 7 * SECOND
    assert outcomes(found) == {k: "applied" if ARRIVAL[k] <= 7 else "late" for k in EVERYONE}
    assert found.parts == {"download": 2 * SECOND, "compute": 3 * SECOND, "upload": 2 * SECOND, "waiting": 0}
    early = round_of(ten_clients(), RoundTime(deadline=6.5), 10)
    assert early.end == 6.5 * SECOND
    assert early.clients[early.applied].tolist() == [2, 4, 5, 8]
    assert early.parts["waiting"] == SECOND // 2  # after the upload of client 4 at 6 s


def test_a_deadline_that_all_clients_meet_does_not_delay_the_round():
    assert round_of(ten_clients(), RoundTime(deadline=100.0), 10).end == 12 * SECOND


def test_partial_work_takes_as_many_steps_as_fit():
    found = round_of(ten_clients(), RoundTime(deadline=7.0, partial_work=True), 10)
    # a second per step: 1 has 7 − 2 − 1 = 4 of 5 steps, 3 has 3 of 8, 6 has 4 of 9, 9 has 5 of 6
    assert found.steps.tolist() == [4, 4, 1, 3, 1, 2, 4, 3, 2, 5]
    assert set(outcomes(found).values()) == {"applied"}
    assert found.end == 7 * SECOND


def test_partial_work_of_less_than_one_step_is_late():
    found = round_of(ten_clients(), RoundTime(deadline=4.5, partial_work=True), 10)
    # 4 needs 3 + 1 + 2 = 6 s and 3 needs 1 + 1 + 3 = 5 s for one step
    assert [k for k, outcome in outcomes(found).items() if outcome == "late"] == [3, 4, 7]
    assert found.steps.tolist() == [1, 1, 1, 1, 1, 2, 1, 1, 1, 2]


def test_stragglers_stop_early_and_are_left_out_without_partial_work():
    kept = round_of(ten_clients(), RoundTime(stragglers=1.0, partial_work=True), 10)
    part = draws((1, "straggler work", 0), np.arange(10), 0)
    assert kept.steps.tolist() == [min(int(u * n) + 1, n) for u, n in zip(part, COMPUTE, strict=True)]
    assert set(outcomes(kept).values()) == {"applied"}
    dropped = round_of(ten_clients(), RoundTime(stragglers=1.0), 10)
    unfinished = [k for k in EVERYONE if kept.steps[k] < COMPUTE[k]]
    assert [k for k, outcome in outcomes(dropped).items() if outcome == "unfinished"] == unfinished
    assert unfinished


def test_clients_that_leave_end_a_round_when_they_do():
    availability = Intervals(((0.0, 5.5), (20.0, 40.0))).schedule(10, 1)
    times = ten_clients(availability=availability)
    found = round_of(times, RoundTime(), 10)
    assert outcomes(found) == {k: "applied" if ARRIVAL[k] <= 5.5 else "unavailable" for k in EVERYONE}
    assert found.end == 5.5 * SECOND
    assert in_seconds(found.stopped) == [min(5.5, one) for one in ARRIVAL]
    assert found.wasted.tolist() == []
    later = round_of(times, RoundTime(), 10, clock=6)
    assert (later.asked, later.start, later.end) == (6 * SECOND, 20 * SECOND, 32 * SECOND)
    assert later.parts["waiting"] == 14 * SECOND
    with pytest.raises(RunError, match="no client is available any more"):
        round_of(times, RoundTime(), 10, clock=41)


def test_failures_happen_at_a_fraction_of_the_duration():
    times = ten_clients(failure_rate=0.5)
    found = round_of(times, RoundTime(), 10)
    fails = draws((1, "failure", 0), np.arange(10), 0) < 0.5
    at = draws((1, "failure time", 0), np.arange(10), 0)
    assert 0 < fails.sum() < 10
    for k in EVERYONE:
        assert outcomes(found)[k] == ("failed" if fails[k] else "applied")
        assert found.stopped[k] == (int(at[k] * ARRIVAL[k] * SECOND) if fails[k] else ARRIVAL[k] * SECOND)
    assert found.end == found.stopped.max()


@pytest.mark.parametrize(("count", "factor", "started"), [(10, 1.3, 13), (5, 1.0, 5), (3, 1.1, 4), (100, 1.3, 130)])
def test_over_selection_rounds_up(count, factor, started):
    assert num_started(count, factor) == started


def test_a_round_samples_clients_of_one_tier():
    seconds = np.array(ARRIVAL, np.float64)
    tiers = [{2, 5}, {4, 8}, {0, 7}, {1, 9}, {3, 6}]  # by duration, ties by number
    found = [Tiers(5).select(Pool(np.arange(10), 2, seconds, (1, 0, number))).tolist() for number in range(40)]
    assert all(set(one) in tiers for one in found)
    assert {frozenset(one) for one in found} == {frozenset(one) for one in tiers}
    slow = Tiers(5, (0.0, 0.0, 0.0, 0.0, 1.0))
    assert slow.select(Pool(np.arange(10), 2, seconds, (1, 0, 0))).tolist() == [3, 6]
    few = slow.select(Pool(np.array([0, 2, 3, 5, 7]), 2, seconds, (1, 0, 0)))  # tier 5 has one available client
    assert set(few.tolist()) <= {2, 5}


def test_oort_prefers_large_losses_and_short_durations():
    seconds = np.array(ARRIVAL, np.float64)
    utility = np.array([1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0])
    history = History(utility, np.ones(10, np.int64))
    policy = Oort(exploration=0.1, least_exploration=0.1, cutoff=1.0, clip=1.0)
    # T is the 0.3-quantile of the durations, 5 s: client 1 has 9·(5/8)² = 3.5, 3 has 9·(5/12)² = 1.6, 5 has 9
    assert policy.select(Pool(np.arange(10), 3, seconds, (1, 0, 1), history)).tolist() == [1, 3, 5]
    unseen = history._replace(seen=np.array([1, 1, 1, 1, 1, 1, 1, 1, 0, 0]))
    mixed = Oort(exploration=0.5, decay=1.0, cutoff=1.0, clip=1.0).select(
        Pool(np.arange(10), 4, seconds, (1, 0, 1), unseen)
    )
    assert {8, 9} <= set(mixed.tolist())  # half of the clients are new ones


def test_history_keeps_the_newest_losses():
    history = History.empty(4).after(0, np.array([1, 3]), np.array([0.5, np.nan]), np.array([10.0, 2.0]))
    assert history.utility.tolist() == [0.0, 5.0, 0.0, 0.0]
    assert history.seen.tolist() == [0, 1, 0, 1]
