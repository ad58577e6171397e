"""Plans of runs that are too long to go through round by round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import experiment

from simfl.plans.plan import plan

ROUNDS = 10**12


@pytest.mark.parametrize(("settings", "error"), [({"participation": 0.3}, 0.0), ({"poisson": 0.5}, 0.2)])
def test_plan_of_a_trillion_rounds_answers_at_once(tmp_path: Path, settings: dict[str, Any], error: float) -> None:
    """Bytes of sampled clients are exact; those of a random number of clients are scaled up from the first rounds."""
    short = plan(experiment(rounds=100, **settings), tmp_path).json()
    long = plan(experiment(rounds=ROUNDS, **settings), tmp_path).json()  # round by round, it would not end
    assert long["bytes"]["total"] == pytest.approx(short["bytes"]["total"] * (ROUNDS // 100), rel=error)
