"""Uploads of several parts under privacy: one release with one noise multiplier, and a check that sees it broken."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Stopping, Toy, experiment, run, traces

from simfl.config.rules import violations
from simfl.debug import privacy_noise
from simfl.debug.privacy_check import check
from simfl.experiment import AdaptiveClip, Experiment, Privacy, PrivatePart
from simfl.models.mlp import Mlp
from simfl.privacy import mechanism as mechanism_module
from simfl.privacy.budget import Budget
from simfl.privacy.mechanism import Mechanism
from simfl.privacy.parts import clipped_parts, noise_scales
from simfl.privacy.statement import statement
from simfl.privacy.units import Clipped
from simfl.protocol import AggregatedUpdates, Parts
from simfl.runs.results import Run

JOINT = Privacy(
    unit="client", noise="central", clip=0.5, noise_multiplier=1.0, adjacency="zero_out", delta=1e-3, noise_seed=0,
    parts={"control": PrivatePart(clip=2.0)},
)  # fmt: skip
SEPARATE = replace(JOINT, parts={"control": PrivatePart(clip=2.0, share=0.36)})
BY_CLIENTS = replace(SEPARATE, noise="client")
SCALAR = replace(SEPARATE, parts={"squared_norm": PrivatePart(clip=0.1, share=0.1)})
GROUPS = replace(JOINT, unit="group", noise="client", adjacency="add_remove", groups_per_client=2)
SLOW = pytest.mark.slow


def given(privacy: Privacy = JOINT, algorithm: str = "scaffold", **settings: Any) -> Experiment:
    small = Mlp(hidden_sizes=(8,), dropout=0.0)
    toy = Toy(sizes=(12, 9, 6, 12, 9))
    settings = {"participation": 0.6, "rounds": 2} | settings
    return experiment(algorithm, privacy=privacy, weighting="uniform", data=toy, model=small, **settings)


def in_noise(privacy: Privacy, found: Clipped) -> float:
    """Return the norm of a sum of all parts, each in units of its noise at a multiplier of 1."""
    scales = noise_scales(privacy)
    parts = {"weights": found.total, **found.others}
    squares = [(t.double() / (0.5 * scales[part])).square().sum() for part, own in parts.items() for t in own.values()]
    return math.sqrt(float(sum(squares)))


@pytest.mark.parametrize("privacy", [JOINT, SEPARATE])
@pytest.mark.parametrize("sizes", [(1e6, 1e6), (1e6, 0.0), (0.0, 1e6), (1e-3, 1e6)])
def test_one_unit_changes_all_parts_together_by_one_over_the_multiplier(
    privacy: Privacy, sizes: tuple[float, float]
) -> None:
    updates: Parts = {"weights": {"w": torch.full((1, 7), sizes[0])}, "control": {"w": torch.full((1, 5), sizes[1])}}
    found = clipped_parts(privacy, updates, privacy.clip, {})
    assert in_noise(privacy, found) <= 1.0
    if min(sizes) > 1.0:
        assert in_noise(privacy, found) == pytest.approx(1.0, rel=1e-5)


def test_small_updates_stay_as_they_are_and_parts_that_are_not_finite_count_as_zero() -> None:
    updates: Parts = {
        "weights": {"w": torch.tensor([[0.1, 0.2], [0.1, 0.1]])},
        "control": {"w": torch.tensor([[0.3], [math.nan]])},
    }
    for privacy in (JOINT, SEPARATE):
        found = clipped_parts(privacy, updates, privacy.clip, {})
        assert found.total["w"].tolist() == pytest.approx([0.1, 0.2])
        assert found.others["control"]["w"].tolist() == pytest.approx([0.3])
        assert int(found.num_not_finite) == 1
        assert in_noise(privacy, found.without_units()) == 0.0


@pytest.mark.parametrize(
    ("privacy", "weights", "control"), [(JOINT, 0.5, 2.0), (SEPARATE, 0.5 / 0.8, 2.0 / 0.6)], ids=["joint", "separate"]
)
def test_the_noise_of_each_part_follows_its_clip_and_share(privacy: Privacy, weights: float, control: float) -> None:
    mean: Parts = {"weights": {"w": torch.zeros(40_000)}, "control": {"w": torch.zeros(40_000)}}
    found = Mechanism(privacy, 1.0).averaged(
        AggregatedUpdates(mean, {}, 5, 4, 4.0), [1, 1, 1, 1], 4.0, mean, (0, 0, "server")
    )
    assert found is not None
    own, other = found.means["weights"]["w"], found.means["control"]["w"]
    assert float(own.std()) == pytest.approx(weights / 4, rel=0.02)
    assert float(other.std()) == pytest.approx(control / 4, rel=0.02)
    assert abs(float((own * other).mean())) < 0.02 * weights * control / 16


def test_the_account_is_that_of_one_release() -> None:
    alone = given(replace(JOINT, parts={}), "fedavg")
    budgets = [Budget.of(one, num_clients=5) for one in (given(), given(SEPARATE), alone)]
    assert len({budget.epsilon(budget.everything) for budget in budgets}) == 1
    text = " ".join(statement(budgets[1], budgets[1].everything).split())
    assert "Uploads have further parts: 'control' (clip norm 2, share 0.36)" in text


CHECKED = {
    "joint": (JOINT, "scaffold"),
    "separate, by clients": (BY_CLIENTS, "scaffold"),
    "one number": (SCALAR, "fedexp"),
    "groups": (GROUPS, "scaffold"),
    "a server that transforms the average": (SEPARATE, "feddc"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[SLOW] * (name != "joint")) for name in CHECKED])
def test_check_privacy_believes_the_mechanism(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_noise, "VALUES", 3000)
    found = check(given(*CHECKED[name]), tmp_path)
    assert [one for one in found if not one.holds] == []


def _not_clipped(privacy: Privacy, updates: Parts, clip: float | None, copies: Any) -> Clipped:
    found = clipped_parts(privacy, updates, clip, copies)
    return replace(found, others={"control": {name: t.sum(0) for name, t in updates["control"].items()}})


def _each_alone(privacy: Privacy, updates: Parts, clip: float | None, copies: Any) -> Clipped:
    alone = replace(privacy, parts={"control": PrivatePart(clip=2.0, share=0.5)})
    return clipped_parts(alone, updates, clip, copies)


def _without_noise(privacy: Privacy) -> dict[str, float]:
    return noise_scales(privacy) | {"control": 0.0}


def _a_third_too_small(privacy: Privacy) -> dict[str, float]:
    return {part: scale * 0.7 for part, scale in noise_scales(privacy).items()}


BUGS: dict[str, tuple[str, Callable[..., Any]]] = {
    "the part is not clipped": ("clipped_parts", _not_clipped),
    "each part has the whole budget": ("clipped_parts", _each_alone),
    "the part has no noise": ("noise_scales", _without_noise),
    "all noise is too small": ("noise_scales", _a_third_too_small),
}


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[SLOW] * (i > 1)) for i, bug in enumerate(BUGS)])
def test_check_privacy_finds_planted_bugs(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_noise, "VALUES", 3000)
    monkeypatch.setattr(mechanism_module, *BUGS[bug])
    assert [one.what for one in check(given(), tmp_path) if not one.holds] != []


@pytest.mark.parametrize(
    ("privacy", "algorithm"), [(JOINT, "scaffold"), pytest.param(SCALAR, "fedexp", marks=SLOW)], ids=["joint", "one"]
)
def test_runs_resume_to_the_bit(privacy: Privacy, algorithm: str, tmp_path: Path) -> None:
    run(given(privacy, algorithm), tmp_path / "whole")
    run(given(privacy, algorithm), tmp_path / "resumed", display=Stopping(1))
    run(given(privacy, algorithm), tmp_path / "resumed", resume=True)
    assert traces(tmp_path / "whole") == traces(tmp_path / "resumed")
    assert Run(tmp_path / "whole").rounds().to_pylist()[-1]["epsilon"] > 0


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"parts": {}}, "phases.0.algorithm: Scaffold uploads 'control', which needs a clip norm"),
        ({"parts": {**JOINT.parts, "other": PrivatePart(1.0)}}, "privacy.parts.other: no algorithm uploads this part"),
        (
            {"parts": {"control": PrivatePart(1.0, share=1.0)}},
            "privacy.parts: shares add up to 1, which leaves nothing",
        ),
        ({"adaptive": AdaptiveClip()}, "privacy.adaptive: set, but several parts need a constant clip"),
        ({"unit": "record", "noise": "client"}, "phases.0.algorithm: Scaffold uploads 'control', which local steps"),
    ],
)
def test_settings_without_sense_are_refused(changes: dict[str, Any], line: str) -> None:
    assert any(one.startswith(line) for one in violations(given(replace(JOINT, **changes))))


def test_poisson_samples_of_clients_are_refused() -> None:
    found = list(violations(given(participation=None, poisson=0.5)))
    assert any(one.startswith("phases.0.poisson: a round may have no clients") for one in found)
