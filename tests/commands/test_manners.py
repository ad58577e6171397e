"""Manners of the command line: explanations, hints across levels, versions of JSON, completion, widths, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import simfl.cli
from simfl import config
from simfl.cli import commands, main
from simfl.commands import output
from simfl.config.explain import explain
from simfl.config.key_index import component_keys, section_keys
from simfl.errors import ConfigError

DIGITS: dict[str, Any] = {
    "name": "t",
    "data": "digits",
    "partition": {"by": "iid", "clients": 3},
    "model": {"name": "mlp", "hidden_sizes": [4]},
    "phases": [
        {
            "objective": "classification", "rounds": 1, "clients_per_round": 1,
            "local": {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 8},
        }
    ],
}  # fmt: skip
HINTS = {
    "lr=0.1": "did you mean phases.0.local.learning_rate?",
    "phases.0.lr=0.1": "did you mean phases.0.local.learning_rate?",
    "phases.0.local.lr=0.1": "did you mean phases.0.local.learning_rate?",
    "phases.0.epochs=2": "did you mean phases.0.local.epochs?",
    "phases.0.optimizer=adam": "did you mean phases.0.local.optimizer?",
    "phases.0.local.momentum=0.9": "did you mean phases.0.local.optimizer.momentum, a setting of ",
    "num_clients=3": "did you mean partition.clients, a setting of ",
    "fraction_fit=0.1": "did you mean phases.0.participation?",
    "epsilon=3": "did you mean privacy.epsilon?",
    "phases.0.local.optimizer=adamW": "did you mean 'adamw'?",
    "phases.0.algorithm=adamw": "'adamw' is one of optimizers, for phases.0.local.optimizer",
    "phases.0.algorithm=nf4": "'nf4' is one of codecs, for phases.0.codec.download",
    "model.adapters=prompt_tuning": "simfl does not support it, because it adds virtual tokens",
    "model.adapters=ia3": "write {kind: peft, method: ia3}",
    "model.hidden=3": "did you mean 'hidden_sizes'?",
    "phases.0.codec=nf4": "such as codec: {download: float32, upload: float32}",
    "evaluate=valid": "such as evaluate: {every: 1, loss: true}",
    "phases.0=3": "such as - {objective: ",
}


@pytest.mark.parametrize("setting", HINTS)
def test_a_setting_at_the_wrong_level_gets_the_right_one_as_hint(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(config.overridden(DIGITS, [setting]))
    assert HINTS[setting] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_key_and_every_setting_has_an_explanation() -> None:
    keys = section_keys()
    assert len(keys) > 150
    for key in keys:
        (found, *_) = explain(key.path.replace("[]", ".0"))
        assert found.meaning, key.path
        assert found.documented
    assert {"fedprox", "mlp", "nf4", "dirichlet"} <= {key.component for key in component_keys()}


@pytest.mark.parametrize(
    ("name", "found", "words"),
    [
        ("learning_rate", "phases.0.local.learning_rate", "a number of at least 0"),
        ("phases.0.local.steps", "phases.0.local.steps", "a whole number of at least 1 or null"),
        ("lr", "phases.0.local.learning_rate", "none, it is required"),
        ("fedprox", "fedprox (algorithms)", "mu: 0.01"),
        ("fedprox.mu", "phases.0.algorithm.mu", "phases.0.algorithm={name: fedprox, mu: 0.01}"),
        ("partition.by", "partition.by", "one of iid, "),
        ("adamw", "adamw (local optimizer)", "betas"),
        ("evaluate.splits", "evaluate.splits", "docs/reference/yaml.md#evaluate"),
    ],
)
def test_a_key_or_component_is_explained(name: str, found: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(found)
    assert words in shown


def test_examples_of_explanations_are_accepted() -> None:
    for name in ("rounds", "fedprox.mu", "evaluate.splits", "participation", "partition.by", "deterministic"):
        (option, *_) = [one.example for one in explain(name)]
        setting = re.fullmatch("--set '(.*)'", option)
        assert setting, option
        given = {**DIGITS, "partition": {"by": "iid", "clients": 3}}
        if "participation" in option:
            given = {**given, "phases": [{k: v for k, v in DIGITS["phases"][0].items() if k != "clients_per_round"}]}
        config.parse(config.overridden(given, [setting[1]]))


def test_an_unknown_key_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "roundz"]) == 2
    assert capsys.readouterr().err == "simfl: explain: no key and no component 'roundz'; did you mean 'rounds'?\n"


def json_commands(group: click.Group, names: tuple[str, ...] = ()) -> list[str]:
    """Return the names of all commands with the option --json."""
    found = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += json_commands(command, (*names, name))
        elif any("--json" in option.opts for option in command.params):
            found.append("-".join((*names, name)))
    return found


def test_every_json_has_a_version_of_its_schema() -> None:
    listed = {"new": "new-list", "sweep": "sweep-list"}
    own = {"dashboard"}  # prints the workspace that W&B defines
    assert {listed.get(name, name) for name in json_commands(commands)} - own | {"table"} == set(output.SCHEMAS)
    sources = (Path(simfl.cli.__file__).parent / "commands").glob("*.py")
    used = {kind for path in sources for kind in re.findall(r'print_json\("([\w-]+)"', path.read_text())}
    assert used | {"plan", "list"} == set(output.SCHEMAS)


@pytest.mark.parametrize(
    ("arguments", "schema", "keys"),
    [
        (["list", "fedprox", "--json"], "simfl/list/1", {"registries"}),
        (["explain", "rounds", "--json"], "simfl/explain/1", {"explanations"}),
        (["new", "--list", "--json"], "simfl/new-list/1", {"experiments"}),
        (["data", "list", "--json"], "simfl/data-list/1", {"data"}),
    ],
)
def test_json_begins_with_its_schema(
    arguments: list[str], schema: str, keys: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(iter(found)) == "schema"
    assert found.pop("schema") == schema
    assert set(found) == keys


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_SIMFL_COMPLETE" in capsys.readouterr().out


def test_a_completion_lists_commands_without_importing_torch() -> None:
    code = (
        "import sys; from simfl.cli import main\ntry: main([])\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    )
    given = {**os.environ, "_SIMFL_COMPLETE": "bash_complete", "COMP_WORDS": "simfl exp", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)
    assert done.stdout.split() == ["plain,explain", "plain,export"]
    assert done.stderr.strip() == "False"


def test_tables_fit_the_columns_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in ("70", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["list", "codecs"]) == 0
        assert main(["explain", "phases.0.algorithm"]) == 0
        output.print_table(("name", "meaning"), [("a", "word " * 60)])
        assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


def test_help_has_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^ +(\d+)  ", shown, re.MULTILINE) == ["0", "1", "2", "3", "130"]


@pytest.mark.parametrize(
    "setting",
    ["lr=1", "phases.0.rounds=0", "phases.0.algorithm={name: fedrep, head: 'nothing*'}", "evaluate.splits=[no]"],
)
def test_a_wrong_setting_leaves_no_run_folder(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text(json.dumps(DIGITS))
    assert main(["run", "e.yaml", "--backend", "inline", "--set", setting]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("runs").exists()
