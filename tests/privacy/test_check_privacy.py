"""`simfl check-privacy`: the correct mechanism passes on every seed, and each planted bug is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Toy, experiment

from simfl import rounds
from simfl.debug.noise_statistics import Measurement
from simfl.debug.privacy_check import check, check_lines
from simfl.experiment import AdaptiveClip, Experiment, Privacy
from simfl.models.mlp import Mlp
from simfl.privacy import mechanism, noise
from simfl.privacy.mechanism import Mechanism, Release
from simfl.privacy.randomness import Draw, Randomness
from simfl.privacy.units import Clipped, factors, norms
from simfl.protocol import Parts, Weights
from simfl.weights import stack_sum

SIGMA = 1.0
GROUPS = Privacy(clip=0.05, groups_per_client=2, noise_multiplier=SIGMA)


def given(algorithm: str = "group_dp", privacy: Privacy = GROUPS, **settings: Any) -> Experiment:
    toy = Toy(sizes=(12, 9, 6, 12, 9))
    return experiment(algorithm, privacy=privacy, weighting="uniform", participation=0.6, data=toy, **settings)


def failures(tmp_path: Path, **settings: Any) -> list[str]:
    return [one.what for one in check(given(**settings), tmp_path) if not one.holds]


@pytest.mark.parametrize("seed", range(20))
def test_the_correct_mechanism_passes(seed: int, tmp_path: Path) -> None:
    found = check(given(), tmp_path, seed)
    assert [one for one in found if not one.holds] == []
    assert len(found) == 12
    assert check_lines(found)[-1] == "the mechanism matches its accounting"


OTHERS = {
    "dp_clgecl": ("dp_clgecl", GROUPS),
    "central": ("group_dp", Privacy(clip=0.05, groups_per_client=2, noise_multiplier=1.0, noise="central")),
    "realised": (
        "group_dp",
        Privacy(clip=0.05, groups_per_client=2, noise_multiplier=1.0, denominator="realised", adjacency="zero_out"),
    ),
    "adaptive": ("group_dp", Privacy(clip=0.05, groups_per_client=2, noise_multiplier=1.0, adaptive=AdaptiveClip())),
    "clients": ("dp_fedavg", Privacy(unit="client", clip=0.05, noise_multiplier=1.0, noise="central")),
    "clients, noise by clients": (
        "dp_fedavg",
        Privacy(unit="client", clip=0.05, noise_multiplier=1.0, adjacency="zero_out"),
    ),
    "records": ("dp_sgd", Privacy(unit="record", clip=0.5, noise_multiplier=1.0)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_mechanisms_pass(name: str, tmp_path: Path) -> None:
    algorithm, privacy = OTHERS[name]
    assert failures(tmp_path, algorithm=algorithm, privacy=privacy) == []


REAL_NOISED, REAL_RELEASE, REAL_CLIP = noise.noised, Mechanism.release, mechanism.clipped


def off_by_k(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add noise for the sum as if it were for the mean."""
    monkeypatch.setattr(mechanism, "noised", lambda t, deviation, *rest: REAL_NOISED(t, deviation / 3, *rest))


def clip_on_the_wrong_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clip all tensors by the norm of one."""

    def clip(updates: Weights, limit: float, copies: Any = None) -> Clipped:
        lengths = norms({"head.bias": updates["head.bias"]})
        scales = factors(lengths, limit)
        short = {name: t * scales.reshape(-1, *[1] * (t.dim() - 1)) for name, t in updates.items()}
        return Clipped(stack_sum(short), lengths)

    monkeypatch.setattr(mechanism, "clipped", clip)


def noise_before_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add noise to units, then clip: the release is not a Gaussian around the clipped sum."""

    def clip(updates: Weights, limit: float, copies: Any = None) -> Clipped:
        return REAL_CLIP(REAL_NOISED(updates, SIGMA * limit, ("noise",), Randomness.fresh()), limit)

    monkeypatch.setattr(mechanism, "clipped", clip)
    monkeypatch.setattr(mechanism, "noised", lambda tensors, *rest: tensors)


def sampled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample the first group twice."""
    real = rounds.sample_groups
    monkeypatch.setattr(rounds, "sample_groups", lambda *args: [real(*args)[0]] * 2)


def _drawn(draw: Draw, tensor: str, like: torch.Tensor) -> torch.Tensor:
    values = np.empty(like.numel())
    draw(tensor, 0, values)
    return torch.from_numpy(values).float().view(like.shape)


def seed_reused_over_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed the noise by round and client only."""

    def noised(tensors: Weights, deviation: float, name: tuple, randomness: Randomness) -> Weights:
        draw = noise.normals(randomness, *(n for k, n in enumerate(name) if k != 4))  # without the phase
        return {k: t + deviation * _drawn(draw, k, t) for k, t in tensors.items()}

    monkeypatch.setattr(mechanism, "noised", noised)


def seed_reused_over_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every tensor of a message the same noise."""

    def noised(tensors: Weights, deviation: float, name: tuple, randomness: Randomness) -> Weights:
        draw = noise.normals(randomness, *name)
        return {k: t + deviation * _drawn(draw, "", t) for k, t in tensors.items()}

    monkeypatch.setattr(mechanism, "noised", noised)


def seed_reused_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every block of a large tensor the noise of the first."""
    real = noise.normals
    monkeypatch.setattr(noise, "normals", lambda *name: lambda tensor, index, out: real(*name)(tensor, 0, out))


def frozen_tensors_noised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload a tensor that is not trained, with noise."""

    def release(self: Mechanism, units: Any, received: Parts, name: Any) -> Release:
        out = REAL_RELEASE(self, units, received, name)
        received["weights"]["frozen"] = torch.zeros(8)
        return Release({"weights": {**out.parts["weights"], "frozen": torch.randn(8)}})

    monkeypatch.setattr(Mechanism, "release", release)


BUGS = {
    off_by_k: "standard deviation",
    clip_on_the_wrong_tensor: "change of the average",
    noise_before_clip: "standard deviation",
    sampled_twice: "sampled more than once",
    seed_reused_over_phases: "correlation of two draws",
    seed_reused_over_tensors: "correlation of two tensors",
    seed_reused_over_blocks: "correlation of two blocks",
    frozen_tensors_noised: "not trained",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    sizes = (200, 200) if bug is seed_reused_over_blocks else (12, 12)
    found = failures(tmp_path, model=Mlp(hidden_sizes=sizes, dropout=0.0))
    assert any(BUGS[bug] in what for what in found), found


def test_the_correct_mechanism_passes_with_tensors_of_several_blocks(tmp_path: Path) -> None:
    found = check(given(model=Mlp(hidden_sizes=(200, 200), dropout=0.0)), tmp_path)
    assert [one for one in found if not one.holds] == []
    assert sum("blocks of a tensor" in one.what for one in found) == 1


def test_a_group_that_is_sampled_twice_changes_the_average_by_twice_the_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled_twice(monkeypatch)
    found: list[Measurement] = [one for one in check(given(), tmp_path) if one.what.startswith("change")]
    assert all(one.value == pytest.approx(2 * 0.05 / (2 * 3), rel=1e-3) for one in found)
    assert not any(one.holds for one in found)


def test_an_experiment_without_noise_is_refused(tmp_path: Path) -> None:
    from simfl.errors import ConfigError

    with pytest.raises(ConfigError, match="there is no noise to check"):
        check(given("fedavg", Privacy(clip=1.0)), tmp_path)
