"""Settings that asynchronous training does not carry are refused in one line, before a run folder is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import experiment, run
from fakes_asynchronous import case

from simfl import config
from simfl.algorithms import ALGORITHMS
from simfl.asynchronous.staleness import Distance
from simfl.codecs.casts import Float16
from simfl.config.asynchronous import runs_asynchronously
from simfl.errors import ConfigError
from simfl.experiment import Asynchronous, Clients, Codecs, Execution, Experiment, Privacy, SecureAggregation
from simfl.optimizers.sliding_window import SlidingWindow
from simfl.virtual_time.settings import RoundTime


def phase(this: Experiment, **settings: Any) -> Experiment:
    return replace(this, phases=(replace(this.phases[0], **settings),))


REFUSED: dict[str, tuple[Experiment, str]] = {
    "profile": (replace(case(), clients=Clients()), "asynchronous: needs clients.profile"),
    "sampling": (phase(case(), clients_per_round=3), "clients_per_round: has no effect with asynchronous"),
    "rules of rounds": (phase(case(), time=RoundTime(deadline=1.0)), "allowed: asynchronous.deadline"),
    "aggregation": (case("scaffold"), "algorithm: scaffold combines the uploads of a round by a rule that assumes one"),
    "single uploads": (case("krum"), "algorithm: krum compares single uploads of one version"),
    "privacy": (
        replace(case(weighting="uniform"), privacy=Privacy(unit="client", clip=1.0, epsilon=8.0)),
        "asynchronous: privacy is given",
    ),
    "secure aggregation": (
        replace(case(weighting="uniform"), secure_aggregation=SecureAggregation(clip=1.0)),
        "asynchronous: secure_aggregation needs one group of clients",
    ),
    "data parallel": (
        replace(case(), execution=Execution(mode="sequential", data_parallel=2)),
        "asynchronous: execution.data_parallel is not carried",
    ),
    "changes as downloads": (
        case(codec=Codecs(download=Float16())),
        "codec.download: Float16 sends changes that every",
    ),
    "lossy downloads": (
        case(codec=Codecs(download=Float16(encode="weights")), mix="models"),
        "codec.download: Float16 is lossy, but with asynchronous.mix: models",
    ),
    "lossy downloads and norms": (
        case(codec=Codecs(download=Float16(encode="weights")), staleness=Distance()),
        "codec.download: Float16 is lossy, but with asynchronous.staleness: distance",
    ),
    "window of deltas": (case(server=SlidingWindow()), "asynchronous.mix: deltas, but server is sliding_window"),
    "alone": (case(communicate=False), "communicate: false, so no update is sent that could be stale"),
    "pooled": (case(centralized=True), "centralized: true, but asynchronous needs clients"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_without_meaning_are_refused(name: str) -> None:
    this, expected = REFUSED[name]
    lines = list(config.rules.violations(this))
    assert any(expected in line for line in lines), lines


def test_more_slots_than_clients_leave_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"phases\.0\.asynchronous\.concurrency: 11 given, but there are 10 clients"):
        run(case(concurrency=11), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_synchronous_settings_are_not_needed() -> None:
    assert list(config.rules.violations(case())) == []
    assert any(
        "participation: give exactly one" in line for line in config.rules.violations(experiment(participation=None))
    )


def test_algorithms_that_add_up_deltas_run_asynchronously() -> None:
    found = {name for name, kind in ALGORITHMS.items() if runs_asynchronously(kind)}
    assert {"fedavg", "fedprox", "moon", "ditto"} <= found
    assert not {"scaffold", "krum", "fednova", "feddyn"} & found


def test_yaml_of_a_phase(tmp_path: Path) -> None:
    text = config.dump(case(concurrency=7, buffer=2, max_staleness=4, deadline=9.5, staleness=Distance(scale=0.5)))
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    read = config.load(path)
    assert read.phases[0].asynchronous == Asynchronous(
        7, 2, staleness=Distance(scale=0.5), max_staleness=4, deadline=9.5
    )
