"""A round as a list of cohorts, a visit as a list of batches."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import experiment
from hypothesis import given
from hypothesis import strategies as st

from simfl.training.batches import batches
from simfl.training.plan import ClientPlan, ExecutionMode, cohorts, num_steps

LOCAL = replace(experiment().phases[0].local, batch_size=4)
ROWS = np.array([50, 7, 31, 90, 12, 3, 44, 8, 61, 27])  # any rows of the split, in the order of the client


def lists(table):
    return [[int(row) for row in batch if row >= 0] for batch in table]


def test_in_file_order_the_last_batch_of_an_epoch_is_partial():
    """10 rows by 4: batches of 4, 4 and 2, in each of two epochs."""
    table = batches(ROWS, replace(LOCAL, shuffle=False, epochs=2), "visit")
    epoch = [[50, 7, 31, 90], [12, 3, 44, 8], [61, 27]]
    assert lists(table) == epoch + epoch
    assert table.shape == (6, 4)
    assert table[2].tolist() == [61, 27, -1, -1]
    assert table.dtype == np.int64


def test_a_client_smaller_than_a_batch_takes_one_step_an_epoch():
    assert lists(batches(np.array([5]), replace(LOCAL, epochs=3), "visit")) == [[5], [5], [5]]


def test_a_client_without_examples_takes_no_step():
    assert batches(np.array([], np.int64), LOCAL, "visit").shape == (0, 4)
    assert batches(np.array([], np.int64), replace(LOCAL, steps=7), "visit").shape == (0, 4)


@pytest.mark.parametrize(("steps", "expected"), [
    (1, [[50, 7, 31, 90]]),
    (4, [[50, 7, 31, 90], [12, 3, 44, 8], [61, 27], [50, 7, 31, 90]]),
])  # fmt: skip
def test_a_number_of_steps_cuts_or_repeats_epochs(steps, expected):
    assert lists(batches(ROWS, replace(LOCAL, shuffle=False, steps=steps), "visit")) == expected


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 3), st.booleans())
def test_every_epoch_visits_every_row_once(count, size, epochs, shuffle):
    local = replace(LOCAL, batch_size=size, epochs=epochs, shuffle=shuffle)
    rows = 1000 - 3 * np.arange(count)
    table = batches(rows, local, 42, "visit", 0, 0, 7, 0)
    per_epoch = -(-count // size)
    assert table.shape == (epochs * per_epoch, size)
    assert len(table) == num_steps(count, local)
    for epoch in range(epochs):
        mine = table[epoch * per_epoch : (epoch + 1) * per_epoch].ravel()
        assert sorted(mine[mine >= 0]) == sorted(rows)
        assert (mine[:count] >= 0).all()  # only the end of an epoch is padding


def test_the_order_of_rows_depends_on_epoch_and_name_alone():
    local = replace(LOCAL, batch_size=10, epochs=2)
    first, second = batches(ROWS, local, 42, "visit", 0, 0, 7, 0)
    assert first.tolist() != second.tolist()
    assert sorted(first) == sorted(second)
    assert np.array_equal(batches(ROWS, local, 42, "visit", 0, 0, 7, 0), [first, second])
    assert batches(ROWS, local, 42, "visit", 0, 0, 8, 0)[0].tolist() != first.tolist()
    # the same epoch is the same order, however many epochs or steps there are
    assert np.array_equal(batches(ROWS, replace(local, epochs=1), 42, "visit", 0, 0, 7, 0)[0], first)
    assert np.array_equal(batches(ROWS, replace(local, epochs=1, steps=2), 42, "visit", 0, 0, 7, 0), [first, second])


def client_plan(client, *sizes):
    return ClientPlan(client, 1.0, tuple(np.arange(size) for size in sizes), "")


CLIENTS = [
    client_plan(4, 9),
    client_plan(0, 20),
    client_plan(9, 3),
    client_plan(2, 9),
    client_plan(7, 1),
    client_plan(5, 4, 4),
    client_plan(3, 17),
]


def clients(plans):
    return [[client.client for client in plan.clients] for plan in plans]


def test_cohorts_are_sorted_by_steps_then_client_and_cut_by_clients_per_batch():
    """Steps by batches of 4: clients 7 and 9 take 1; 5 takes 2 (two units of one); 2 and 4 take 3; 0 and 3 take 5."""
    plans = cohorts(CLIENTS, LOCAL, ExecutionMode("sequential", 2), phase=1, round_number=8)
    assert clients(plans) == [[7, 9], [5, 2], [4, 0], [3]]
    assert [plan.cost(LOCAL) for plan in plans] == [2, 5, 8, 5]
    assert [(plan.phase, plan.round, plan.index, plan.num_sampled) for plan in plans] == [
        (1, 8, i, 7) for i in range(4)
    ]


@given(st.permutations(CLIENTS), st.sampled_from([1, 2, 4, 8]))
def test_cohorts_do_not_depend_on_the_given_order(given_order, clients_per_batch):
    ordered = clients(cohorts(CLIENTS, LOCAL, ExecutionMode("sequential", 8), 0, 0))[0]
    plans = cohorts(given_order, LOCAL, ExecutionMode("sequential", clients_per_batch), 0, 0)
    assert [client for cohort in clients(plans) for client in cohort] == ordered
    assert [len(plan.clients) for plan in plans[:-1]] == [clients_per_batch] * (len(plans) - 1)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=70), st.sampled_from([1, 2, 8]), st.integers(1, 5))
def test_cohorts_for_workers_are_aligned_subtrees_of_the_same_order(sizes, clients_per_batch, workers):
    visits = [client_plan(client, size) for client, size in enumerate(sizes)]
    plans = cohorts(visits, LOCAL, ExecutionMode("sequential", clients_per_batch), 0, 0, workers)
    assert [c for cohort in clients(plans) for c in cohort] == [
        c for p in cohorts(visits, LOCAL, ExecutionMode("sequential", 1), 0, 0) for c in clients([p])[0]
    ]
    ends = np.cumsum([plan.num_positions for plan in plans])
    for plan, end in zip(plans, ends, strict=True):
        assert plan.num_positions in [clients_per_batch << k for k in range(8)]
        assert (end - plan.num_positions) % plan.num_positions == 0
        assert plan.clients_per_batch == clients_per_batch
    assert all(len(plan.clients) == plan.num_positions for plan in plans[:-1])


def test_cohorts_for_workers_shrink_towards_the_end_of_a_round():
    """32 updates of 3 steps on 2 workers: a cohort has at most a quarter, 24 steps, and at most half of the rest."""
    plans = cohorts(
        [client_plan(client, 12) for client in range(32)], LOCAL, ExecutionMode("sequential", 1), 0, 0, num_workers=2
    )
    assert [plan.num_positions for plan in plans] == [1, 1, 2, 4, 8, 8, 8]
    assert [
        plan.num_positions
        for plan in cohorts(
            [client_plan(client, 12) for client in range(32)], LOCAL, ExecutionMode("sequential", 8), 0, 0, 2
        )
    ] == [8] * 4


def test_a_round_without_clients_has_no_cohort():
    assert (
        cohorts([], LOCAL, ExecutionMode("sequential", 4), 0, 0)
        == cohorts([], LOCAL, ExecutionMode("sequential", 4), 0, 0, num_workers=2)
        == []
    )
