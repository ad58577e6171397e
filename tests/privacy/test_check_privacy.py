"""`simfl check-privacy`: its lines, its verdict and its power; `test_planted_bugs.py` plants the bugs."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import Toy, experiment

from simfl.codecs.nf4 import Nf4
from simfl.debug import privacy_noise
from simfl.debug.noise_statistics import check_normals, check_scale, power
from simfl.debug.privacy_chain import check_charges
from simfl.debug.privacy_check import check, check_lines
from simfl.debug.privacy_rounds import PrivacyTestRounds
from simfl.errors import ConfigError
from simfl.experiment import AdaptiveClip, Codecs, Experiment, Privacy
from simfl.models.mlp import Mlp
from simfl.privacy.mechanism import Mechanism

GROUPS = Privacy(clip=0.05, groups_per_client=2, noise_multiplier=1.0)
OTHERS = {
    "realised": (
        "group_dp",
        Privacy(clip=0.05, groups_per_client=2, noise_multiplier=1.0, denominator="realised", adjacency="zero_out"),
    ),
    "adaptive central": (
        "group_dp",
        Privacy(clip=0.05, groups_per_client=2, noise_multiplier=1.0, noise="central", adaptive=AdaptiveClip()),
    ),
    "a server that transforms the average": (
        "feddyn",
        Privacy(unit="client", clip=0.05, noise_multiplier=1.0, noise="central", adjacency="zero_out", delta=1e-3),
    ),
    "clients, noise by clients": (
        "dp_fedavg",
        Privacy(unit="client", clip=0.05, noise_multiplier=1.0, adjacency="zero_out"),
    ),
}


def given(algorithm: str = "group_dp", privacy: Privacy = GROUPS) -> Experiment:
    toy = Toy(sizes=(12, 9, 6, 12, 9))
    small = Mlp(hidden_sizes=(8,), dropout=0.0)
    return experiment(algorithm, privacy=privacy, weighting="uniform", participation=0.6, data=toy, model=small)


@pytest.fixture(autouse=True)
def few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_noise, "VALUES", 3000)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_the_correct_mechanism_passes(seed: int, tmp_path: Path) -> None:
    found = check(given(), tmp_path, seed)
    assert [one for one in found if not one.holds] == []
    lines = check_lines(found)
    assert lines[-1] == "the mechanism matches its accounting"
    assert any("finds an error of" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_mechanisms_pass(name: str, tmp_path: Path) -> None:
    algorithm, privacy = OTHERS[name]
    assert [one.what for one in check(given(algorithm, privacy), tmp_path) if not one.holds] == []


@pytest.mark.slow
@pytest.mark.parametrize("rate", [None, 0.4])
def test_a_lossy_codec_is_no_larger_change_by_one_unit(rate: float | None, tmp_path: Path) -> None:
    """The guarantee is that of the update before it is encoded; what is decoded may change by more."""
    privacy = replace(GROUPS, group_rate=rate)
    experiment = given(privacy=privacy)
    codecs = Codecs(upload=Nf4(error_feedback=True))
    phases = tuple(replace(phase, codec=codecs) for phase in experiment.phases)
    found = check(replace(experiment, phases=phases), tmp_path)
    assert [one for one in found if "change of the average" in one.what and not one.holds] == []


def test_the_budget_of_few_rounds_is_checked_with_its_own_noise(tmp_path: Path) -> None:
    few = replace(given(privacy=replace(GROUPS, noise_multiplier=None, epsilon=1.0)))
    with tempfile.TemporaryDirectory() as scratch:
        rounds = PrivacyTestRounds(replace(few, phases=(replace(few.phases[0], rounds=1),)), tmp_path, Path(scratch))
        assert [one for one in check_charges(rounds) if not one.holds] == []


def test_a_round_that_fails_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def release(self: Mechanism, *args: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(Mechanism, "release", release)
    (found,) = check(given(), tmp_path)
    assert not found.holds
    assert check_lines([found])[-1] == "1 of 1 checks failed"


def test_an_experiment_without_noise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no noise to check"):
        check(given("fedavg", Privacy(clip=1.0)), tmp_path)


def test_the_power_is_the_error_that_six_standard_errors_reveal() -> None:
    # the standard error of a standard deviation is 1/sqrt(2 n): 6/sqrt(2·20,000) = 3 %
    assert power(20_000) == pytest.approx(0.03)
    values = np.random.default_rng(0).standard_normal(20_000)
    assert check_scale("noise", values).holds
    assert not check_scale("noise", values * 0.95).holds


@pytest.mark.parametrize("seed", range(20))
def test_independent_normals_pass(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"scalar": (), "bias": (7,), "kernel": (6, 3, 5, 5)}
    draws = {
        f"draw {k}": {
            name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
        }
        for k in range(6)
    }
    assert [one for one in check_normals("noise", draws) if not one.holds] == []
