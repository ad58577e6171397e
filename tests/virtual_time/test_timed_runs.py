"""Runs in virtual time: equal on all backends and after interruptions, as planned, and refused where settings clash."""

from contextlib import suppress
from dataclasses import replace
from io import StringIO

import pytest
from fakes import SIZES, Killed, Stopping, experiment, scatter, traces
from fakes import run as run_in
from rich.console import Console

from simfl import config, load
from simfl.algorithms.flexlora import FlexLora
from simfl.config.rules import check
from simfl.errors import ConfigError
from simfl.experiment import Clients, Privacy
from simfl.plans.plan import plan
from simfl.plans.table import show
from simfl.reports.curves import by_time, run_curves
from simfl.reports.results import RunResult
from simfl.tracking.events import TrackingEvent, metrics
from simfl.virtual_time.availability import Diurnal
from simfl.virtual_time.devices import Device
from simfl.virtual_time.profiles import Profile
from simfl.virtual_time.selection import Oort, Tiers
from simfl.virtual_time.settings import RoundTime

DEVICES = {"phone_low": 0.5, "raspberry_pi_4": 0.3, "laptop": 0.2}
PROFILE = Profile(
    devices=DEVICES, networks={"3g": 0.5, "wifi": 0.5}, device_spread=1.0, network_spread=1.0, jitter=0.3,
    failure_rate=0.1, availability=Diurnal(share=0.7, zones=5.0, period=5.0),
)  # fmt: skip
CASES = {
    "over-selection": RoundTime(over_selection=1.5, late="upload"),
    "deadline": RoundTime(deadline=0.3),
    "partial work": RoundTime(deadline=0.3, partial_work=True, stragglers=0.5),
    "tiers": RoundTime(selection=Tiers(2)),
    "oort": RoundTime(over_selection=1.5, selection=Oort()),
}


def timed(time=None, profile=PROFILE, **settings):
    base = experiment(settings.pop("algorithm", "fedavg"), rounds=3, participation=0.4, time=time, **settings)
    return replace(base, clients=Clients(profile))


def run(experiment, folder, **settings):
    """Run an experiment and open its folder."""
    run_in(experiment, folder, **settings)
    return load(folder)


def test_profiles_alone_change_nothing_but_the_clock(tmp_path):
    always = replace(PROFILE, availability=Profile().availability, failure_rate=0.0)
    plain, with_times = (
        run(experiment("fedavg", rounds=3, participation=0.4), tmp_path / "a"),
        run(timed(profile=always), tmp_path / "b"),
    )
    assert plain.summary["weights_sha256"] == with_times.summary["weights_sha256"]
    rows = with_times.rounds().to_pylist()
    assert [row["virtual_seconds"] for row in rows] == sorted(row["virtual_seconds"] for row in rows)
    assert rows[0]["virtual_seconds"] > 0
    assert "virtual_seconds" not in plain.rounds().column_names
    assert plain.times().num_rows == 0


@pytest.mark.parametrize("name", CASES)
def test_a_run_matches_its_plan(tmp_path, name):
    one = timed(CASES[name])
    found = run(one, tmp_path / "run")
    assert found.summary["plan"].startswith("matches")
    if name != "oort":  # whose clients depend on losses
        planned = plan(one, tmp_path).phases[0].time
        rows = found.rounds().to_pylist()
        assert planned is not None
        assert planned.seconds == pytest.approx(rows[-1]["virtual_seconds"], abs=1e-9)
        assert sum(planned.parts.values()) == pytest.approx(planned.seconds)
        assert planned.outcomes["applied"] == sum(row["time:applied"] for row in rows)


@pytest.mark.parametrize("name", ["partial work", "oort"])
def test_a_killed_run_on_other_workers_ends_with_the_same_bits(tmp_path, monkeypatch, name):
    run(timed(CASES[name]), tmp_path / "whole")
    scatter(monkeypatch)
    with suppress(Killed):
        run(timed(CASES[name]), tmp_path / "cut", display=Stopping(2, error=Killed))
    run(timed(CASES[name]), tmp_path / "cut", resume=True)
    assert "times" in traces(tmp_path / "whole")
    assert traces(tmp_path / "whole") == traces(tmp_path / "cut")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_inline_and_ray_are_bit_identical(tmp_path, ray_session, workers):
    run(timed(CASES["oort"]), tmp_path / "inline")
    run(timed(CASES["oort"]), tmp_path / "ray", workers=workers)
    assert traces(tmp_path / "inline") == traces(tmp_path / "ray")


def test_late_uploads_cost_bytes(tmp_path):
    found = run(timed(CASES["over-selection"]), tmp_path / "run")
    late = [row for row in found.ledger().to_pylist() if row["part"].startswith("late:")]
    outcomes = [row for row in found.times().to_pylist() if row["outcome"] == "late"]
    assert [(row["round"], row["client"]) for row in late] == [(row["round"], row["client"]) for row in outcomes]
    assert late
    applied = [row for row in found.ledger().to_pylist() if row["part"] == "weights" and row["direction"] == "upload"]
    assert {row["payload_bytes"] for row in late} == {row["payload_bytes"] for row in applied}
    assert found.summary["bytes"]["upload"] == sum(row["payload_bytes"] for row in applied + late)


def test_partial_work_trains_fewer_steps(tmp_path):
    found = run(timed(CASES["partial work"]), tmp_path / "run")
    steps = {(row["round"], row["client"]): row["steps"] for row in found.times().to_pylist()}
    rows = found.clients().to_pylist()
    assert [row["steps"] for row in rows] == [steps[row["round"], row["client"]] for row in rows]


WRONG = [  # profile, phases.0.time, and the error
    ({"devices": "phone_mod"}, None, ".devices: unknown 'phone_mod'; did you mean 'phone_mid'?"),
    ({"networks": {"wfi": 1.0}}, None, ".networks: unknown 'wfi'; did you mean 'wifi'?"),
    ({"devices": {"laptop": 0.5, "t4": 0.4}}, None, ".devices: the fractions add up to 0.9; allowed: a sum of 1"),
    ({"failure_rate": 1.0}, None, ".failure_rate: 1 given; allowed: at least 0 and below 1"),
    (None, {"deadline": 3.0}, "phases.0.time: needs clients.profile"),
    ({"availability": "diurnl"}, None, "did you mean 'diurnal'?"),
    ({"availability": {"kind": "intervals", "intervals": [[5.0, 3.0]]}}, None, ".intervals: [5, 3] given after 0"),
    ({}, {"selection": "ort"}, "did you mean 'oort'?"),
    ({}, {"partial_work": True}, ".partial_work: true has no effect without a deadline or stragglers"),
    ({}, {"selection": {"by": "tiers", "tiers": 2, "probabilities": [1.0]}}, "1 given, but there are 2 tiers"),
]


@pytest.mark.parametrize(("profile", "time", "message"), WRONG)
def test_wrong_settings_are_refused_in_one_line(profile, time, message):
    mapping = config.to_mapping(experiment("fedavg"))
    mapping["clients"]["profile"], mapping["phases"][0]["time"] = profile, time
    with pytest.raises(ConfigError) as error:
        config.parse(mapping)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (RoundTime(deadline=1e-6), "phases.0.time.deadline: 1e-06 s given, but the fastest of 10 clients needs"),
        (RoundTime(selection=Tiers(11)), "phases.0.time.selection.tiers: 11 given, but there are 10 clients"),
    ],
    ids=["deadline", "tiers"],
)
def test_what_nobody_can_meet_is_refused_before_a_run(tmp_path, time, message):
    with pytest.raises(ConfigError, match=message):
        run(timed(time), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_privacy_refuses_what_changes_who_takes_part():
    private = {"privacy": Privacy(clip=1.0, unit="client", epsilon=1.0, adjacency="zero_out"), "weighting": "uniform"}
    with pytest.raises(ConfigError, match=r"clients.profile.availability: clients come and go, .*privacy analysis"):
        check(timed(**private))
    quiet = Profile(devices=DEVICES)
    with pytest.raises(ConfigError, match=r"phases.0.time: given, which changes who takes part"):
        check(timed(RoundTime(deadline=1.0), quiet, **private))
    check(timed(None, quiet, **private))  # measuring time alone is allowed


def test_devices_of_a_column(tmp_path):
    with pytest.raises(ConfigError, match=r"clients.profile: .*no column 'devic'"):
        run(timed(profile=Profile(devices={"column": "devic"})), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"clients.profile.devices: column 'client' has '0' for client 0"):
        run(timed(profile=Profile(devices={"column": "client"})), tmp_path / "b")
    named = {str(k): Device(1e6 * (k + 1)) for k in range(len(SIZES))}
    profile = Profile(devices={"column": "client"}, own_devices=named, efficiency=1.0)
    rows = run(timed(profile=profile), tmp_path / "c").times().to_pylist()
    per_step = {row["client"]: row["compute"] * (row["client"] + 1) / row["steps"] for row in rows}
    full = [value for client, value in per_step.items() if SIZES[client] % 8 == 0]
    assert full == pytest.approx([full[0]] * len(full), rel=1e-6)  # batches of 8


def test_scores_are_shown_over_virtual_time(tmp_path):
    found = run(timed(CASES["deadline"]), tmp_path / "run")
    rows, scores = found.rounds().to_pylist(), found.evaluations().to_pylist()
    event = TrackingEvent(1, 10, rows[0], evaluations=tuple(row for row in scores if row["round"] == 1))
    logged = metrics(event, "valid")
    assert logged["virtual_seconds"] == rows[0]["virtual_seconds"]
    assert logged["by_time/accuracy"] == logged["by_bytes/accuracy"]
    curves = run_curves(RunResult("run", {}, tmp_path / "run", "completed"))
    assert list(by_time(curves, "accuracy")) == [0.0, *(row["virtual_seconds"] for row in rows)]
    assert curves.joules[3] == pytest.approx(sum(row["time:joules"] for row in rows))
    assert found.summary["virtual_seconds"] == rows[-1]["virtual_seconds"]
    assert "virtual time" in str(found)


def test_the_plan_prints_makespan_parts_and_the_straggler_curve(tmp_path):
    output = StringIO()
    show(plan(timed(CASES["deadline"]), tmp_path), None, Console(file=output, width=200))
    text = output.getvalue()
    for words in ("makespan", "of which", "download", "waiting", "uploads arrive", "100%", "energy"):
        assert words in text


def test_operations_are_those_of_the_products_by_hand(tmp_path):
    """Toy: 12 features, 16 hidden, 5 classes; the first layer needs no gradient of its inputs."""
    forward = 2 * (12 * 16 + 16 * 5)
    found = plan(timed(), tmp_path).phases[0].time
    assert found is not None
    assert found.flops == 2 * forward + 2 * 16 * 5
    prox = plan(timed(algorithm="moon"), tmp_path).phases[0].time  # two more forward passes without gradient
    assert prox is not None
    assert prox.flops == 4 * forward + 2 * 16 * 5


@pytest.mark.parametrize("algorithm", ["fedex_lora", FlexLora(rank={1: 0.5, 2: 0.5})], ids=["changed base", "ranks"])
def test_messages_of_different_sizes_match_the_plan(tmp_path, algorithm):
    quiet = replace(PROFILE, failure_rate=0.0, availability=Profile().availability)
    found = run(timed(RoundTime(over_selection=1.5), quiet, algorithm=algorithm), tmp_path / "run")
    assert found.summary["plan"].startswith("matches")


def test_an_algorithm_that_sends_other_tensors_in_each_round_is_refused():
    with pytest.raises(ConfigError, match="rolora sends other tensors in each round, whose times are not modelled"):
        check(timed(algorithm="rolora"))
