"""Failures under privacy: whether a run ends must not depend on the values of a single unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
from fakes import Stopping, Toy, experiment, run

from simfl.data.base import Split
from simfl.experiment import Experiment, Privacy
from simfl.models.mlp import Mlp
from simfl.runs.results import Run


@pytest.fixture(autouse=True)
def overflowing_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one example of the first client overflow a float32 gradient."""
    real = fakes.feature_split

    def feature_split(features: np.ndarray, *rest: Any, **columns: Any) -> Split:
        changed = features.copy()
        if len(features) == sum(SIZES):
            changed[0] = 3e38
        return real(changed, *rest, **columns)

    monkeypatch.setattr(fakes, "feature_split", feature_split)


SIZES = (12, 9, 6)
UNITS: dict[str, dict[str, Any]] = {
    "group": {"unit": "group", "groups_per_client": 3},
    "client": {"unit": "client", "noise": "central"},
    "record": {"unit": "record", "min_examples": 6},
}


def poisoned(unit: str, mode: str = "sequential", **settings: Any) -> Experiment:
    privacy = Privacy(clip=0.05, noise_multiplier=2.0, noise_seed=0, **UNITS[unit])
    return experiment(
        "fedavg",
        mode,
        rounds=2,
        privacy=privacy,
        weighting="uniform",
        participation=1.0,
        data=Toy(sizes=SIZES),
        model=Mlp(hidden_sizes=(8,), dropout=0.0),
        **settings,
    )


@pytest.mark.parametrize(("unit", "mode"), [(unit, "sequential") for unit in UNITS] + [("group", "vectorized")])
def test_a_unit_whose_update_is_not_finite_does_not_end_the_run(unit: str, mode: str, tmp_path: Path) -> None:
    display = Stopping()
    summary = run(poisoned(unit, mode), tmp_path / "run", display=display)
    assert summary["status"] == "completed"
    rows = Run(tmp_path / "run").clients().to_pylist()
    counts = {row["client"]: row["not_finite"] for row in rows if row["round"] == 1}
    assert counts == {0: 1, 1: 0, 2: 0} or (unit == "record" and counts[1] == counts[2] == 0)
    if counts[0]:
        line = f"client 0, phase 0, round 1: {counts[0]} updates are not finite, and count as zero"
        assert line in display.messages
