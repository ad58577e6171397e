"""Runs with secure aggregation: bits, bytes, refusals, the server's view, and integer noise under the masks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Stopping, experiment, model, run, scatter, traces

from simfl.audit.inversion import invert
from simfl.audit.view import averages_view, messages_view
from simfl.codecs.nf4 import Nf4
from simfl.config.rules import violations
from simfl.debug.privacy_check import check
from simfl.debug.replay import replay
from simfl.errors import ConfigError, RunError
from simfl.experiment import AdaptiveClip, Codecs, Experiment, LedgerRule, Privacy, SecureAggregation
from simfl.optimizers.server import Adam
from simfl.plans.plan import plan
from simfl.privacy.budget import Budget, forecast
from simfl.privacy.statement import statement
from simfl.runs.results import Run
from simfl.secure_aggregation import channel
from simfl.session.callbacks import NullDisplay

SECURE = SecureAggregation(clip=1.0, masks="all")
LEAVING = replace(SECURE, dropout=0.2, late_dropout=0.1, threshold=4, too_few="skip")
NOISE = Privacy(
    unit="client", clip=0.5, noise="distributed", mechanism="skellam", noise_multiplier=0.5, adjacency="zero_out",
    noise_seed=0, delta=1e-3,
)  # fmt: skip


def secure(algorithm: str = "fedavg", settings: SecureAggregation = LEAVING, **more: Any) -> Experiment:
    return experiment(algorithm, secure_aggregation=settings, **{"rounds": 2, "participation": 0.8} | more)


def noisy(mechanism: Any = "skellam", **more: Any) -> Experiment:
    settings = SecureAggregation(threshold=4, dropout=0.1, too_few="skip")
    return secure(settings=settings, privacy=replace(NOISE, mechanism=mechanism), weighting="uniform", **more)


class Lines(NullDisplay):
    """A display that keeps its messages."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


CENTRAL = replace(NOISE, noise="central", mechanism="gaussian")

CASES = {
    "leaving": secure(),
    "scaffold, vectorized": secure(
        "scaffold", replace(LEAVING, part_clips={"control": 4.0}), mode="vectorized", server=Adam()
    ),
    "skellam": noisy(),
    "discrete gaussian": noisy("discrete_gaussian"),
}


@pytest.mark.parametrize("name", CASES)
def test_runs_are_bit_identical_scattered_and_resumed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = run(CASES[name], tmp_path / "whole")
    assert summary["plan"] == "matches"
    scatter(monkeypatch)
    run(CASES[name], tmp_path / "scattered", display=Stopping(1))
    run(CASES[name], tmp_path / "scattered", resume=True)
    assert traces(tmp_path / "whole") == traces(tmp_path / "scattered")


def test_masks_that_are_left_out_are_named_in_the_plan_and_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, lines = secure(settings=SecureAggregation(clip=1.0), rounds=1), Lines()
    run(given, tmp_path / "few", display=lines)
    assert [line for line in lines.said if "masks" in line] == []
    monkeypatch.setattr(channel, "MANY_MASKS", 100)
    run(given, tmp_path / "many", display=lines)
    (line,) = [line for line in lines.said if "masks" in line]
    assert line.startswith("secure_aggregation.masks: auto leaves out masks that cancel: 8 clients with 7 neighbours")
    assert plan(given, tmp_path).phases[0].masks == line
    assert traces(tmp_path / "few")["weights_sha256"] == traces(tmp_path / "many")["weights_sha256"]
    assert plan(secure(settings=SECURE), tmp_path).phases[0].masks == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leaving", "skellam"])
def test_runs_are_bit_identical_on_ray(name: str, tmp_path: Path, ray_session: None) -> None:
    run(CASES[name], tmp_path / "inline")
    run(CASES[name], tmp_path / "ray", workers=2)
    assert traces(tmp_path / "inline") == traces(tmp_path / "ray")


@pytest.mark.parametrize("neighbors", [None, 4])
def test_masks_change_no_bit(neighbors: int | None, tmp_path: Path) -> None:
    settings = replace(LEAVING, neighbors=neighbors, threshold=3)
    for masks in ("all", "none"):
        run(secure(settings=replace(settings, masks=masks)), tmp_path / masks)
    assert traces(tmp_path / "all") == traces(tmp_path / "none")
    rounds = Run(tmp_path / "all").rounds().to_pylist()
    assert sum(row["secure:dropped"] for row in rounds) > 0


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_fine_grid_is_close_to_the_plain_mean(weighting: str, tmp_path: Path) -> None:
    fine = replace(SECURE, bits=56, value_bits=44, rounding="nearest")
    settings: dict[str, Any] = {"rounds": 2, "weighting": weighting, "participation": 0.8}
    run(experiment("fedavg", **settings), tmp_path / "plain")
    run(experiment("fedavg", secure_aggregation=fine, **settings), tmp_path / "secure")
    run(experiment("fedavg", "vectorized", secure_aggregation=fine, **settings), tmp_path / "vectorized")
    for other in ("secure", "vectorized"):
        for name, tensor in model(tmp_path / "plain").items():
            assert torch.allclose(model(tmp_path / other)[name], tensor, atol=2e-6)


def test_the_plan_counts_every_byte_of_the_protocol(tmp_path: Path) -> None:
    run(CASES["leaving"], tmp_path / "run")
    planned, rows = plan(CASES["leaving"], tmp_path), Run(tmp_path / "run").ledger().to_pylist()
    for direction in ("download", "upload"):
        sent = sum(row["payload_bytes"] for row in rows if row["direction"] == direction)
        assert planned.bytes[direction] == sent
    parts = {row["part"] for row in rows}
    assert parts == {"weights", "secure_keys", "secure_shares", "secure_survivors", "secure_unmask"}
    values = next(row["floats"] for row in rows if row["part"] == "weights")
    upload = next(row["payload_bytes"] for row in rows if (row["part"], row["direction"]) == ("weights", "upload"))
    assert upload == 4 * (values + 1)  # 32 bits each, and the number of examples


def test_a_round_with_too_few_survivors_ends_the_run_or_changes_nothing(tmp_path: Path) -> None:
    few = replace(LEAVING, dropout=0.7, threshold=7)
    with pytest.raises(RunError, match=r"round 1 of phase 0: secure aggregation needs 7 uploads \(8 sampled"):
        run(secure(settings=replace(few, too_few="stop")), tmp_path / "stop")
    run(secure(settings=few), tmp_path / "skip")
    rounds = Run(tmp_path / "skip").rounds().to_pylist()
    assert [row["secure:lost"] for row in rounds] == [1, 1]
    assert "secure_unmask" not in {row["part"] for row in Run(tmp_path / "skip").ledger().to_pylist()}
    values: dict[str, set[float]] = {}
    for row in Run(tmp_path / "skip").evaluations().to_pylist():
        values.setdefault(row["metric"] + row["group"], set()).add(row["value"])
    assert values
    assert all(len(found) == 1 for found in values.values())  # as before the first round


def test_numbers_beyond_the_clip_are_counted_and_said(tmp_path: Path) -> None:
    run(secure(settings=replace(SECURE, clip=0.001)), tmp_path / "run")
    assert all(row["secure:cut"] > 100 for row in Run(tmp_path / "run").rounds().to_pylist())
    assert (tmp_path / "run" / "log.jsonl").read_text().count("beyond secure_aggregation.clip") == 1


def test_the_servers_view_holds_masked_integers_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(secure(settings=replace(SECURE, masks="none")), folder)
    clients = sorted({row["client"] for row in Run(folder).clients().to_pylist() if row["round"] == 1})
    views = [messages_view(Run(folder), client, [1]).seen[0] for client in clients[:2]]
    for seen in views:
        assert set(seen.parts) == {"weights"}
        assert set(seen.parts["weights"]) == {"masked"}
        vector = seen.parts["weights"]["masked"]
        assert vector.dtype == torch.int64
        assert float(vector.double().mean() / 2**31) == pytest.approx(1.0, abs=0.2)  # uniform modulo 2^32
    assert not torch.equal(*(seen.parts["weights"]["masked"] for seen in views))
    assert averages_view(Run(folder)).seen
    with pytest.raises(RunError, match="masked ones only"):
        replay(Run(folder), 1, clients[0])
    with pytest.raises(ConfigError, match="inversion: needs single uploads"):
        invert(Run(folder), clients[0], 1)


REFUSED = {
    "single uploads, which": experiment("krum", secure_aggregation=SECURE, participation=1.0),
    "Nf4 cannot be added up": secure(codec=Codecs(upload=Nf4())),
    "clip: missing": secure(settings=SecureAggregation()),
    "part_clips.control: missing": secure("scaffold"),
    "part_clips.other: no algorithm": secure(settings=replace(SECURE, part_clips={"other": 1.0})),
    "bits: 64 given; allowed: 8 to 60": secure(settings=replace(SECURE, bits=64)),
    "value_bits: 40 given": secure(settings=replace(SECURE, value_bits=40)),
    "neighbors: 3 given": secure(settings=replace(SECURE, neighbors=3)),
    "dropout: 1 given": secure(settings=replace(SECURE, dropout=1.0)),
    "threshold is 9, so that no round": secure(
        settings=replace(SECURE, threshold=9), participation=None, clients_per_round=8
    ),
    "on_error: skip": secure(on_error="skip"),
    "poisson: rounds differ": experiment("fedavg", poisson=0.5, secure_aggregation=SECURE),
    "ledger.tied_weights": secure(ledger=LedgerRule("always")),
    "noise: central, but secure": secure(weighting="uniform", privacy=CENTRAL),
    "adds integers": noisy("gaussian"),
    "give secure_aggregation": replace(noisy(), secure_aggregation=None),
    "accountant: pld": replace(noisy(), privacy=replace(NOISE, accountant="pld")),
    "unit: group": replace(noisy(), privacy=replace(NOISE, unit="group", groups_per_client=1)),
    "an absent client adds no noise": replace(noisy(), privacy=replace(NOISE, adjacency="add_remove")),
    "privacy.secure: true": replace(noisy(), privacy=replace(NOISE, secure=True, noise_seed=None)),
    "adaptive: its count": replace(noisy(), privacy=replace(NOISE, adaptive=AdaptiveClip())),
    "noise of integers": secure(weighting="uniform", privacy=replace(NOISE, noise="client")),
    "has no effect with privacy.noise: distributed": replace(noisy(), secure_aggregation=SECURE),
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(line: str) -> None:
    assert any(line in one and "\n" not in one for one in violations(REFUSED[line])), list(violations(REFUSED[line]))


def test_what_needs_the_data_is_refused_before_a_folder_exists(tmp_path: Path) -> None:
    for settings, line in (
        (replace(SECURE, bits=16, value_bits=14), "hold sums of at most 4 clients"),
        (replace(SECURE, threshold=9), "threshold: 9 given, but a round of phases.0 has 8 clients"),
    ):
        with pytest.raises(ConfigError, match=line):
            run(secure(settings=settings), tmp_path / "run")
    tight = replace(noisy(), secure_aggregation=SecureAggregation(bits=12, value_bits=10))
    with pytest.raises(ConfigError, match=r"secure_aggregation.bits: 12 hold sums up to 2,047, but .* allowed: bits: "):
        run(tight, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_distributed_noise_is_accounted_for_the_fewest_survivors() -> None:
    def epsilon(settings: SecureAggregation, view: str = "averages") -> float:
        given = replace(noisy(rounds=5), secure_aggregation=settings)
        budget = Budget.of(given, num_clients=10, num_values=(300,))
        return budget.epsilon(budget.everything, view)

    whole = SecureAggregation(threshold=4)
    assert Budget.of(replace(noisy(), secure_aggregation=whole), None, 10, (300,)).scheme.discrete[0].survivors == 8
    assert Budget.of(noisy(), None, 10, (300,)).scheme.discrete[0].survivors == 4
    assert epsilon(whole) <= epsilon(whole, "messages")  # the server knows who is sampled
    coarse = replace(whole, value_bits=5)
    assert epsilon(coarse) > 1.2 * epsilon(whole)  # rounding lengthens the largest change
    with pytest.raises(ConfigError, match="accounted with the model's size"):
        forecast(noisy(), num_clients=10)


@pytest.mark.parametrize("units", [{"unit": "client"}, {"unit": "group", "groups_per_client": 2, "min_groups": 3}])
def test_noise_of_clients_that_may_leave_is_accounted_for_the_fewest_uploads(units: dict[str, Any]) -> None:
    privacy = Privacy(clip=0.5, noise="client", noise_multiplier=2.0, adjacency="zero_out", **units)

    def given(settings: SecureAggregation | None) -> tuple[float, str]:
        whole = experiment(
            "fedavg", participation=0.8, weighting="uniform", privacy=privacy, secure_aggregation=settings
        )
        budget = Budget.of(whole, num_clients=10)
        return budget.scheme.multipliers(2.0)["average_multiplier"] / 2.0, statement(budget, budget.everything)

    assert given(None)[0] == given(SECURE)[0] == math.sqrt(8)
    assert given(replace(SECURE, late_dropout=0.2))[0] == math.sqrt(8)  # these have uploaded before they leave
    multiplier, text = given(LEAVING)
    assert multiplier == 2.0  # at least four uploads
    assert "the noise of the fewest accepted uploads, 4" in " ".join(text.split())
    assert given(replace(LEAVING, min_survivors=6))[0] == math.sqrt(6)


def test_the_statement_names_whom_to_trust(tmp_path: Path) -> None:
    text = " ".join(run(noisy(), tmp_path / "run")["privacy"]["statement"].split())
    for words in ("honest but curious", "fewest survivors of a round, 4", "no cryptographic implementation", "skellam"):
        assert words in text
    assert text.index("Adjacency") < text.index("Trusted") < text.index("Mechanism")
    with pytest.raises(ConfigError, match="check-privacy measures real noise"):
        check(noisy(), tmp_path)
