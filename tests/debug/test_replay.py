"""Repetition of a client update, bit-identical to the record, for every kind of state that it depends on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Faulty, experiment, run, then
from forging import forge_rows

from simfl.algorithms.feddat import FedDat
from simfl.cli import main
from simfl.client_state import EMPTY
from simfl.codecs.nf4 import Nf4
from simfl.debug.replay import replay, replay_lines
from simfl.errors import ClientError, RunError
from simfl.experiment import Codecs, Privacy
from simfl.models.bottleneck import Bottleneck
from simfl.models.mlp import Mlp
from simfl.optimizers.server import Adam
from simfl.runs.results import Run

LOSSY = Codecs(download=Nf4(encode="update"), upload=Nf4(error_feedback=True))
MOMENTUM: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.01, "keep_optimizer": True}
CASES = {
    "scaffold, sequential": experiment("scaffold"),
    "moon, vectorized": experiment("moon", "vectorized"),
    "client state of all kinds": experiment(
        "ditto", "vectorized", personal_params=("head.*",), codec=LOSSY, epochs=2, **MOMENTUM
    ),
    "micro-steps": experiment(FedDat(), model=Mlp((16,), dropout=0.2, adapters=Bottleneck())),
    "groups": experiment("fedavg", privacy=Privacy(clip=0.5, groups_per_client=2), weighting="uniform"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_client_update_of_any_round_is_bit_identical(name: str, tmp_path: Path) -> None:
    run(CASES[name], tmp_path)
    updates = Run(tmp_path).clients().to_pylist()
    for update in (updates[0], updates[9], updates[-1]):
        done = replay(Run(tmp_path), update["round"], update["client"])
        assert done.differences == []
        assert done.row == update
        assert done.comparisons["clients, 1 row"] == "equal"
    assert done.comparisons["client state"] == "equal (checkpoint after 3 rounds)"
    assert (done.client_state == EMPTY) == (name == "groups")


def test_the_mean_loss_of_the_steps_is_the_recorded_loss(tmp_path: Path) -> None:
    run(experiment("fedavg"), tmp_path)
    update = next(v for v in Run(tmp_path).clients().to_pylist() if v["examples"] == 40)
    done = replay(Run(tmp_path), update["round"], update["client"])
    assert [step.step for step in done.steps] == [0, 1, 2, 3, 4]
    assert sum(step.loss for step in done.steps) / 5 == pytest.approx(update["loss"], rel=1e-6)  # 5 full batches of 8
    assert all(step.gradient > 0 for step in done.steps)


def test_the_loss_of_the_codec_is_shown(tmp_path: Path) -> None:
    run(experiment("fedavg", codec=Codecs(upload=Nf4())), tmp_path)
    done = replay(Run(tmp_path), 1, Run(tmp_path).clients().to_pylist()[0]["client"])
    assert {tensor.tensor for tensor in done.upload} == {
        "layers.0.linear.weight",
        "layers.0.linear.bias",
        "head.weight",
        "head.bias",
    }
    assert all(tensor.norm != tensor.decoded_norm for tensor in done.upload)
    assert sum(tensor.floats for tensor in done.upload) == done.ledger[0]["floats"]


def test_a_client_update_of_a_later_phase_is_repeated(tmp_path: Path) -> None:
    first = experiment("moon", rounds=2, personal_params=("head.*",))
    keep = ("algorithm", "personal_params")
    run(
        then(first, experiment("moon", rounds=3, personal_params=("head.*",), server=Adam(), carry_over=keep)), tmp_path
    )
    update = next(v for v in Run(tmp_path).clients().to_pylist() if (v["phase"], v["round"]) == (1, 1))
    with pytest.raises(RunError, match="--phase: needed, because the run has phases 0 to 1"):
        replay(Run(tmp_path), 1, update["client"])
    done = replay(Run(tmp_path), 1, update["client"], phase=1)
    assert (done.row, done.differences) == (update, [])


FAULTY = experiment(Faulty(), participation=1.0)  # client 3 raises in the second round


def test_a_client_update_that_ended_the_run_fails_in_the_same_way(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as first:
        run(FAULTY, tmp_path)
    with pytest.raises(ClientError) as again:
        replay(Run(tmp_path), 2, 3)
    assert str(again.value).splitlines()[0] == str(first.value).splitlines()[0]
    assert str(again.value).endswith("ZeroDivisionError: the client's own words\n")
    assert isinstance(again.value.__cause__, ZeroDivisionError)
    other = replay(Run(tmp_path), 2, 4)
    assert other.comparisons["clients, 0 rows"] == "not recorded"
    assert replay_lines(other)[-1] == "the run recorded nothing to compare with"


def test_a_client_update_that_was_skipped_fails_again(tmp_path: Path) -> None:
    run(replace(FAULTY, on_error="skip"), tmp_path)
    with pytest.raises(ClientError, match="client 3, phase 0, round 2"):
        replay(Run(tmp_path), 2, 3)
    later = replay(Run(tmp_path), 3, 3)  # the earlier rounds are repeated with the skip
    assert later.differences == []


def test_a_record_that_differs_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(experiment("fedavg"), tmp_path)
    rows = forge_rows(tmp_path, "clients", 2, lambda rows: rows[0].update(loss=rows[0]["loss"] + 1e-9))
    where = f"clients phase 0, round 2, client {rows[0]['client']}: loss {rows[0]['loss']!r} recorded"
    done = replay(Run(tmp_path), 2, rows[0]["client"])
    assert [line[: len(where)] for line in done.differences] == [where]
    code = main(["replay", str(tmp_path), "--round", "2", "--client", str(rows[0]["client"])])
    assert code == 1
    assert capsys.readouterr().out.endswith("differs from the record\n")


def test_a_replay_does_not_change_the_run_folder(tmp_path: Path) -> None:
    run(experiment("scaffold"), tmp_path)

    def stamps() -> dict[str, tuple[int, int]]:
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before = stamps()
    replay(Run(tmp_path), 3, Run(tmp_path).clients().to_pylist()[-1]["client"])
    assert stamps() == before


@pytest.mark.slow
def test_a_run_on_ray_is_replayed_in_this_process(ray_session: None, tmp_path: Path) -> None:
    run(experiment("scaffold"), tmp_path, workers=2)
    update = Run(tmp_path).clients().to_pylist()[-1]
    assert replay(Run(tmp_path), update["round"], update["client"]).equal


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--round", "9", "--client", "1"], "--round: 9 given; phase 0 has rounds 1 to 3"),
        (["--round", "1", "--client", "99"], "--client: 99 was not sampled in round 1 of phase 0; sampled:"),
        (["--round", "1", "--client", "1", "--phase", "1"], "--phase: 1 given; the run has phases 0 to 0"),
    ],
)
def test_a_client_update_that_does_not_exist_raises_one_line(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(experiment("fedavg"), tmp_path)
    assert main(["replay", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"simfl: {line}")


def simfl(arguments: list[str], typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simfl", *arguments]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(command, input=typed, env=env, capture_output=True, text=True, check=False)


def test_the_debugger_stops_at_the_loss_and_continues(tmp_path: Path) -> None:
    run(experiment("fedprox"), tmp_path)
    update = Run(tmp_path).clients().to_pylist()[0]
    asked = ["replay", str(tmp_path), "--round", "1", "--client", str(update["client"]), "--pdb"]
    shown = simfl(asked, "up 0\np sorted(locals())\nclear\ny\ncontinue\n")
    assert shown.returncode == 0, shown.stderr
    assert "'batch'" in shown.stdout
    assert shown.stdout.endswith("bit-identical to the run\n")


@pytest.mark.slow
def test_the_debugger_starts_at_the_error_of_a_client(tmp_path: Path) -> None:
    with pytest.raises(ClientError):
        run(FAULTY, tmp_path)
    shown = simfl(["replay", str(tmp_path), "--round", "2", "--client", "3", "--pdb"], "p 6 * 7\nquit\n")
    assert "fakes.py" in shown.stdout
    assert "\n(Pdb) 42\n" in shown.stdout
    assert shown.returncode == 1
    assert shown.stderr.endswith("ZeroDivisionError: the client's own words\n\n")


def test_the_json_output_has_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(experiment("fedavg", epochs=10), tmp_path)
    update = next(v for v in Run(tmp_path).clients().to_pylist() if v["examples"] == 40)
    arguments = ["replay", str(tmp_path), "--round", str(update["round"]), "--client", str(update["client"])]
    assert main([*arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == 50
    assert main(arguments) == 0
    assert "(10 steps are not shown; --json shows all)" in capsys.readouterr().out
