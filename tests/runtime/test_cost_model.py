"""What work costs on each worker is learned from measurements, and dealt to who would end it first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from simfl.runtime.ray.cost_model import Costs, Shape, remaining, sent_now

Seconds = Callable[[int, Shape], float]


def warmed(*workers: int) -> Costs:
    """Costs that have seen a first measurement of each worker, which does not count."""
    costs = Costs()
    for worker in workers:
        costs.learn(worker, (1.0, 1.0), 1000.0)
    return costs


def test_before_anything_is_known_work_is_sorted_by_its_steps() -> None:
    costs = warmed(0, 1)
    assert not costs.known
    assert costs.anywhere((1.0, 3.0, 17.0)) == 17.0
    assert costs.seconds(1, (1.0, 3.0, 17.0)) == 17.0


def test_a_call_has_a_fixed_part_and_one_that_grows() -> None:
    """1.5 s for 10 steps and 2.5 s for 20: half a second, and a tenth a step; so 4.5 s for 40."""
    costs = warmed(0)
    costs.learn(0, (1.0, 10.0), 1.5)
    costs.learn(0, (1.0, 20.0), 2.5)
    assert costs.seconds(0, (1.0, 40.0)) == pytest.approx(4.5, rel=0.01)
    assert costs.seconds(0, (1.0, 0.0)) == pytest.approx(0.5, rel=0.02)


def test_of_two_workers_one_is_three_times_slower() -> None:
    """1 s and 3 s for the same: slowness 1/2 and 3/2, whose mean is 1, of 2 s. A third is thought to be average."""
    costs = warmed(0, 1)
    costs.learn(0, (1.0, 10.0), 1.0)
    costs.learn(1, (1.0, 10.0), 3.0)
    assert [costs.seconds(worker, (1.0, 10.0)) for worker in (0, 1, 2)] == pytest.approx([1.0, 3.0, 2.0], rel=1e-3)
    assert costs.slowness == pytest.approx({0: 0.5, 1: 1.5}, rel=1e-3)


def test_what_is_known_of_one_worker_serves_another_that_has_done_other_work() -> None:
    """Worker 0 took 1, 2 and 3 s for 10, 20 and 30 steps; worker 1 took 4 s for 20, so 6 s for 30."""
    costs = warmed(0, 1)
    for steps in (10, 20, 30):
        costs.learn(0, (1.0, float(steps)), steps / 10)
    costs.learn(1, (1.0, 20.0), 4.0)
    assert costs.seconds(1, (1.0, 30.0)) == pytest.approx(6.0, rel=0.02)
    assert costs.seconds(0, (1.0, 30.0)) == pytest.approx(3.0, rel=0.02)


def test_visits_count_beside_steps() -> None:
    """0.1 s a visit and 0.01 s a step: ten visits of one step cost more than one of fifty."""
    costs = warmed(0)
    for visits, steps in ((1, 50), (10, 10), (4, 40), (8, 16)):
        costs.learn(0, (1.0, float(visits), float(steps)), visits / 10 + steps / 100)
    assert costs.anywhere((1.0, 10.0, 10.0)) == pytest.approx(1.1, rel=0.02)
    assert costs.anywhere((1.0, 1.0, 50.0)) == pytest.approx(0.6, rel=0.02)


def test_no_part_is_below_zero() -> None:
    """2 s for 10 steps, then 1 s for 20. From the first alone, half is fixed and half grows: 20 steps were expected to
    take 3 s. What falls with the steps is left out, and a constant c is left, of least 0.9 (c/2 − 2/2)² + (c/3 − 1/3)²:
    c = (0.9·2/4 + 1/9) / (0.9/4 + 1/9) = 0.5611 / 0.3361 = 1.6694.
    """
    costs = warmed(0)
    costs.learn(0, (1.0, 10.0), 2.0)
    assert costs.anywhere((1.0, 20.0)) == pytest.approx(3.0, rel=1e-3)
    costs.learn(0, (1.0, 20.0), 1.0)
    assert costs.seconds(0, (1.0, 10.0)) == pytest.approx(1.6694, rel=1e-3)
    assert costs.seconds(0, (1.0, 1000.0)) == pytest.approx(1.6694, rel=1e-3)


@pytest.mark.parametrize(("seconds", "slower"), [(100.0, 1.3), (0.0, 0.925)])
def test_one_surprise_is_believed_in_part(seconds: float, slower: float) -> None:
    """Of 1 s expected, 100 s count as 4 and 0 s as 1/4, beside nine others: (9 + 4) / 10 and (9 + 1/4) / 10."""
    costs = warmed(0, 1)
    for _ in range(100):
        costs.learn(0, (1.0, 10.0), 1.0)
        costs.learn(1, (1.0, 10.0), 1.0)
    costs.learn(1, (1.0, 10.0), seconds)
    assert costs.seconds(0, (1.0, 10.0)) == pytest.approx(1.0, rel=0.02)
    assert costs.slowness[1] / costs.slowness[0] == pytest.approx(slower, rel=1e-3)


def test_a_worker_in_the_place_of_another_is_not_it() -> None:
    costs = warmed(0, 1)
    costs.learn(0, (1.0, 10.0), 1.0)
    costs.learn(1, (1.0, 10.0), 3.0)
    assert costs.seconds(1, (1.0, 10.0)) == pytest.approx(3.0, rel=1e-3)
    costs.forget(1)
    assert costs.seconds(1, (1.0, 10.0)) == pytest.approx(2.0, rel=1e-3)
    costs.learn(1, (1.0, 10.0), 500.0)  # its first, which does not count
    assert costs.seconds(1, (1.0, 10.0)) == pytest.approx(2.0, rel=1e-3)


def test_who_would_end_first_gets_the_work() -> None:
    """Works of 6, 5, 4 and 3 s, worker 1 four times slower: it would take 24, 20, 16 s, where worker 0 ends the first
    three after 6, 11 and 15; the last would be done after 18 there, and after 12 on worker 1."""
    seconds = lambda worker, work: (6, 5, 4, 3)[work] * (1, 4)[worker]
    assert sent_now(range(4), [0, 1], {}, seconds) == {0: 0, 1: 3}
    assert sent_now([1, 2], [1], {0: 6.0}, seconds) == {}  # 11 and 15 s against 20 and 16: both wait
    assert sent_now([1, 2], [1], {0: 8.0}, seconds) == {1: 2}  # 17 against 16
    assert sent_now([1, 2], [1], {0: float("inf")}, seconds) == {1: 1}  # nobody knows when worker 0 will be free


def test_among_equals_the_longest_goes_to_an_idle_one() -> None:
    equal = lambda worker, work: 5.0
    assert sent_now([7, 8, 9], [2, 1], {0: 0.0}, equal) == {1: 7, 2: 8}
    assert sent_now([], [0], {}, equal) == {}


def test_what_lasts_longer_than_expected_will_last_as_much_longer_again() -> None:
    assert remaining(10.0, 4.0) == 6.0
    assert remaining(10.0, 13.0) == 3.0
    assert remaining(float("inf"), 13.0) == float("inf")


def dealt(shapes: Sequence[Shape], workers: int, true: Seconds, costs: Costs | None) -> tuple[float, list[int]]:
    """How long a round takes, and who did what; with `costs` work is dealt by what they know and they learn, without
    the longest by steps goes to whoever is free first."""
    now, done_by = 0.0, [-1] * len(shapes)
    thought = costs.anywhere if costs is not None else lambda shape: shape[-1]
    waiting = sorted(range(len(shapes)), key=lambda i: (-thought(shapes[i]), i))
    running: dict[int, tuple[float, int, float, float]] = {}  # worker -> end, work, beginning, expected
    while waiting or running:
        idle = [worker for worker in range(workers) if worker not in running]
        if costs is None:
            sent = dict(zip(idle, waiting, strict=False))
        else:
            busy = {worker: remaining(call[3], now - call[2]) for worker, call in running.items()}
            sent = sent_now(waiting, idle, busy, lambda worker, work: costs.seconds(worker, shapes[work]))
        for worker, work in sent.items():
            waiting.remove(work)
            done_by[work] = worker
            expected = costs.seconds(worker, shapes[work]) if costs is not None and costs.known else float("inf")
            running[worker] = (now + true(worker, shapes[work]), work, now, expected)
        worker = min(running, key=lambda w: (running[w][0], w))
        now, work, began, _ = running.pop(worker)
        if costs is not None:
            costs.learn(worker, shapes[work], now - began)
    if costs is not None:
        costs.doubt(set(range(workers)) - set(done_by))
    return now, done_by


COHORTS = [(1.0, float(visits), float(steps)) for visits, steps in ((4, 90), (4, 70), (8, 60), (8, 50), (8, 40))]
COHORTS += [(1.0, 16.0, float(steps)) for steps in (40, 36, 30, 24, 20, 16)]


def uneven(worker: int, shape: Shape) -> float:
    """20 ms a call, 30 ms a visit, 10 ms a step; the last of three workers is three times as slow."""
    return (0.02 * shape[0] + 0.03 * shape[1] + 0.01 * shape[2]) * (1, 1, 3)[worker]


def test_a_round_on_uneven_workers_ends_earlier_when_they_are_known() -> None:
    """No schedule can end before all the work divided by the workers' speeds."""
    least = sum(uneven(0, shape) for shape in COHORTS) / (1 + 1 + 1 / 3)
    by_steps, _ = dealt(COHORTS, 3, uneven, None)
    costs = Costs()
    rounds = [dealt(COHORTS, 3, uneven, costs)[0] for _ in range(8)]
    assert by_steps > 1.2 * least
    assert max(rounds[2:]) < 1.07 * least


def test_on_even_workers_hardly_anything_changes() -> None:
    def even(worker: int, shape: Shape) -> float:
        return uneven(0, shape)

    costs = Costs()
    rounds = [dealt(COHORTS, 3, even, costs)[0] for _ in range(6)]
    assert max(rounds) < 1.03 * dealt(COHORTS, 3, even, None)[0]


def test_a_worker_that_was_slow_for_a_while_gets_work_again() -> None:
    """Four equal cohorts on two workers, of which one is 30 times slower for five rounds."""
    shapes, costs, slow = [(1.0, 4.0, 50.0)] * 4, Costs(), {1: 30.0}

    def true(worker: int, shape: Shape) -> float:
        return slow.get(worker, 1.0)

    before = [dealt(shapes, 2, true, costs) for _ in range(5)]
    assert before[-1][1].count(1) == 0
    slow.clear()
    after = [dealt(shapes, 2, true, costs) for _ in range(20)]
    assert after[-1][1].count(1) == 2
    assert after[-1][0] == 2.0
