"""Experiment files that extend another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simfl import config
from simfl.algorithms.fedprox import FedProx
from simfl.cli import main
from simfl.errors import ConfigError
from simfl.objectives.vqa import Vqa

BASE = """
name: base
data: prototypes
partition: {by: iid, clients: 4}
model: mlp
phases:
  - objective: classification
    algorithm: fedavg
    rounds: 3
    participation: 1.0
    local: {optimizer: sgd, learning_rate: 0.1, steps: 2}
"""


def write_files(folder: Path, **files: str) -> Path:
    """Write the files and the base, and return the first of them."""
    for name, text in {"base": BASE, **files}.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{next(iter(files))}.yaml"


def test_settings_of_a_file_override_those_of_its_base(tmp_path: Path) -> None:
    path = write_files(
        tmp_path,
        prox="experiment: base.yaml\nname: prox\nalgorithm: {name: fedprox, mu: 0.5}\nlocal.steps: 7\nseed: 3\n",
    )
    sets = ["name=prox", "phases.0.algorithm={name: fedprox, mu: 0.5}", "phases.0.local.steps=7", "seed=3"]
    assert config.load(path) == config.load(tmp_path / "base.yaml", sets)


def test_a_base_may_extend_another_file(tmp_path: Path) -> None:
    path = write_files(
        tmp_path,
        c="experiment: sub/b.yaml\nrounds: 9\n",
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yaml").write_text("experiment: ../base.yaml\nname: b\nrounds: 5\nlocal.clip_norm: 2\n")
    (phase,) = config.load(path, ["phases.0.local.batch_size=8"]).phases
    assert (phase.rounds, phase.local.clip_norm, phase.local.batch_size, phase.local.learning_rate) == (9, 2, 8, 0.1)
    assert config.load(path).name == "b"
    assert config.settings(path) == {"name": "b", "rounds": 9, "local.clip_norm": 2}


def test_phases_state_their_differences_from_those_of_the_base(tmp_path: Path) -> None:
    two = "experiment: base.yaml\nphases: [{rounds: 2}, {rounds: 1, communicate: false, local.steps: 5}]\n"
    first, second = config.load(write_files(tmp_path, two=two)).phases
    (base,) = config.load(tmp_path / "base.yaml").phases
    assert first == replace(base, rounds=2)
    assert second == replace(base, rounds=1, communicate=False, local=replace(base.local, steps=5))
    three = "experiment: two.yaml\nphases: [{}, {rounds: 4}, {rounds: 7}]\n"
    found = config.load(write_files(tmp_path, three=three, two=two)).phases
    assert found == (first, replace(second, rounds=4), replace(second, rounds=7))


def test_a_component_of_the_same_name_keeps_its_settings_in_a_phase(tmp_path: Path) -> None:
    named = BASE.replace("fedavg", "{name: scaffold, option: i}")
    same, other = (
        f"experiment: base.yaml\nphases: [{{algorithm: {{name: {name}}}}}]\n" for name in ("scaffold", "fedprox")
    )
    write_files(tmp_path, same=same, other=other)
    (tmp_path / "base.yaml").write_text(named)
    assert config.load(tmp_path / "same.yaml") == config.load(tmp_path / "base.yaml")
    assert config.load(tmp_path / "other.yaml").phases[0].algorithm == FedProx()


def test_a_phase_of_an_objective_keeps_the_answers_of_another_base(tmp_path: Path) -> None:
    """The phases were written for data with labels, and are used with data that need a list of answers."""
    lists = BASE.replace("objective: classification", "objective: {name: vqa, answers: [cat, dog]}")
    phases = "experiment: base.yaml\nphases: [{objective: {name: vqa, by: task}, rounds: 2}, {communicate: false}]\n"
    write_files(tmp_path, phases=phases)
    (tmp_path / "base.yaml").write_text(lists)
    first, second = (phase.objective for phase in config.load(tmp_path / "phases.yaml").phases)
    assert first == Vqa(answers=("cat", "dog"), by="task")
    assert second == Vqa(answers=("cat", "dog"))


def test_a_file_may_set_a_key_of_all_phases(tmp_path: Path) -> None:
    two = "experiment: base.yaml\nphases: [&p {objective: classification, rounds: 1, local: {optimizer: sgd, " + (
        "learning_rate: 1.0}, participation: 1.0}, {<<: *p}]\nphases.*.rounds: 4\n"
    )
    assert [phase.rounds for phase in config.load(write_files(tmp_path, two=two)).phases] == [4, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiment: bas.yaml", r"a.yaml: experiment: .*bas.yaml does not exist; did you mean 'base.yaml'\?"),
        ("experiment: 3", "a.yaml: experiment: 3 is not a file name"),
        ("experiment: a.yaml", "a.yaml: experiment: circular, it leads back to .*a.yaml"),
        ("experiment: b.yaml", "a.yaml: experiment: circular, it leads back to .*a.yaml"),
        (
            "experiment: base.yaml\nalgoritm: x",
            "a.yaml: algoritm: neither an experiment nor a phase has the key 'algoritm'; did you mean 'algorithm'?",
        ),
        ("experiment: base.yaml\nphases.2.rounds: 1", "a.yaml: phases.2: '2' is not an index of the list; allowed: 0"),
        ("experiment: base.yaml\nalgorithm: fedprx", "phases.0.algorithm: unknown 'fedprx'; did you mean 'fedprox'?"),
        (
            "experiment: base.yaml\nseeds: [1, 2]",
            "a.yaml: 'seeds' makes it a sweep, which has many runs; use simfl sweep",
        ),
        ("- experiment: base.yaml", r"a.yaml: \[.*\] is not a mapping of keys to values"),
    ],
)
def test_a_wrong_extending_file_is_refused_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = write_files(tmp_path, a=text, b="experiment: a.yaml")
    with pytest.raises(ConfigError, match=message) as raised:
        config.load(path)
    assert "\n" not in str(raised.value)


def test_plan_and_run_accept_a_file_with_a_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_files(
        tmp_path, prox="experiment: base.yaml\nname: prox\nalgorithm: {name: fedprox, mu: 0.5}\nrounds: 1\n"
    )
    assert main(["plan", str(path)]) == 0
    assert main(["run", str(path), "--backend", "inline", "--out", str(tmp_path / "out")]) == 0
    assert config.load(tmp_path / "out" / "experiment.yaml") == config.load(
        path
    )  # the file of a run contains all settings
    capsys.readouterr()
