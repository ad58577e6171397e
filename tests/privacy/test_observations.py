"""Share of clipped units, quantiles of norms, and the ratio of signal to noise."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import experiment, run

from simfl.experiment import Privacy
from simfl.privacy.mechanism import Mechanism
from simfl.privacy.observations import clipping_metrics, signal_to_noise
from simfl.runs.results import Run

GROUPS = Privacy(clip=0.05, groups_per_client=2, noise_multiplier=0.7, noise_seed=0)


def test_quantiles_leave_out_units_that_count_as_zero() -> None:
    found = clipping_metrics([1.0, 2.0, 3.0, math.nan, math.inf], 2.5)
    assert found == {
        "not_for_release:share_clipped": pytest.approx(1 / 3),
        "not_for_release:norm_median": 2.0,
        "not_for_release:norm_90": pytest.approx(2.8),
    }
    assert clipping_metrics([math.nan], 1.0) == {}


@pytest.mark.parametrize("ratio", [0.0, 0.5, 3.0])
def test_the_ratio_of_signal_to_noise_is_found_from_the_noisy_average(ratio: float) -> None:
    size, deviation = 200_000, 0.3
    signal = torch.full((size,), ratio * deviation)
    noisy = signal + deviation * torch.randn(size, generator=torch.Generator().manual_seed(0))
    assert signal_to_noise({"w": noisy}, deviation) == pytest.approx(ratio, abs=0.1)


@pytest.mark.parametrize(
    ("changes", "units", "expected"),
    [
        ({"noise": "central"}, [2, 2, 2], 0.7 * 0.05 / (4 * 2)),
        ({"noise": "client"}, [2, 2, 2], 0.7 * 0.05 * math.sqrt(3) / (4 * 2)),
        ({"denominator": "realised"}, [1, 2], 0.7 * 0.05 * math.sqrt(1 + 1 / 4) / 2),
        ({}, [], 0.7 * 0.05 / (4 * 2)),  # no client came: the server adds the noise
    ],
)
def test_the_deviation_is_that_of_the_noise_in_an_average(
    changes: dict[str, str], units: list[int], expected: float
) -> None:
    mechanism = Mechanism(replace(GROUPS, **changes), 0.7)  # type: ignore[arg-type]
    assert mechanism.average_deviation(units, 4.0, {}) == pytest.approx(expected)


def test_the_rounds_table_has_columns_that_say_what_may_not_be_released(tmp_path: Path) -> None:
    run(experiment("group_dp", privacy=GROUPS, weighting="uniform", rounds=2), tmp_path)
    for row in Run(tmp_path).rounds().to_pylist():
        assert 0.0 <= row["metric:not_for_release:share_clipped"] <= 1.0
        assert 0.0 < row["metric:not_for_release:norm_median"] <= row["metric:not_for_release:norm_90"]
        assert row["metric:signal_to_noise"] >= 0.0
