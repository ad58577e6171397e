"""Cost model: durations learned from measurements, and tasks assigned to the worker that finishes them first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from simfl.runtime.ray.cost_model import CostModel, Shape, assign, remaining

Seconds = Callable[[int, Shape], float]


def warm_model(*workers: int) -> CostModel:
    """Return a model that has ignored a first measurement of each worker."""
    costs = CostModel()
    for worker in workers:
        costs.observe(worker, (1.0, 1.0), 1000.0)
    return costs


def test_before_the_first_fit_cost_is_the_number_of_steps() -> None:
    costs = warm_model(0, 1)
    assert not costs.fitted
    assert costs.mean_seconds((1.0, 3.0, 17.0)) == 17.0
    assert costs.seconds(1, (1.0, 3.0, 17.0)) == 17.0


def test_cost_has_a_fixed_part_and_a_part_per_step() -> None:
    """1.5 s for 10 steps and 2.5 s for 20: half a second and a tenth per step, so 4.5 s for 40 steps."""
    costs = warm_model(0)
    costs.observe(0, (1.0, 10.0), 1.5)
    costs.observe(0, (1.0, 20.0), 2.5)
    assert costs.seconds(0, (1.0, 40.0)) == pytest.approx(4.5, rel=0.01)
    assert costs.seconds(0, (1.0, 0.0)) == pytest.approx(0.5, rel=0.02)


def test_slowness_is_relative_to_the_mean_worker() -> None:
    """1 s and 3 s for the same task: slowness 1/2 and 3/2 of a mean of 2 s; an unknown worker counts as average."""
    costs = warm_model(0, 1)
    costs.observe(0, (1.0, 10.0), 1.0)
    costs.observe(1, (1.0, 10.0), 3.0)
    assert [costs.seconds(worker, (1.0, 10.0)) for worker in (0, 1, 2)] == pytest.approx([1.0, 3.0, 2.0], rel=1e-3)
    assert costs.slowness == pytest.approx({0: 0.5, 1: 1.5}, rel=1e-3)


def test_cost_parts_of_one_worker_predict_another_that_did_other_tasks() -> None:
    """Worker 0 took 1, 2 and 3 s for 10, 20 and 30 steps; worker 1 took 4 s for 20, so 6 s for 30."""
    costs = warm_model(0, 1)
    for steps in (10, 20, 30):
        costs.observe(0, (1.0, float(steps)), steps / 10)
    costs.observe(1, (1.0, 20.0), 4.0)
    assert costs.seconds(1, (1.0, 30.0)) == pytest.approx(6.0, rel=0.02)
    assert costs.seconds(0, (1.0, 30.0)) == pytest.approx(3.0, rel=0.02)


def test_cost_has_a_part_per_client() -> None:
    """0.1 s per client and 0.01 s per step: ten clients of one step cost more than one client of fifty."""
    costs = warm_model(0)
    for clients, steps in ((1, 50), (10, 10), (4, 40), (8, 16)):
        costs.observe(0, (1.0, float(clients), float(steps)), clients / 10 + steps / 100)
    assert costs.mean_seconds((1.0, 10.0, 10.0)) == pytest.approx(1.1, rel=0.02)
    assert costs.mean_seconds((1.0, 1.0, 50.0)) == pytest.approx(0.6, rel=0.02)


def test_no_cost_part_is_negative() -> None:
    """2 s for 10 steps, then 1 s for 20. From the first alone, half is fixed and half is per step, so 20 steps are
    expected to take 3 s. The negative part per step is dropped, and a constant c is left, which minimizes
    0.9 (c/2 − 2/2)² + (c/3 − 1/3)²: c = (0.9·2/4 + 1/9) / (0.9/4 + 1/9) = 0.5611 / 0.3361 = 1.6694.
    """
    costs = warm_model(0)
    costs.observe(0, (1.0, 10.0), 2.0)
    assert costs.mean_seconds((1.0, 20.0)) == pytest.approx(3.0, rel=1e-3)
    costs.observe(0, (1.0, 20.0), 1.0)
    assert costs.seconds(0, (1.0, 10.0)) == pytest.approx(1.6694, rel=1e-3)
    assert costs.seconds(0, (1.0, 1000.0)) == pytest.approx(1.6694, rel=1e-3)


@pytest.mark.parametrize(("seconds", "slower"), [(100.0, 1.3), (0.0, 0.925)])
def test_outlier_is_clipped(seconds: float, slower: float) -> None:
    """For 1 s expected, 100 s count as 4 s and 0 s as 1/4 s, next to nine others: (9 + 4) / 10 and (9 + 1/4) / 10."""
    costs = warm_model(0, 1)
    for _ in range(100):
        costs.observe(0, (1.0, 10.0), 1.0)
        costs.observe(1, (1.0, 10.0), 1.0)
    costs.observe(1, (1.0, 10.0), seconds)
    assert costs.seconds(0, (1.0, 10.0)) == pytest.approx(1.0, rel=0.02)
    assert costs.slowness[1] / costs.slowness[0] == pytest.approx(slower, rel=1e-3)


def test_replaced_worker_is_forgotten() -> None:
    costs = warm_model(0, 1)
    costs.observe(0, (1.0, 10.0), 1.0)
    costs.observe(1, (1.0, 10.0), 3.0)
    assert costs.seconds(1, (1.0, 10.0)) == pytest.approx(3.0, rel=1e-3)
    costs.forget(1)
    assert costs.seconds(1, (1.0, 10.0)) == pytest.approx(2.0, rel=1e-3)
    costs.observe(1, (1.0, 10.0), 500.0)  # its first, which is ignored
    assert costs.seconds(1, (1.0, 10.0)) == pytest.approx(2.0, rel=1e-3)


def test_task_goes_to_the_worker_that_finishes_it_first() -> None:
    """Tasks of 6, 5, 4 and 3 s, worker 1 four times slower: it would take 24, 20, 16 s, where worker 0 finishes the
    first three after 6, 11 and 15 s; the last would be done after 18 s there, and after 12 s on worker 1."""
    seconds = lambda worker, work: (6, 5, 4, 3)[work] * (1, 4)[worker]
    assert assign(range(4), [0, 1], {}, seconds) == {0: 0, 1: 3}
    assert assign([1, 2], [1], {0: 6.0}, seconds) == {}  # 11 and 15 s compared with 20 and 16 s: both wait
    assert assign([1, 2], [1], {0: 8.0}, seconds) == {1: 2}  # 17 s compared with 16 s
    assert assign([1, 2], [1], {0: float("inf")}, seconds) == {1: 1}  # it is not known when worker 0 is free


def test_on_equal_workers_the_longest_task_goes_to_an_idle_one() -> None:
    equal = lambda worker, work: 5.0
    assert assign([7, 8, 9], [2, 1], {0: 0.0}, equal) == {1: 7, 2: 8}
    assert assign([], [0], {}, equal) == {}


def test_overdue_task_is_expected_to_last_as_much_longer_again() -> None:
    assert remaining(10.0, 4.0) == 6.0
    assert remaining(10.0, 13.0) == 3.0
    assert remaining(float("inf"), 13.0) == float("inf")


def simulate(shapes: Sequence[Shape], workers: int, true: Seconds, costs: CostModel | None) -> tuple[float, list[int]]:
    """Return the duration of a round and the worker of each task.

    With `costs`, tasks are assigned by the model, which learns; without, the longest by steps goes to the first idle
    worker.
    """
    now, workers_of = 0.0, [-1] * len(shapes)
    expected_cost = costs.mean_seconds if costs is not None else lambda shape: shape[-1]
    waiting = sorted(range(len(shapes)), key=lambda i: (-expected_cost(shapes[i]), i))
    running: dict[int, tuple[float, int, float, float]] = {}  # worker -> end, task, start, expected
    while waiting or running:
        idle = [worker for worker in range(workers) if worker not in running]
        if costs is None:
            sent = dict(zip(idle, waiting, strict=False))
        else:
            busy = {worker: remaining(call[3], now - call[2]) for worker, call in running.items()}
            sent = assign(waiting, idle, busy, lambda worker, task: costs.seconds(worker, shapes[task]))
        for worker, task in sent.items():
            waiting.remove(task)
            workers_of[task] = worker
            expected = costs.seconds(worker, shapes[task]) if costs is not None and costs.fitted else float("inf")
            running[worker] = (now + true(worker, shapes[task]), task, now, expected)
        worker = min(running, key=lambda w: (running[w][0], w))
        now, task, began, _ = running.pop(worker)
        if costs is not None:
            costs.observe(worker, shapes[task], now - began)
    if costs is not None:
        costs.decay(set(range(workers)) - set(workers_of))
    return now, workers_of


COHORTS = [(1.0, float(clients), float(steps)) for clients, steps in ((4, 90), (4, 70), (8, 60), (8, 50), (8, 40))]
COHORTS += [(1.0, 16.0, float(steps)) for steps in (40, 36, 30, 24, 20, 16)]


def uneven(worker: int, shape: Shape) -> float:
    """Return 20 ms per call, 30 ms per client and 10 ms per step; the last of three workers is three times slower."""
    return (0.02 * shape[0] + 0.03 * shape[1] + 0.01 * shape[2]) * (1, 1, 3)[worker]


def test_known_costs_shorten_a_round_on_uneven_workers() -> None:
    """No schedule can be shorter than the total task divided by the total speed of the workers."""
    least = sum(uneven(0, shape) for shape in COHORTS) / (1 + 1 + 1 / 3)
    by_steps, _ = simulate(COHORTS, 3, uneven, None)
    costs = CostModel()
    rounds = [simulate(COHORTS, 3, uneven, costs)[0] for _ in range(8)]
    assert by_steps > 1.2 * least
    assert max(rounds[2:]) < 1.07 * least


def test_known_costs_do_not_lengthen_a_round_on_even_workers() -> None:
    def even(worker: int, shape: Shape) -> float:
        return uneven(0, shape)

    costs = CostModel()
    rounds = [simulate(COHORTS, 3, even, costs)[0] for _ in range(6)]
    assert max(rounds) < 1.03 * simulate(COHORTS, 3, even, None)[0]


def test_worker_that_was_slow_for_a_while_gets_tasks_again() -> None:
    """Four equal cohorts on two workers, one of which is 30 times slower for five rounds."""
    shapes, costs, slow = [(1.0, 4.0, 50.0)] * 4, CostModel(), {1: 30.0}

    def true(worker: int, shape: Shape) -> float:
        return slow.get(worker, 1.0)

    before = [simulate(shapes, 2, true, costs) for _ in range(5)]
    assert before[-1][1].count(1) == 0
    slow.clear()
    after = [simulate(shapes, 2, true, costs) for _ in range(20)]
    assert after[-1][1].count(1) == 2
    assert after[-1][0] == 2.0
