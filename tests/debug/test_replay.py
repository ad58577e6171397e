"""One visit again: bit-equal to what the run recorded, for every kind of state that a visit depends on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import Faulty, experiment, run, then

from simfl.algorithms.feddat import FedDat
from simfl.cli import main
from simfl.client_state import EMPTY
from simfl.codecs.nf4 import Nf4
from simfl.debug.replay import lines, replay
from simfl.errors import ClientError, RunError
from simfl.experiment import Codecs, Privacy
from simfl.models.bottleneck import Bottleneck
from simfl.models.mlp import Mlp
from simfl.optimizers.server import Adam
from simfl.runs import tables
from simfl.runs.results import Run

LOSSY = Codecs(download=Nf4(encode="update"), upload=Nf4(error_feedback=True))
MOMENTUM = {"optimizer": "adam", "learning_rate": 0.01, "keep_optimizer": True}
CASES = {
    "scaffold, loop": experiment("scaffold"),
    "moon, batch": experiment("moon", "vectorized"),
    "memory of all kinds": experiment(
        "ditto", "vectorized", personal_params=("head.*",), codec=LOSSY, epochs=2, **MOMENTUM
    ),
    "micro-steps": experiment(FedDat(), model=Mlp((16,), dropout=0.2, adapters=Bottleneck())),
    "groups": experiment("fedavg", privacy=Privacy(clip=0.5, groups_per_client=2), weighting="uniform"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_visit_of_any_round_is_bit_equal_to_the_run(name: str, tmp_path: Path) -> None:
    run(CASES[name], tmp_path)
    visits = Run(tmp_path).clients().to_pylist()
    for visit in (visits[0], visits[9], visits[-1]):
        done = replay(Run(tmp_path), visit["round"], visit["client"])
        assert done.unlike == []
        assert done.row == visit
        assert done.held["clients, 1 row"] == "equal"
    assert done.held["memory"] == "equal (commit after 3 rounds)"
    assert (done.memory == EMPTY) == (name == "groups")


def test_losses_per_step_average_to_the_recorded_loss(tmp_path: Path) -> None:
    run(experiment("fedavg"), tmp_path)
    visit = next(v for v in Run(tmp_path).clients().to_pylist() if v["examples"] == 40)
    done = replay(Run(tmp_path), visit["round"], visit["client"])
    assert [step.step for step in done.steps] == [0, 1, 2, 3, 4]
    assert sum(step.loss for step in done.steps) / 5 == pytest.approx(visit["loss"], rel=1e-6)  # 5 full batches of 8
    assert all(step.gradient > 0 for step in done.steps)


def test_what_the_codec_lost_is_seen(tmp_path: Path) -> None:
    run(experiment("fedavg", codec=Codecs(upload=Nf4())), tmp_path)
    done = replay(Run(tmp_path), 1, Run(tmp_path).clients().to_pylist()[0]["client"])
    assert {sent.tensor for sent in done.sent} == {
        "layers.0.linear.weight",
        "layers.0.linear.bias",
        "head.weight",
        "head.bias",
    }
    assert all(sent.norm != sent.arrived for sent in done.sent)
    assert sum(sent.floats for sent in done.sent) == done.ledger[0]["floats"]


def test_later_phases_start_from_what_earlier_ones_left(tmp_path: Path) -> None:
    first = experiment("moon", rounds=2, personal_params=("head.*",))
    keep = ("algorithm", "personal_params")
    run(then(first, experiment("moon", rounds=3, personal_params=("head.*",), server=Adam(), carry_over=keep)), tmp_path)
    visit = next(v for v in Run(tmp_path).clients().to_pylist() if (v["phase"], v["round"]) == (1, 1))
    with pytest.raises(RunError, match="--phase: needed, as the run has phases 0 to 1"):
        replay(Run(tmp_path), 1, visit["client"])
    done = replay(Run(tmp_path), 1, visit["client"], phase=1)
    assert (done.row, done.unlike) == (visit, [])


FAULTY = experiment(Faulty(), participation=1.0)  # client 3 raises in the second round


def test_a_visit_that_ended_the_run_fails_again_as_it_did(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as first:
        run(FAULTY, tmp_path)
    with pytest.raises(ClientError) as again:
        replay(Run(tmp_path), 2, 3)
    assert str(again.value).splitlines()[0] == str(first.value).splitlines()[0]
    assert str(again.value).endswith("ZeroDivisionError: the client's own words\n")
    assert isinstance(again.value.__cause__, ZeroDivisionError)
    other = replay(Run(tmp_path), 2, 4)
    assert other.held["clients, 0 rows"] == "the run recorded none"
    assert lines(other)[-1] == "nothing to compare with"


def test_a_visit_that_was_skipped_fails_again(tmp_path: Path) -> None:
    run(replace(FAULTY, on_error="skip"), tmp_path)
    with pytest.raises(ClientError, match="client 3, phase 0, round 2"):
        replay(Run(tmp_path), 2, 3)
    later = replay(Run(tmp_path), 3, 3)  # the rounds before are run again with the skip
    assert later.unlike == []


def test_a_record_that_is_not_what_happens_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(experiment("fedavg"), tmp_path)
    part = tables.parts(tmp_path / "tables", "clients")[1]
    rows = tables.read(part).to_pylist()
    rows[0]["loss"] += 1e-9
    tables.write_part(tmp_path / "tables", "clients", 2, rows)
    where = f"clients phase 0, round 2, client {rows[0]['client']}: loss {rows[0]['loss']!r} recorded"
    done = replay(Run(tmp_path), 2, rows[0]["client"])
    assert [line[: len(where)] for line in done.unlike] == [where]
    code = main(["replay", str(tmp_path), "--round", "2", "--client", str(rows[0]["client"])])
    assert code == 1
    assert capsys.readouterr().out.endswith("not as recorded\n")


def test_a_replay_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    run(experiment("scaffold"), tmp_path)

    def seen() -> dict[str, tuple[int, int]]:
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before = seen()
    replay(Run(tmp_path), 3, Run(tmp_path).clients().to_pylist()[-1]["client"])
    assert seen() == before


def test_a_run_by_ray_is_replayed_in_this_process(ray_session: None, tmp_path: Path) -> None:
    run(experiment("scaffold"), tmp_path, workers=2)
    visit = Run(tmp_path).clients().to_pylist()[-1]
    assert replay(Run(tmp_path), visit["round"], visit["client"]).equal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--round", "9", "--client", "1"], "--round: 9 given; phase 0 has rounds 1 to 3"),
        (["--round", "1", "--client", "99"], "--client: 99 is not in round 1 of phase 0, which sampled"),
        (["--round", "1", "--client", "1", "--phase", "1"], "--phase: 1 given; the run has phases 0 to 0"),
    ],
)
def test_a_visit_that_is_not_there_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(experiment("fedavg"), tmp_path)
    assert main(["replay", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"simfl: {said}")


def simfl(arguments: list[str], typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simfl", *arguments]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(command, input=typed, env=env, capture_output=True, text=True, check=False)


def test_the_debugger_stops_at_the_loss_and_goes_on(tmp_path: Path) -> None:
    run(experiment("fedprox"), tmp_path)
    visit = Run(tmp_path).clients().to_pylist()[0]
    asked = ["replay", str(tmp_path), "--round", "1", "--client", str(visit["client"]), "--pdb"]
    shown = simfl(asked, "up 0\np sorted(locals())\nclear\ny\ncontinue\n")
    assert shown.returncode == 0, shown.stderr
    assert "'batch'" in shown.stdout
    assert shown.stdout.endswith("bit-equal to the run\n")


@pytest.mark.slow
def test_the_debugger_opens_where_a_client_failed(tmp_path: Path) -> None:
    with pytest.raises(ClientError):
        run(FAULTY, tmp_path)
    shown = simfl(["replay", str(tmp_path), "--round", "2", "--client", "3", "--pdb"], "p 6 * 7\nquit\n")
    assert "fakes.py" in shown.stdout
    assert "\n(Pdb) 42\n" in shown.stdout
    assert shown.returncode == 1
    assert shown.stderr.endswith("ZeroDivisionError: the client's own words\n\n")


def test_json_has_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(experiment("fedavg", epochs=10), tmp_path)
    visit = next(v for v in Run(tmp_path).clients().to_pylist() if v["examples"] == 40)
    arguments = ["replay", str(tmp_path), "--round", str(visit["round"]), "--client", str(visit["client"])]
    assert main([*arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == 50
    assert main(arguments) == 0
    assert "(10 steps are left out here; --json has all)" in capsys.readouterr().out
