"""`check_correlation` finds planted bugs of correlated noise, and passes the right mechanism."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import Toy, experiment

from simfl.debug.noise_statistics import Measurement
from simfl.debug.privacy_correlation import check_correlation
from simfl.debug.privacy_rounds import PrivacyTestRounds
from simfl.experiment import Experiment, Privacy
from simfl.factorizations.banded import Banded, BandedFactor
from simfl.factorizations.blt import Blt, BltFactor
from simfl.models.mlp import Mlp
from simfl.privacy import correlated
from simfl.privacy.correlated import Correlation, NoiseStream
from simfl.protocol import Weights
from simfl.training import context

Patch = pytest.MonkeyPatch


def given(name: str) -> Experiment:
    privacy = Privacy(
        unit="client", noise="central", clip=0.05, noise_multiplier=0.7, adjacency="zero_out", noise_seed=0,
        factorization=Blt(buffers=2) if name == "blt" else Banded(bands=2),
    )  # fmt: skip
    sampled: dict[str, Any] = {"clients_per_round": 3} if name == "blt" else {"poisson": 0.4, "participation": None}
    return experiment(
        "dp_fedavg", privacy=privacy, rounds=12, weighting="uniform", model=Mlp(hidden_sizes=(40,)),
        data=Toy(sizes=(6, 7, 8, 9, 6, 7, 8, 9)), **sampled,
    )  # fmt: skip


def failed(name: str, tmp_path: Path) -> list[Measurement]:
    rounds = PrivacyTestRounds(given(name), tmp_path / "cache", tmp_path)
    return [one for one in check_correlation(rounds) if not one.holds]


def no_memory(patch: Patch) -> None:
    patch.setattr(BltFactor, "advance", lambda self, round, values, states: None)


def added_instead_of_subtracted(patch: Patch) -> None:
    real = BltFactor.advance

    def advance(self: BltFactor, round: int, values: np.ndarray, states: np.ndarray) -> None:
        states *= -1
        real(self, round, values, states)

    patch.setattr(BltFactor, "advance", advance)


def one_draw_for_all_rounds(patch: Patch) -> None:
    real = correlated.NoiseRows.draw
    patch.setattr(correlated.NoiseRows, "draw", lambda self, round: real(self, 0))


def forgets_the_rounds_before(patch: Patch) -> None:
    patch.setattr(NoiseStream, "_skip", lambda self, rows, round: None)


def too_little_noise(patch: Patch) -> None:
    real = Correlation.noised

    def noised(self: Correlation, tensors: Weights, deviation: float, *rest: Any) -> Weights:
        return real(self, tensors, deviation / self.factor.column_norm, *rest)

    patch.setattr(Correlation, "noised", noised)


def sensitivity_of_one_participation(patch: Patch) -> None:
    patch.setattr(BltFactor, "sensitivity", lambda self, rounds: self.column_norm)


def random_clients(patch: Patch) -> None:
    def sample(phase: Any, num_clients: int, seed: int, index: int, number: int, separation: int) -> list[int]:
        return context.sample_clients(phase, num_clients, seed, index, number)

    patch.setattr(context, "sample_in_turns", sample)


BUGS: list[Callable[[Patch], None]] = [
    no_memory,
    added_instead_of_subtracted,
    one_draw_for_all_rounds,
    forgets_the_rounds_before,
    too_little_noise,
    sensitivity_of_one_participation,
    random_clients,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], tmp_path: Path, monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert failed("blt", tmp_path)


def test_bins_that_are_left_are_found(tmp_path: Path, monkeypatch: Patch) -> None:
    random_clients(monkeypatch)
    assert failed("banded", tmp_path)


def test_columns_that_are_too_long_are_found(tmp_path: Path, monkeypatch: Patch) -> None:
    real = BandedFactor.matrix
    monkeypatch.setattr(BandedFactor, "matrix", lambda self: 1.1 * real(self))
    assert failed("banded", tmp_path)


@pytest.mark.parametrize("name", ["banded", "blt"])
def test_the_right_mechanism_passes(name: str, tmp_path: Path) -> None:
    assert failed(name, tmp_path) == []
