"""Audits with canaries: the correct mechanism stays below its claim, planted errors of the noise exceed it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from fakes import Toy, experiment, run

from simfl.audit.canaries import DirectionCanaries, with_canaries
from simfl.audit.one_run import AuditedRounds, AuditSettings, CanaryAudit, audit
from simfl.cli import main
from simfl.codecs.int8 import Int8
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError
from simfl.experiment import AdaptiveClip, Codecs, Experiment, Privacy
from simfl.models.mlp import Mlp
from simfl.optimizers.server import Adam
from simfl.privacy import budget, mechanism
from simfl.privacy.mechanism import Mechanism
from simfl.privacy.units import Clipped, factors, norms
from simfl.protocol import Weights
from simfl.reports.report import write
from simfl.runs.results import Run
from simfl.weights import stack_sum

GROUPS = Privacy(clip=0.05, groups_per_client=400, noise_multiplier=1.0)
CANARIES = 600


def private(privacy: Privacy = GROUPS, algorithm: str = "group_dp", **settings: Any) -> Experiment:
    given: dict[str, Any] = {
        "participation": 1.0,
        "rounds": 1,
        "data": Toy(sizes=(6, 6), groups=2),
        "mode": "vectorized",
    }
    small = Mlp(hidden_sizes=(64,), dropout=0.0)
    return experiment(algorithm, privacy=privacy, weighting="uniform", model=small, **given | settings)


def audited(
    folder: Path, given: Experiment, seed: int = 0, number: int | None = CANARIES, confidence: float = 0.95
) -> CanaryAudit:
    if not folder.exists():
        run(given, folder)
    return audit(Run(folder), AuditSettings(number, seed=seed, fixed_noise=True, confidence=confidence))


def bounds(found: CanaryAudit) -> dict[str, float]:
    return {view.view: view.bound for view in found.views}


KINDS = {
    "groups": private(),
    "a rate": private(replace(GROUPS, groups_per_client=100, group_rate=0.5)),
    "a fixed number": private(replace(GROUPS, groups_per_client=80)),
    "zeroed": private(replace(GROUPS, denominator="realised", adjacency="zero_out")),
    "central": private(replace(GROUPS, noise="central")),
    "adaptive": private(replace(GROUPS, adaptive=AdaptiveClip()), rounds=2),
    "codec and adam": private(codec=Codecs(upload=Int8()), server=Adam()),
    "clients": private(Privacy(unit="client", clip=0.05, noise_multiplier=1.0, adjacency="zero_out"), "dp_fedavg"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "a rate")) for name in KINDS])
def test_the_correct_mechanism_stays_below_its_claim(name: str, tmp_path: Path) -> None:
    found = audited(tmp_path / "run", KINDS[name], number=200)
    assert found.holds
    for view in found.views:
        if view.samples > 150 and view.noise is not None and view.claim > 1:
            assert view.noise == pytest.approx(1.0, abs=0.45)  # of 160 participations or more


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_correct_mechanism_stays_below_its_claim_for_twenty_seeds(name: str, tmp_path: Path) -> None:
    found = [audited(tmp_path / "run", KINDS[name], seed) for seed in range(20)]
    assert [one for one in found if not one.holds] == []


REAL_NOISED, REAL_RELEASE = mechanism.noised, Mechanism.release


def too_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism, "noised", lambda t, deviation, *rest: REAL_NOISED(t, deviation / 1.6, *rest))


def clip_at_twice_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    def clipped(updates: Weights, limit: float | None, copies: Any = None) -> Clipped:
        lengths = norms(updates, copies)
        scales = factors(lengths, 2 * (limit or math.inf))
        short = {name: t * scales.reshape(-1, *[1] * (t.dim() - 1)) for name, t in updates.items()}
        return Clipped(stack_sum(short), lengths)

    monkeypatch.setattr(mechanism, "clipped", clipped)


def no_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        mechanism, "clipped", lambda updates, limit, copies=None: Clipped(stack_sum(updates), norms(updates))
    )


def noise_after_the_division(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is added to the mean as if it were a sum over two units: the divisor of the noise is too large."""
    monkeypatch.setattr(mechanism, "noised", lambda t, deviation, *rest: REAL_NOISED(t, deviation / 2, *rest))


def equal_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients draw the same noise; it is subtracted in the average by a sign that depends on the client."""

    def noised(tensors: Weights, deviation: float, name: tuple[Any, ...], randomness: Any) -> Weights:
        sign = 1.0 if name[-1] == 0 else -0.9
        noise = REAL_NOISED({n: torch.zeros_like(t) for n, t in tensors.items()}, deviation, name[:-1], randomness)
        return {n: t + sign * noise[n] for n, t in tensors.items()}

    monkeypatch.setattr(mechanism, "noised", noised)


BUGS = [too_little_noise, clip_at_twice_the_norm, no_clip, noise_after_the_division, equal_noise]


@pytest.mark.parametrize("plant", BUGS)
def test_a_planted_error_exceeds_the_claim(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not audited(tmp_path / "run", private()).holds


@pytest.mark.slow
@pytest.mark.parametrize("plant", BUGS)
def test_a_planted_error_exceeds_the_claim_for_twenty_seeds(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert [seed for seed in range(20) if audited(tmp_path / "run", private(), seed).holds] == []


def test_the_command_ends_with_code_1_if_a_bound_exceeds_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_clip(monkeypatch)
    run(private(), tmp_path / "run")
    command = ["audit", "canaries", str(tmp_path / "run"), "--canaries", "200"]
    assert main(command) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"VIOLATED: epsilon is at least [\d.]+ for averages, but [\d.]+ is claimed; ", last)
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["holds"] is False


def test_an_accounting_error_exceeds_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accountant claims half of epsilon; the mechanism is right."""
    real = budget.accounting.epsilon
    monkeypatch.setattr(budget.accounting, "epsilon", lambda *arguments: real(*arguments) / 2)
    budget._worst_epsilon.cache_clear()
    try:
        assert not audited(tmp_path / "run", private()).holds
    finally:
        budget._worst_epsilon.cache_clear()


def test_canaries_are_units_without_examples_in_the_order_of_their_clients() -> None:
    owner = np.repeat([0, 1, 2], [4, 3, 5])
    real = Partition.from_owners(owner, 3, (np.arange(12) % 2, pa.array(["a", "b"])))
    canaries = DirectionCanaries.draw(real, "group", 7, {"w": 10, "b": 5}, 2, 0)
    found = with_canaries(real, canaries, "group")
    assert found.num_groups.tolist() == [5, 4, 4]
    for client in range(3):
        groups = found.groups(client)
        assert [name for name, _ in groups[:2]] == ["a", "b"]
        assert [rows.tolist() for _, rows in groups[:2]] == [rows.tolist() for _, rows in real.groups(client)]
        assert [len(rows) for _, rows in groups[2:]] == [0] * (len(groups) - 2)
        assert found.rows(client).tolist() == real.rows(client).tolist()
    assert [int(canaries.numbers[canaries.owners == k].min()) for k in range(3)] == [2, 2, 2]
    clients = with_canaries(real, DirectionCanaries.draw(real, "client", 4, {"w": 10}, 1, 0), "client")
    assert clients.sizes.tolist() == [4, 3, 5, 0, 0, 0, 0]
    assert clients.groups(5) == []


def test_directions_are_orthogonal_and_scores_are_their_inner_products() -> None:
    real = Partition.from_owners(np.zeros(4, np.int64), 1)
    canaries = DirectionCanaries.draw(real, "client", 6, {"w": 20, "b": 5}, 4, 0)
    like = {"w": torch.zeros(4, 5), "b": torch.zeros(5)}
    updates = canaries.updates(np.arange(6), 3.0, like)
    rows = torch.cat([t.reshape(6, -1) for t in updates.values()], 1)
    torch.testing.assert_close(rows @ rows.T, 9.0 * torch.eye(6))
    seen = {"w": torch.randn(4, 5), "b": torch.randn(5)}
    flat = torch.cat([t.reshape(-1) for t in seen.values()])
    np.testing.assert_allclose(canaries.scores(seen), (rows @ flat / 3.0).numpy(), rtol=1e-5)


def test_an_audit_repeats_with_its_seed(tmp_path: Path) -> None:
    a, b, c = (audited(tmp_path / "run", private(), seed, 40) for seed in (1, 1, 2))
    assert a == b
    assert a != c


def test_the_bounds_of_an_audit_hold_together(tmp_path: Path) -> None:
    usual = audited(tmp_path / "run", private(), number=200)
    rounds = AuditedRounds(Run(tmp_path / "run"), AuditSettings(200))
    assert rounds.level == 1 - 0.05 / 5  # two bounds of averages and of messages, one of the model
    sure = audited(tmp_path / "run", private(), number=200, confidence=0.999)
    pairs = [(one.bound, other.bound) for one, other in zip(sure.views, usual.views, strict=True)]
    assert all(one <= other for one, other in pairs)
    assert any(one < other for one, other in pairs)


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    run(
        private(Privacy(unit="record", clip=0.5, noise_multiplier=0.7), "dp_sgd", mode="sequential"),
        tmp_path / "records",
    )
    run(private(replace(GROUPS, noise_multiplier=0.0)), tmp_path / "bare")
    run(private(), tmp_path / "run")
    for name, settings, message in (
        ("records", AuditSettings(), "privacy.unit: record"),
        ("bare", AuditSettings(), "adds no noise"),
        ("run", AuditSettings(rounds=2), "--rounds: 2"),
        ("run", AuditSettings(canaries=10**6), "--canaries: 1000000 given; allowed: 2 to"),
        ("run", AuditSettings(width=0), "--width: 0"),
        ("run", AuditSettings(confidence=1.0), "--confidence: 1 given; allowed: above 0 and below 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            audit(Run(tmp_path / name), settings)


def test_a_saved_audit_has_bounds_and_claims_by_round_that_reports_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    run(private(rounds=3), folder)
    assert main(["audit", "canaries", str(folder), "--canaries", "40", "--points", "8", "--save"]) == 0
    assert re.search(r"^rounds +view +claim +bound$", capsys.readouterr().out, re.MULTILINE)
    found = json.loads((folder / "audit.json").read_text())["canaries"]
    averages = [row for row in found["by_round"] if row["view"] == "averages"]
    assert [row["round"] for row in averages] == [1, 2, 3]
    claims = [row["claim"] for row in averages]
    assert claims == sorted(set(claims))
    view = next(view for view in found["views"] if view["view"] == "averages")
    assert (averages[-1]["claim"], averages[-1]["bound"]) == (view["claim"], max(view["one_run"], view["gaussian"]))
    write([folder], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "lower bounds on epsilon (95 %)" in page
    assert "claim (averages)" in page
    assert "no bound exceeds its claim" in page
    assert main(["audit", "canaries", str(folder), "--canaries", "40", "--json"]) == 0
    assert {row["round"] for row in json.loads(capsys.readouterr().out)["by_round"]} == {3}
