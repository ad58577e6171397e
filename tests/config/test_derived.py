"""An experiment's file may name another and say what it has otherwise; what cannot be meant is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from simfl import config
from simfl.cli import main
from simfl.errors import ConfigError

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


def laid(folder: Path, **files: str) -> Path:
    """The files, and the base; the first of them."""
    for name, text in {"base": BASE, **files}.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{next(iter(files))}.yaml"


def test_what_a_file_says_is_laid_over_the_one_it_names(tmp_path: Path) -> None:
    path = laid(
        tmp_path,
        prox="experiment: base.yaml\nname: prox\nalgorithm: {name: fedprox, mu: 0.5}\nlocal.steps: 7\nseed: 3\n",
    )
    sets = ["name=prox", "phases.0.algorithm={name: fedprox, mu: 0.5}", "phases.0.local.steps=7", "seed=3"]
    assert config.load(path) == config.load(tmp_path / "base.yaml", sets)


def test_a_file_may_name_one_that_names_another_and_the_last_word_counts(tmp_path: Path) -> None:
    path = laid(
        tmp_path,
        c="experiment: sub/b.yaml\nrounds: 9\n",
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yaml").write_text("experiment: ../base.yaml\nname: b\nrounds: 5\nlocal.clip_norm: 2\n")
    (phase,) = config.load(path, ["phases.0.local.batch_size=8"]).phases
    assert (phase.rounds, phase.local.clip_norm, phase.local.batch_size, phase.local.learning_rate) == (9, 2, 8, 0.1)
    assert config.load(path).name == "b"
    assert config.settings(path) == {"name": "b", "rounds": 9, "local.clip_norm": 2}


def test_all_phases_may_be_set_at_once(tmp_path: Path) -> None:
    two = "experiment: base.yaml\nphases: [&p {objective: classification, rounds: 1, local: {optimizer: sgd, " + (
        "learning_rate: 1.0}, participation: 1.0}, {<<: *p}]\nphases.*.rounds: 4\n"
    )
    assert [phase.rounds for phase in config.load(laid(tmp_path, two=two)).phases] == [4, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiment: bas.yaml", r"a.yaml: experiment: there is no .*bas.yaml; did you mean 'base.yaml'\?"),
        ("experiment: 3", "a.yaml: experiment: 3 is not the name of a file"),
        ("experiment: a.yaml", "a.yaml: experiment: it leads back to .*a.yaml"),
        ("experiment: b.yaml", "a.yaml: experiment: it leads back to .*a.yaml"),
        (
            "experiment: base.yaml\nalgoritm: x",
            "a.yaml: algoritm: neither an experiment nor a phase has 'algoritm'; did you mean 'algorithm'?",
        ),
        ("experiment: base.yaml\nphases.2.rounds: 1", "a.yaml: phases.2: '2' is not an entry of the list; allowed: 0"),
        ("experiment: base.yaml\nalgorithm: fedprx", "phases.0.algorithm: unknown 'fedprx'; did you mean 'fedprox'?"),
        ("experiment: base.yaml\nseeds: [1, 2]", "a.yaml: 'seeds' makes it a sweep, of many runs; use simfl sweep"),
        ("- experiment: base.yaml", r"a.yaml: \[.*\] is not a mapping of keys to values"),
    ],
)
def test_a_mistake_is_one_line_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = laid(tmp_path, a=text, b="experiment: a.yaml")
    with pytest.raises(ConfigError, match=message) as raised:
        config.load(path)
    assert "\n" not in str(raised.value)


def test_the_commands_take_such_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = laid(tmp_path, prox="experiment: base.yaml\nname: prox\nalgorithm: {name: fedprox, mu: 0.5}\nrounds: 1\n")
    assert main(["plan", str(path)]) == 0
    assert main(["run", str(path), "--backend", "inline", "--out", str(tmp_path / "out")]) == 0
    assert config.load(tmp_path / "out" / "experiment.yaml") == config.load(path)  # a run's own file is whole
    capsys.readouterr()
