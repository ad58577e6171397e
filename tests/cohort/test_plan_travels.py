"""A cohort's plan arrives in another process as it was."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from simfl.cohort.plan import CohortPlan, Manner, VisitPlan
from simfl.memory import EMPTY

ROWS = np.array([7, 3, 5], dtype=np.int64)
VISITS = (
    VisitPlan(4, 3.0, (ROWS,), "digest", relative=0.5),
    VisitPlan(9, 1.0, (), EMPTY),
    VisitPlan(2, 1.0, (ROWS[:1], ROWS[:0], ROWS[1:]), EMPTY, steps=2, names=(8, 1, 6)),
)


@pytest.mark.parametrize("visits", [VISITS, VISITS[:1], VISITS[1:2], ()])
def test_a_plan_arrives_as_it_was(visits: tuple[VisitPlan, ...]) -> None:
    plan = CohortPlan(1, 5, 3, 12, visits, Manner("batch", 4, "graph"), 4)
    found = pickle.loads(pickle.dumps(plan))
    assert [field for field in vars(found).items() if field[0] != "visits"] == [
        field for field in vars(plan).items() if field[0] != "visits"
    ]
    for one, other in zip(found.visits, visits, strict=True):
        assert {**vars(one), "units": 0} == {**vars(other), "units": 0}
        for rows, own in zip(one.units, other.units, strict=True):
            assert rows.dtype == own.dtype
            assert rows.tolist() == own.tolist()
