"""Estimates for deployments with larger cohorts: their noise and account, and that no run claims their epsilon."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Toy, experiment, run
from rich.console import Console

from simfl.audit.one_run import _checked
from simfl.config.rules import violations
from simfl.debug import privacy_noise
from simfl.debug.privacy_check import check
from simfl.errors import ConfigError
from simfl.experiment import AdaptiveClip, Deployment, Experiment, Privacy
from simfl.factorizations.banded import Banded
from simfl.models.mlp import Mlp
from simfl.plans.plan import plan
from simfl.plans.table import show
from simfl.privacy.budget import Budget, forecast
from simfl.privacy.mechanism import Mechanism
from simfl.protocol import AggregatedUpdates
from simfl.runs.results import Run
from simfl.runs.summary import summary_lines
from simfl.tracking.events import TrackingEvent, metrics

LARGE = Deployment(clients_per_round=1_000, clients=100_000)
CLIENTS = Privacy(
    unit="client", noise="central", clip=0.05, noise_multiplier=1.0, delta=1e-7, noise_seed=0, deployment=LARGE
)
GROUPS = replace(CLIENTS, unit="group", groups_per_client=2, min_groups=2)
SLOW = pytest.mark.slow
SAMPLES: dict[str, dict[str, Any]] = {"fixed": {"clients_per_round": 1_000}, "poisson": {"poisson": 0.01}}
TRAINED: dict[str, dict[str, Any]] = {"fixed": {"participation": 0.5}, "poisson": {"poisson": 0.4}}


def simulated(privacy: Privacy = CLIENTS, algorithm: str = "dp_fedavg", **settings: Any) -> Experiment:
    settings = {"participation": 0.6} | settings if "poisson" not in settings else settings
    small = Mlp(hidden_sizes=(8,), dropout=0.0)
    return experiment(
        algorithm, privacy=privacy, weighting="uniform", data=Toy(sizes=(12, 9, 6, 12, 9)), model=small, **settings
    )


@pytest.mark.parametrize("sampling", SAMPLES)
@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out"])
def test_epsilon_and_noise_are_those_of_an_experiment_of_that_size(sampling: str, adjacency: Any) -> None:
    privacy = replace(CLIENTS, adjacency=adjacency, noise_multiplier=None, epsilon=2.0, accountant="pld")
    few = simulated(privacy, **TRAINED[sampling])
    public = None if adjacency == "zero_out" else LARGE.clients
    many = simulated(replace(privacy, deployment=None, min_clients=public), **SAMPLES[sampling])
    found, expected = forecast(few, num_clients=5), forecast(many, num_clients=LARGE.clients)
    assert (found.epsilon, found.noise_multiplier) == (expected.epsilon, expected.noise_multiplier)
    assert Budget.of(few, num_clients=5).scheme.adjacency == adjacency


def test_correlated_noise_is_that_of_the_turns_of_the_deployment() -> None:
    privacy = replace(CLIENTS, adjacency="zero_out", factorization=Banded(bands=3))
    few = simulated(privacy, rounds=150, clients_per_round=3, participation=None)
    correlation = Budget.of(few, num_clients=5).scheme.correlation(0)
    assert (correlation.participation.separation, correlation.participation.participations) == (100, 2)


@pytest.mark.parametrize(("privacy", "weight"), [(CLIENTS, 1_000), (GROUPS, 2_000)])
def test_the_noise_of_an_average_is_divided_by_the_cohort_of_the_deployment(privacy: Privacy, weight: int) -> None:
    mechanism = Mechanism(privacy, 1.0)
    mean = {"weights": {"w": torch.zeros(40_000)}}
    found = mechanism.averaged(AggregatedUpdates(mean, {}, 3, 3, 3.0), [2, 2, 2], 3.0, mean, (0, 0, "server"))
    assert found is not None
    assert float(found.means["weights"]["w"].std()) == pytest.approx(0.05 / weight, rel=0.02)


@pytest.mark.parametrize(("came", "sampled"), [(1, 3), (3, 3), (5, 3)])
def test_what_the_server_learns_of_the_cohort_does_not_follow_who_came(came: int, sampled: int) -> None:
    privacy = replace(CLIENTS, deployment=None, min_clients=4)
    mean = {"weights": {"w": torch.ones(3)}}
    found = Mechanism(privacy, 1e-6).averaged(
        AggregatedUpdates(mean, {}, 9, came, float(came)), [1] * came, 3.0, mean, (0, 0, "server")
    )
    assert found is not None
    assert (found.num_sampled, found.num_clients) == (sampled, 4)
    assert found.means["weights"]["w"].tolist() == pytest.approx([came / 3] * 3, rel=1e-5)


@pytest.mark.parametrize(
    ("privacy", "algorithm", "settings"),
    [
        pytest.param(CLIENTS, "dp_fedavg", {}, id="clients"),
        pytest.param(
            replace(CLIENTS, adaptive=AdaptiveClip()), "dp_fedavg", {"poisson": 0.5}, id="adaptive", marks=SLOW
        ),
        pytest.param(GROUPS, "group_dp", {}, id="groups", marks=SLOW),
        pytest.param(
            replace(CLIENTS, adjacency="zero_out", factorization=Banded(bands=2)),
            "dp_fedavg",
            {"clients_per_round": 3, "participation": None},
            id="correlated",
            marks=SLOW,
        ),
    ],
)
def test_check_privacy_believes_the_estimate(
    privacy: Privacy, algorithm: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy_noise, "VALUES", 3000)
    found = check(simulated(privacy, algorithm, **settings), tmp_path)
    assert [one for one in found if not one.holds] == []


def test_check_privacy_finds_noise_of_a_cohort_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy_noise, "VALUES", 3000)
    right = Mechanism.noise_cohort
    monkeypatch.setattr(Mechanism, "noise_cohort", lambda self, clients: 1.5 * right(self, clients))
    failed = [one.what for one in check(simulated(), tmp_path) if not one.holds]
    assert "noise of averages: standard deviation" in failed


def test_no_table_and_no_statement_of_the_run_has_an_epsilon_of_its_own(tmp_path: Path) -> None:
    summary = run(simulated(rounds=2), tmp_path)
    rows = Run(tmp_path).rounds().to_pylist()
    assert [name for name in rows[-1] if name.startswith("epsilon")] == []
    assert rows[-1]["deployment_epsilon"] == forecast(simulated(rounds=2), num_clients=5).epsilon
    lines = [json.loads(line) for line in (tmp_path / "privacy.jsonl").read_text().splitlines()]
    assert all("epsilon" not in line and "deployment_epsilon" in line for line in lines)
    first, second, *_ = (tmp_path / "privacy.md").read_text().split("\n\n")
    assert first == "# Privacy"
    assert " ".join(second.split()).startswith(
        "**Estimate.** This is an estimate for a deployment with a cohort of 1,000 of 100,000 clients in each round,"
        " and no epsilon is claimed for the data of this run."
    )
    (line,) = [line for line in summary_lines({**summary, "folder": ""}) if "epsilon" in line]
    assert "estimate for a deployment with 1,000 of 100,000 clients per round" in line
    assert "nothing is claimed for the data of this run" in line
    found = metrics(TrackingEvent(2, 10, rows[-1]), "valid")
    assert "epsilon" not in found
    assert found["deployment_epsilon"] == found["rounds/deployment_epsilon"] == rows[-1]["deployment_epsilon"]
    with pytest.raises(ConfigError, match=r"^privacy\.deployment: its epsilon is not that of the run"):
        _checked(CLIENTS)


def test_the_plan_names_the_deployment(tmp_path: Path) -> None:
    found = plan(simulated(), tmp_path)
    assert found.privacy is not None
    shown = found.privacy.json()
    assert "epsilon" not in shown
    assert shown["deployment"] == {"clients_per_round": 1_000, "clients": 100_000}
    console = Console(record=True, width=400)
    show(found, None, console)
    text = " ".join(console.export_text().split())
    assert "estimate for a deployment with 1,000 of 100,000 clients per round, nothing is claimed for this run" in text


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"noise": "client", "adjacency": "zero_out"}, "privacy.noise: client, but only the noise of a server"),
        (
            {"denominator": "realised", "adjacency": "zero_out"},
            "privacy.denominator: realised, but noise is divided by",
        ),
        ({"min_clients": 5}, "privacy.min_clients: 5, but deployment.clients is the public number"),
        ({"view": "formula"}, "privacy.view: formula, but the estimate is that of an observer of the averages"),
        ({"noise_multiplier": 0.0}, "privacy.deployment: has no effect without noise"),
        ({"deployment": Deployment(10, 9)}, "privacy.deployment.clients: 9 given; allowed: at least 10"),
        ({"unit": "group", "groups_per_client": 2}, "privacy.min_groups: missing"),
    ],
)
def test_settings_without_sense_are_refused(changes: dict[str, Any], line: str) -> None:
    given = simulated(replace(CLIENTS, **changes), clients_per_round=3, participation=None)
    assert any(one.startswith(line) for one in violations(given))


@pytest.mark.parametrize(
    ("deployment", "line"),
    [
        (
            Deployment(2, 100_000),
            r"privacy\.deployment\.clients_per_round: 2 given, but the run has 3; allowed: 3 or more",
        ),
        (Deployment(4, 4), r"privacy\.deployment\.clients: 4 given, but the run has 5; allowed: 5 or more"),
    ],
)
def test_a_deployment_smaller_than_the_run_is_refused(deployment: Deployment, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        forecast(simulated(replace(CLIENTS, deployment=deployment)), num_clients=5)
