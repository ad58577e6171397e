"""A cohort's plan arrives in another process as it was."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from simfl.client_state import EMPTY
from simfl.training.plan import ClientPlan, CohortPlan, ExecutionMode

ROWS = np.array([7, 3, 5], dtype=np.int64)
VISITS = (
    ClientPlan(4, 3.0, (ROWS,), "digest", relative=0.5),
    ClientPlan(9, 1.0, (), EMPTY),
    ClientPlan(2, 1.0, (ROWS[:1], ROWS[:0], ROWS[1:]), EMPTY, steps=2, names=(8, 1, 6)),
)


@pytest.mark.parametrize("visits", [VISITS, VISITS[:1], VISITS[1:2], ()])
def test_a_plan_arrives_as_it_was(visits: tuple[ClientPlan, ...]) -> None:
    plan = CohortPlan(1, 5, 3, 12, visits, ExecutionMode("vectorized", 4, "graph"), 4)
    found = pickle.loads(pickle.dumps(plan))
    assert [field for field in vars(found).items() if field[0] != "visits"] == [
        field for field in vars(plan).items() if field[0] != "visits"
    ]
    for one, other in zip(found.visits, visits, strict=True):
        assert {**vars(one), "units": 0} == {**vars(other), "units": 0}
        for rows, own in zip(one.units, other.units, strict=True):
            assert rows.dtype == own.dtype
            assert rows.tolist() == own.tolist()
