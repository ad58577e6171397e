"""`simfl plan`: JSON keys, the table, estimated time, privacy, and missing data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import Stopping, experiment, run

from simfl.cli import main
from simfl.config import dump
from simfl.experiment import Execution
from simfl.json_files import JsonLines

COUNT = {"download", "upload", "total"}
ROOT = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    path = tmp_path / "toy.yaml"
    path.write_text(dump(experiment()))
    return path


def planned(capsys, *arguments):
    assert main(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_json_has_exactly_the_documented_keys(file, capsys):
    found = json.loads(planned(capsys, file, "--json"))
    keys = {"model", "message", "messages", "bytes", "charged", "privacy", "memory"}
    assert found.keys() == keys | {"phases", "schema"}
    assert [phase.keys() for phase in found["phases"]] == [keys | {"time"}]
    for level in (found, *found["phases"]):
        assert level["model"].keys() == {"parameters", "trained", "shared", "personal_params"}
        assert level["message"].keys() == {"download", "upload"}
        assert level["message"]["upload"].keys() == {"floats", "bytes"}
        assert level["bytes"].keys() == level["charged"].keys() == COUNT
        assert level["memory"].keys() == {"server", "worker", "client"}
        assert level["privacy"] is None


def test_the_plan_command_accepts_overrides(file, capsys):
    three, six = (
        json.loads(planned(capsys, file, "--json", "--set", f"phases.0.rounds={rounds}")) for rounds in (3, 6)
    )
    assert six["bytes"]["total"] == 2 * three["bytes"]["total"] == 6 * 7 * 2 * 4 * 293  # 7 clients, both ways


def test_the_table_shows_messages_totals_steps_and_memory(file, capsys):
    text = planned(capsys, file, "--card", "1GB")
    assert text.startswith("toy: 3 rounds, 10 clients\n")
    lines = {line.split("  ")[0]: " ".join(line.split()) for line in text.splitlines()}
    assert lines["download"] == "download 24,612 0.0 0.000"  # of the totals, which are printed last
    assert lines["messages"] == "messages 42"
    assert lines["local steps"].endswith("from the data")
    assert "65536 clients per batch fit 1.00 GB" in lines["memory: worker"]


def test_time_is_estimated_from_the_speed_of_a_run(file, tmp_path, capsys):
    run(experiment(), tmp_path / "run")
    capsys.readouterr()
    text = planned(capsys, file, "--speed", tmp_path / "run")
    assert " h at " in text
    assert "steps/s" in text
    other = planned(capsys, file, "--speed", tmp_path / "run", "--set", "phases.0.local.batch_size=4")
    assert "measured with another batch_size" in other


def test_without_a_finished_round_the_speed_is_that_of_the_autotuned_mode(file, tmp_path, capsys):
    run(experiment(execution=Execution(autotune="always")), tmp_path / "run", display=Stopping(0, scoring=True))
    assert main(["plan", str(file), "--speed", str(tmp_path / "run")]) == 2
    assert "its log has no round with local steps" in capsys.readouterr().err
    trials = [
        {"mode": "sequential", "clients_per_batch": 1, "program": "eager", "step": 0.5},
        {"mode": "vectorized", "clients_per_batch": 4, "program": "eager", "step": 0.01},
    ]
    chosen = {"event": "chosen", "mode": "vectorized", "clients_per_batch": 4, "program": "eager", "trials": trials}
    JsonLines(tmp_path / "run" / "log.jsonl").append(chosen)
    assert " h at 100.00 steps/s" in planned(capsys, file, "--speed", tmp_path / "run")


def test_a_folder_without_a_run_has_no_speed(file, tmp_path, capsys):
    assert main(["plan", str(file), "--speed", str(tmp_path)]) == 2
    assert "the folder holds no run" in capsys.readouterr().err


@pytest.mark.slow
def test_the_plan_uses_the_accountant_of_the_run(capsys):
    text = planned(capsys, ROOT / "pfl_docvqa/track2_baseline.yaml", "--json")
    found = json.loads(text)["privacy"]
    assert found == json.loads(text)["phases"][0]["privacy"]
    assert found["epsilon"] == pytest.approx(1.0, abs=1e-5)
    assert found["noise_multiplier"] == pytest.approx(1.1477, abs=1e-4)
    assert (found["delta"], found["sampling_rate"]) == (1e-5, pytest.approx(0.025))


def test_the_plan_gives_the_guarantee_before_the_formula(capsys):
    text = planned(capsys, ROOT / "pfl_docvqa/track2_baseline.yaml")
    line = " ".join(text[text.index("privacy") :].split())
    assert line.startswith("privacy epsilon 3.8")
    assert "per group at delta 1e-05 (add-remove, view: averages" in line
    assert "the formula gives 1.0000 at rate 0.025, which is no guarantee" in line


def test_without_data_local_steps_are_unknown_but_bytes_are_known(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SIMFL_REAL_DATA", str(tmp_path))
    text = planned(capsys, ROOT / "sroie/lora_nf4.yaml")
    assert "unknown: data.path" in text
    assert "15,321,600" in text  # 40 messages of 680,960 values at 4.5 bits


def test_an_unknown_setting_of_a_plan_is_refused_in_one_line(file, capsys):
    assert main(["plan", str(file), "--set", "phases.0.round=3"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
def test_a_first_plan_announces_that_it_builds_the_data_set(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path))
    arguments = ["plan", str(ROOT / "quickstart.yaml"), "--set", "data.train=80", "--set", "data.valid=20"]
    assert main([*arguments, "--no-build"]) == 2
    assert capsys.readouterr().err.startswith("simfl: --no-build: the plan needs the data set provider_invoices")
    for expected in ("building data set provider_invoices (needed once, then read from the cache)\n", ""):
        assert main(arguments) == 0
        assert capsys.readouterr().err == expected
