"""Forked runs: the rounds of the source up to the fork, other settings afterwards."""

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


def with_phase(base: Experiment, **settings: Any) -> Experiment:
    return replace(base, phases=(*base.phases[:-1], replace(base.phases[-1], **settings)))


def fork_and_run(folder: Path, whole: Experiment, step: int) -> dict[str, str]:
    fork(Run(folder / "source"), folder / "forked", whole, step)
    run(whole, folder / "forked", resume=True)
    return traces(folder / "forked")


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_fork_with_more_rounds_is_bit_identical_to_the_longer_run(tmp_path: Path, step: int) -> None:
    """Fork at a checkpoint, at a round whose checkpoint is deleted, and at the end."""
    run(BASE, tmp_path / "source")
    longer = with_phase(BASE, rounds=5)
    run(longer, tmp_path / "whole")
    assert fork_and_run(tmp_path, longer, step) == traces(tmp_path / "whole")
    assert traces(tmp_path / "source") == traces(tmp_path / "source")


def test_a_run_can_be_forked_at_the_end_of_a_phase(tmp_path: Path) -> None:
    two = then(experiment(rounds=2), BASE)
    run(two, tmp_path / "source")
    other = with_phase(two, local=replace(BASE.phases[0].local, learning_rate=0.01))
    run(other, tmp_path / "whole")
    assert fork_and_run(tmp_path, other, 2) == traces(tmp_path / "whole")


def test_changed_settings_apply_after_the_fork(tmp_path: Path) -> None:
    run(BASE, tmp_path / "source")
    fork_and_run(tmp_path, with_phase(BASE, local=replace(BASE.phases[0].local, learning_rate=0.01)), 2)
    there, here = (Run(tmp_path / name).rounds().to_pylist() for name in ("source", "forked"))
    assert here[:2] == there[:2]
    assert here[3] != there[3]
    assert Run(tmp_path / "forked").manifest.forked.step == 2


def test_a_changed_algorithm_starts_from_the_weights_without_state(tmp_path: Path) -> None:
    run(BASE, tmp_path / "source")
    messages: list[str] = []
    other = with_phase(BASE, algorithm=experiment("feddyn").phases[0].algorithm)
    fork(Run(tmp_path / "source"), tmp_path / "forked", other, 3, log=messages.append)
    snapshot, before = Run(tmp_path / "forked").snapshot(), Run(tmp_path / "source").snapshot(3)
    assert snapshot.weights_sha256 == before.weights_sha256
    assert not snapshot.client_states
    assert snapshot.server.state.keys() != before.server.state.keys()
    assert messages[-1].startswith("algorithm changed: the server starts from the weights")
    run(other, tmp_path / "forked", resume=True)


def test_forking_does_not_change_the_source(tmp_path: Path) -> None:
    run(BASE, tmp_path / "source")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "source").rglob("*") if path.is_file()}
    fork_and_run(tmp_path, with_phase(BASE, rounds=6), 4)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "source").rglob("*") if p.is_file()} == before


def test_a_fork_interrupted_before_its_checkpoint_starts_from_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(BASE, tmp_path / "source")
    longer = with_phase(BASE, rounds=5)

    def cut(*given: Any) -> str:
        raise RunError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", cut)
        with pytest.raises(RunError):
            fork(Run(tmp_path / "source"), tmp_path / "forked", longer, 4)
    run(longer, tmp_path / "forked", resume=True)
    run(longer, tmp_path / "whole")
    assert traces(tmp_path / "forked") == traces(tmp_path / "whole")


def test_an_impossible_fork_is_refused_in_one_line(tmp_path: Path) -> None:
    two = then(experiment(rounds=1), experiment(rounds=2))
    run(two, tmp_path / "source")
    source = Run(tmp_path / "source")
    for step, other, message in (
        (4, two, "--at: 4 given; .* has finished rounds 1 to 3"),
        (0, two, "--at: 0 given"),
        (3, two, "--at: 3 given, but the new run has only 3 rounds; allowed: fewer than that"),
        (
            2,
            replace(two, phases=two.phases[1:] * 2),
            "--at: phase 0 has ended before round 2; its settings must not change",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            fork(source, tmp_path / "f", other, step)
        assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            "model.hidden_sizes=[5]",
            r"^model: the model of the fork has [\w.]+ with shape \[5.*; .*source has trained one with shape \[16",
        ),
        ("model={name: cnn, channels: [2, 2], hidden: 4}", "^model: "),
        (
            "data.shape=[3]",
            r"^model: the model of the fork has .* with shape \[16, 3\]; .* has trained one with shape \[16, 12\]$",
        ),
    ],
)
def test_a_fork_whose_model_lacks_trained_weights_is_refused(
    tmp_path: Path, changed: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(experiment(rounds=2), tmp_path / "source")
    given = config.overridden(config.to_mapping(experiment(rounds=3)), [changed])
    with pytest.raises(ConfigError, match=line):
        fork(Run(tmp_path / "source"), tmp_path / "fork", config.parse(given), 1)
    assert not (tmp_path / "fork").exists()


def test_a_fork_to_an_occupied_folder_or_a_url_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(tmp_path / "source")
    run(experiment(rounds=2), tmp_path / "source")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.json").touch()
    for arguments, line in (
        (
            [source, "--out", source],
            f"{source}: the folder holds a run already; resume it with --resume, or give another --out",
        ),
        ([source, "--out", f"{tmp_path}/s"], f"{tmp_path}/s: the folder holds a sweep already; give another --out"),
        (
            [source, "--out", "s3://a/b"],
            "--out: 's3://a/b' is a URL; allowed: a folder on this machine",
        ),
        ([f"{tmp_path}/s"], f"{tmp_path}/s: the folder holds a sweep, not a run"),
    ):
        assert main(["fork", *arguments, "--at", "1"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"simfl: {line}")
        assert said.count("\n") == 1


def test_a_source_without_its_partition_is_refused(tmp_path: Path) -> None:
    run(experiment(rounds=2), tmp_path / "source")
    (tmp_path / "source" / "partition.json").unlink()
    with pytest.raises(RunError, match=r"source: partition.json is missing; the folder is incomplete$"):
        fork(Run(tmp_path / "source"), tmp_path / "fork", experiment(rounds=3), 1)


def test_an_experiment_is_a_prefix_if_it_differs_only_in_fewer_rounds() -> None:
    def rounds(n: int, **settings: Any) -> Experiment:
        return experiment(rounds=n, **settings)

    given = {"3": rounds(3), "9": rounds(9), "5": rounds(5), "seed": rounds(9, seed=1), "other": rounds(9, epochs=2)}
    assert longest_prefixes(given) == {"5": "3", "9": "5"}
    assert longest_prefixes({"a": rounds(3, schedule=Cosine()), "b": rounds(5, schedule=Cosine())}) == {}
    assert longest_prefixes({"a": rounds(3, schedule=Decay()), "b": rounds(5, schedule=Decay())}) == {"b": "a"}
    fixed = Cosine(horizon=10.0)
    assert longest_prefixes({"a": rounds(3, schedule=fixed), "b": rounds(5, schedule=fixed)}) == {"b": "a"}
    keys = [prefix_key(config.to_mapping(one)) for one in (rounds(3), replace(rounds(7), name="x"), rounds(3, seed=2))]
    assert keys[0] == keys[1] != keys[2]


def test_the_fork_command_writes_a_run_that_can_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(BASE, tmp_path / "r")
    assert main(["fork", str(tmp_path / "r"), "--at", "3", "--set", "phases.0.rounds=5"]) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "r-at-3"
    assert (
        said
        == f"{folder} forked after round 3; resume with: simfl run {folder}/experiment.yaml --out {folder} --resume\n"
    )
    assert main(["run", f"{folder}/experiment.yaml", "--out", str(folder), "--resume", "--backend", "inline"]) == 0
    run(with_phase(BASE, rounds=5), tmp_path / "whole")
    assert traces(folder) == traces(tmp_path / "whole")
