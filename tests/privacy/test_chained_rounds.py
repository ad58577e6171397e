"""Chained rounds of `simfl check-privacy`: bugs that appear only after other rounds, and bugs of charging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Normalised, Toy, experiment
from test_planted_bugs import G, duals_of_bare_updates, prepared

from simfl.codecs.sparse import TopK
from simfl.debug import privacy_rounds
from simfl.debug.privacy_chain import check_chain
from simfl.debug.privacy_check import check
from simfl.experiment import Codecs
from simfl.privacy.account import Account
from simfl.privacy.mechanism import Mechanism, Release
from simfl.protocol import Weights
from simfl.transport import upload

Patch = pytest.MonkeyPatch
FEEDBACK = {"codec": Codecs(upload=TopK(keep=0.2, error_feedback=True))}


@dataclass(frozen=True)
class Bug:
    """A planted bug, the case in which it is planted, and words of the line that finds it."""

    plant: Callable[[Patch], None]
    line: str
    case: str = "group"


def is_first(rounds: dict[str, Weights], received: Any) -> bool:
    """Return whether clients have received the first model that was seen."""
    first = rounds.setdefault("first", {name: t.clone() for name, t in received["weights"].items()})
    return all(torch.equal(t, received["weights"][name]) for name, t in first.items())


def clip_of_a_moved_model_doubled(patch: Patch) -> None:
    seen: dict[str, Weights] = {}
    real = Mechanism.clip_of
    patch.setattr(
        Mechanism,
        "clipped",
        lambda self, updates, received: REAL_CLIPPED(
            replace(self, privacy=replace(self.privacy, clip=real(self, received) * (2 - is_first(seen, received)))),
            updates,
            received,
        ),
    )


def noise_of_a_moved_model_halved(patch: Patch) -> None:
    seen: dict[str, Weights] = {}

    def release(self: Mechanism, units: Any, received: Any, name: Any) -> Release:
        sigma = self.sigma if is_first(seen, received) else self.sigma / 2
        return REAL_RELEASE(replace(self, sigma=sigma), units, received, name)

    patch.setattr(Mechanism, "release", release)


def noise_of_the_first_clip_norm(patch: Patch) -> None:
    real = Mechanism.noised

    def noised(self: Mechanism, tensors: Weights, deviation: float, name: Any) -> Weights:
        changed = deviation if name[0] == "count" else deviation / name[1] * (self.privacy.clip or 1.0)
        return real(self, tensors, changed, name)

    patch.setattr(Mechanism, "noised", noised)


def residuals_of_bare_updates(patch: Patch) -> None:
    """Add the encoding error of the update before its noise to the next upload."""
    bare: dict[int, Weights] = {}

    def release(self: Mechanism, units: Any, received: Any, name: Any) -> Release:
        bare[int(name[-1])] = units.total
        return REAL_RELEASE(self, units, received, name)

    def with_residuals(tensors: Weights, residuals: Any) -> Weights:
        if not any(residuals):
            return tensors
        return {name: t + 0.1 * bare[0][name] for name, t in tensors.items()}

    patch.setattr(Mechanism, "release", release)
    patch.setattr(upload, "_with_residuals", with_residuals)


def charged(change: Callable[[Mapping[int, int], int], Mapping[int, int]]) -> Callable[[Patch], None]:
    real = Account.charge

    def charge(self: Account, before: Mapping[int, int], phase: int, round: int) -> Mapping[int, int]:
        return real(self, change(before, phase), phase, round)

    return lambda patch: patch.setattr(Account, "charge", charge)


def charged_without_a_limit(patch: Patch) -> None:
    def charge(self: Account, before: Mapping[int, int], phase: int, round: int) -> Mapping[int, int]:
        return {**before, phase: before.get(phase, 0) + 1}

    patch.setattr(Account, "charge", charge)


REAL_CLIPPED, REAL_RELEASE = Mechanism.clipped, Mechanism.release
BUGS = {
    "clip of a moved model doubled": Bug(clip_of_a_moved_model_doubled, "least noise over the change"),
    "noise of a moved model halved": Bug(noise_of_a_moved_model_halved, "least noise over the change"),
    "noise of the first clip norm": Bug(noise_of_the_first_clip_norm, "chained rounds: noise", "adaptive"),
    "residuals of bare updates": Bug(residuals_of_bare_updates, "sent by clients that bypass the mechanism"),
    "duals of bare updates": Bug(duals_of_bare_updates, "kept by clients that bypass the mechanism", "duals"),
    "earlier phases not charged": Bug(charged(lambda before, phase: {phase: before.get(phase, 0)}), "not charged"),
    "a resumed run starts at nothing": Bug(charged(lambda before, phase: {}), "not charged"),
    "charged without a limit": Bug(charged_without_a_limit, "beyond the budget"),
}

FAST = ("noise of a moved model halved", "residuals of bare updates", "earlier phases not charged")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in BUGS])
def test_a_bug_of_later_rounds_is_found(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    bug = BUGS[name]
    settings = FEEDBACK if "residuals" in name else {}
    rounds = prepared(bug.case, tmp_path, monkeypatch, **settings)
    bug.plant(monkeypatch)
    found = [one for one in check_chain(rounds) if bug.line in one.what]
    assert found
    assert not all(one.holds for one in found), found


@pytest.mark.slow
@pytest.mark.parametrize("case", ["group", "duals", "adaptive", "record"])
@pytest.mark.parametrize("settings", [{}, FEEDBACK], ids=["plain", "error feedback"])
def test_correct_chained_rounds_pass(case: str, settings: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    rounds = prepared(case, tmp_path, monkeypatch, **settings)
    assert [one for one in check_chain(rounds) if not one.holds] == []


@pytest.mark.slow
def test_running_statistics_that_are_not_refused_fail_a_round(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(privacy_rounds, "check", lambda *args: None)
    given = experiment("group_dp", privacy=G, weighting="uniform", data=Toy(sizes=(12, 9, 6)), model=Normalised())
    assert [one.what for one in check(given, tmp_path) if not one.holds]
