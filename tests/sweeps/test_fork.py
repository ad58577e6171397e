"""Forked runs: the other's rounds up to there, own settings from there on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import experiment, run, then, traces

from simfl import config
from simfl.cli import main
from simfl.errors import ConfigError, RunError
from simfl.experiment import Evaluate, Experiment
from simfl.optimizers.schedules import Cosine, Decay
from simfl.reports.shared_prefixes import longest_prefixes, prefix_key
from simfl.runs import checkpoint
from simfl.runs.results import Run
from simfl.sweeps.fork import fork

BASE = experiment("scaffold", rounds=4, evaluate=Evaluate(every=2, samples=2))


def with_phase(of: Experiment, **settings: Any) -> Experiment:
    return replace(of, phases=(*of.phases[:-1], replace(of.phases[-1], **settings)))


def goes_on(folder: Path, whole: Experiment, step: int, say: Any = lambda text: None) -> dict[str, str]:
    fork(Run(folder / "source"), folder / "forked", whole, step, say=say)
    run(whole, folder / "forked", resume=True)
    return traces(folder / "forked")


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_with_more_rounds_alone_it_is_the_longer_run(tmp_path: Path, step: int) -> None:
    """From a commit, from a round whose commit is gone, and from the end."""
    run(BASE, tmp_path / "source")
    longer = with_phase(BASE, rounds=5)
    run(longer, tmp_path / "whole")
    assert goes_on(tmp_path, longer, step) == traces(tmp_path / "whole")
    assert traces(tmp_path / "source") == traces(tmp_path / "source")


def test_at_the_end_of_a_phase_that_others_follow(tmp_path: Path) -> None:
    two = then(experiment(rounds=2), BASE)
    run(two, tmp_path / "source")
    other = with_phase(two, local=replace(BASE.phases[0].local, learning_rate=0.01))
    run(other, tmp_path / "whole")
    assert goes_on(tmp_path, other, 2) == traces(tmp_path / "whole")


def test_other_settings_hold_from_there_on(tmp_path: Path) -> None:
    run(BASE, tmp_path / "source")
    goes_on(tmp_path, with_phase(BASE, local=replace(BASE.phases[0].local, learning_rate=0.01)), 2)
    there, here = (Run(tmp_path / name).rounds().to_pylist() for name in ("source", "forked"))
    assert here[:2] == there[:2]
    assert here[3] != there[3]
    assert Run(tmp_path / "forked").manifest["forked"]["step"] == 2


def test_another_algorithm_begins_anew_from_the_weights(tmp_path: Path) -> None:
    run(BASE, tmp_path / "source")
    said: list[str] = []
    other = with_phase(BASE, algorithm=experiment("feddyn").phases[0].algorithm)
    fork(Run(tmp_path / "source"), tmp_path / "forked", other, 3, say=said.append)
    snapshot, before = Run(tmp_path / "forked").snapshot(), Run(tmp_path / "source").snapshot(3)
    assert snapshot.weights_sha256 == before.weights_sha256
    assert not snapshot.memory
    assert snapshot.server.state.keys() != before.server.state.keys()
    assert said[-1].startswith("algorithm changed: the server's state begins anew")
    run(other, tmp_path / "forked", resume=True)


def test_the_source_is_only_read(tmp_path: Path) -> None:
    run(BASE, tmp_path / "source")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "source").rglob("*") if path.is_file()}
    goes_on(tmp_path, with_phase(BASE, rounds=6), 4)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "source").rglob("*") if p.is_file()} == before


def test_cut_before_its_commit_it_begins_at_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(BASE, tmp_path / "source")
    longer = with_phase(BASE, rounds=5)

    def cut(*given: Any) -> str:
        raise RunError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "commit", cut)
        with pytest.raises(RunError):
            fork(Run(tmp_path / "source"), tmp_path / "forked", longer, 4)
    run(longer, tmp_path / "forked", resume=True)
    run(longer, tmp_path / "whole")
    assert traces(tmp_path / "forked") == traces(tmp_path / "whole")


def test_what_cannot_be_forked_is_one_line(tmp_path: Path) -> None:
    two = then(experiment(rounds=1), experiment(rounds=2))
    run(two, tmp_path / "source")
    source = Run(tmp_path / "source")
    for step, other, message in (
        (4, two, "--at: 4 given; .* has finished 1 to 3 rounds"),
        (0, two, "--at: 0 given"),
        (3, two, "--at: 3 given; the forked run has 3 rounds, and must have some to come"),
        (2, replace(two, phases=two.phases[1:] * 2), "--at: phase 0 is over after round 2; its settings must stay"),
    ):
        with pytest.raises(ConfigError, match=message):
            fork(source, tmp_path / "f", other, step)
        assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            "model.hidden_sizes=[5]",
            r"^model: the fork's, on its data, has [\w.]+ with \[5.*; .*source has trained one with \[16",
        ),
        ("model={name: cnn, channels: [2, 2], hidden: 4}", "^model: "),
        (
            "data.shape=[3]",
            r"^model: the fork's, on its data, has .* with \[16, 3\]; .*source has trained one with \[16, 12\]$",
        ),
    ],
)
def test_weights_that_have_no_place_in_the_forks_model_are_refused(
    tmp_path: Path, changed: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(experiment(rounds=2), tmp_path / "source")
    given = config.overridden(config.to_mapping(experiment(rounds=3)), [changed])
    with pytest.raises(ConfigError, match=line):
        fork(Run(tmp_path / "source"), tmp_path / "fork", config.parse(given), 1)
    assert not (tmp_path / "fork").exists()


def test_a_folder_that_is_taken_or_is_no_folder_is_refused_before_any_round_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(tmp_path / "source")
    run(experiment(rounds=2), tmp_path / "source")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.json").touch()
    for arguments, line in (
        ([source, "--out", source], f"{source}: holds a run already; go on with --resume, or give another --out"),
        ([source, "--out", f"{tmp_path}/s"], f"{tmp_path}/s: holds a sweep already; give another --out"),
        (
            [source, "--out", "s3://a/b"],
            "--out: 's3://a/b' is a URL; a fork is made in a folder of this machine, which",
        ),
        ([f"{tmp_path}/s"], f"{tmp_path}/s: a sweep lies here"),
    ):
        assert main(["fork", *arguments, "--at", "1"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"simfl: {line}")
        assert said.count("\n") == 1


def test_a_source_that_lost_its_partition_says_so(tmp_path: Path) -> None:
    run(experiment(rounds=2), tmp_path / "source")
    (tmp_path / "source" / "partition.json").unlink()
    with pytest.raises(RunError, match=r"source: there is no partition.json; the run is not whole$"):
        fork(Run(tmp_path / "source"), tmp_path / "fork", experiment(rounds=3), 1)


def test_which_experiment_begins_which() -> None:
    def rounds(n: int, **settings: Any) -> Experiment:
        return experiment(rounds=n, **settings)

    given = {"3": rounds(3), "9": rounds(9), "5": rounds(5), "seed": rounds(9, seed=1), "other": rounds(9, epochs=2)}
    assert longest_prefixes(given) == {"5": "3", "9": "5"}
    assert longest_prefixes({"a": rounds(3, schedule=Cosine()), "b": rounds(5, schedule=Cosine())}) == {}
    assert longest_prefixes({"a": rounds(3, schedule=Decay()), "b": rounds(5, schedule=Decay())}) == {"b": "a"}
    fixed = Cosine(horizon=10.0)
    assert longest_prefixes({"a": rounds(3, schedule=fixed), "b": rounds(5, schedule=fixed)}) == {"b": "a"}
    assert prefix_key(rounds(3)) == address(replace(rounds(7), name="x")) != address(rounds(3, seed=2))


def test_the_command_writes_a_run_that_can_be_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(BASE, tmp_path / "r")
    assert main(["fork", str(tmp_path / "r"), "--at", "3", "--set", "phases.0.rounds=5"]) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "r-at-3"
    assert (
        said == f"{folder} stands after round 3; to go on: simfl run {folder}/experiment.yaml --out {folder} --resume\n"
    )
    assert main(["run", f"{folder}/experiment.yaml", "--out", str(folder), "--resume", "--backend", "inline"]) == 0
    run(with_phase(BASE, rounds=5), tmp_path / "whole")
    assert traces(folder) == traces(tmp_path / "whole")
