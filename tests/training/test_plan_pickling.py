"""A cohort plan is unpickled in another process without change."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from simfl.client_state import EMPTY
from simfl.training.plan import ClientPlan, CohortPlan, ExecutionMode

ROWS = np.array([7, 3, 5], dtype=np.int64)
CLIENTS = (
    ClientPlan(4, 3.0, (ROWS,), "digest", relative_weight=0.5),
    ClientPlan(9, 1.0, (), EMPTY),
    ClientPlan(2, 1.0, (ROWS[:1], ROWS[:0], ROWS[1:]), EMPTY, steps_per_unit=2, unit_names=(8, 1, 6)),
)


@pytest.mark.parametrize("clients", [CLIENTS, CLIENTS[:1], CLIENTS[1:2], ()])
def test_an_unpickled_cohort_plan_equals_the_original(clients: tuple[ClientPlan, ...]) -> None:
    plan = CohortPlan(1, 5, 3, 12, clients, ExecutionMode("vectorized", 4, "graph"), 4)
    found = pickle.loads(pickle.dumps(plan))
    assert {**vars(found), "clients": 0} == {**vars(plan), "clients": 0}
    for one, other in zip(found.clients, clients, strict=True):
        assert {**vars(one), "units": 0} == {**vars(other), "units": 0}
        for rows, own in zip(one.units, other.units, strict=True):
            assert rows.dtype == own.dtype
            assert rows.tolist() == own.tolist()
