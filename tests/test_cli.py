"""The command line: exit codes, one-line errors, what is handed to the engine, and the lists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simfl import __version__, simulation
from simfl.cli import main
from simfl.config import catalogue
from simfl.errors import ClientError

EXPERIMENT = """
name: small
data: prototypes
partition: {by: iid, clients: 4}
model: cnn
phases:
  - objective: classification
    rounds: 2
    participation: 0.5
    local: {optimizer: sgd, learning_rate: 0.1}
"""


class Engine:
    """Stands in for the engine: keeps what it was called with, and ends as told."""

    def __init__(self) -> None:
        self.called: tuple[Any, ...] = ()
        self.ends: Any = {"status": "completed"}

    def run(self, *arguments: Any) -> Any:
        self.called = arguments
        if isinstance(self.ends, BaseException):
            raise self.ends
        return self.ends


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    stand_in = Engine()
    monkeypatch.setattr(simulation, "run", stand_in.run)
    return stand_in


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(EXPERIMENT)
    return str(path)


def test_help_needs_no_torch_and_no_ray() -> None:
    code = (
        "import sys; from simfl.cli import main; main(['--help']); print(sorted({'torch', 'ray'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "run" in shown
    assert shown.endswith("[]\n")


def test_a_wrong_value_needs_no_ray(file: str) -> None:
    arguments = ["run", file, "--set", "seed=x"]
    code = f"import sys; from simfl.cli import main; print(main({arguments}), 'ray' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "2 False\n"
    assert shown.stderr == "simfl: seed: 'x' is not a whole number from 0 to 2**63 - 1\n"


def test_the_module_runs_as_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "simfl", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"simfl {__version__}\n"


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: simfl")


def test_run_hands_its_options_to_the_engine(engine: Engine, file: str) -> None:
    assert main(["run", file]) == 0
    experiment, out, backend, workers, address, resume, *_ = engine.called
    assert (out, backend, workers, address, resume) == (Path("runs/small"), "ray", "auto", None, False)
    assert (
        main(["run", file, "--out", "o", "--workers", "2", "--address", "a", "--resume", "--set", "phases.0.rounds=5"])
        == 0
    )
    experiment, out, backend, workers, address, resume, *_ = engine.called
    assert (Path(out), backend, workers, address, resume) == (Path("o"), "ray", 2, "a", True)
    assert experiment.phases[0].rounds == 5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "phases.0.round=3"], "simfl: phases.0.round: simfl has no key 'round' (given 3); did you mean"),
        (["--workers", "0"], "simfl: --workers: '0' is not a whole number of at least 1 or auto"),
        (["--backend", "inline", "--workers", "2"], "simfl: --workers: has no effect with --backend inline"),
        (["--backend", "inline", "--address", "a"], "simfl: --address: has no effect with --backend inline"),
        (["--backend", "rya"], "simfl: Invalid value for '--backend': 'rya' is not one of 'inline', 'ray'."),
        (["--worker", "2"], "simfl: No such option '--worker'."),
    ],
)
def test_a_user_error_is_one_line_and_exit_code_2(
    engine: Engine, file: str, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(["run", file, *arguments]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(expected)
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert engine.called == ()


def test_a_file_that_is_not_there_is_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err == "simfl: nowhere.yaml: No such file or directory\n"


def test_a_failed_client_is_exit_code_1_and_its_traceback_comes_last(
    engine: Engine, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.ends = ClientError(
        "client 3, phase 0, round 1, seed 7 failed:\nTraceback …\nZeroDivisionError: division by zero"
    )
    assert main(["run", file]) == 1
    said = capsys.readouterr().err
    assert said.startswith("simfl: client 3, phase 0, round 1, seed 7 failed:\n")
    assert said.endswith("\nZeroDivisionError: division by zero\n")


def test_an_interrupt_is_exit_code_130(engine: Engine, file: str) -> None:
    engine.ends = {"status": "interrupted"}
    assert main(["run", file]) == 130
    engine.ends = KeyboardInterrupt()
    assert main(["run", file]) == 130


def test_an_error_of_our_own_rises_with_its_traceback(engine: Engine, file: str) -> None:
    engine.ends = AssertionError("ours")
    with pytest.raises(AssertionError, match="ours"):
        main(["run", file])


def test_list_names_every_shelf(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in (*catalogue.NAMES, "fedavg", "nf4", "adamw", "provider"):
        assert name in shown


def test_list_of_a_shelf_shows_settings_with_defaults_and_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "codecs"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("block "))
    assert "64" in line
    assert "values that share a scale" in line


def test_list_as_json_is_stable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "server_optimizers", "--json"]) == 0
    first = capsys.readouterr().out
    assert main(["list", "server_optimizers", "--json"]) == 0
    assert capsys.readouterr().out == first
    (sgd,) = [entry for entry in json.loads(first)["server_optimizers"] if entry["name"] == "sgd"]
    assert set(sgd) == {"name", "summary", "settings"}
    (rate,) = [setting for setting in sgd["settings"] if setting["name"] == "learning_rate"]
    assert set(rate) == {"name", "type", "required", "default", "meaning"}
    assert (rate["type"], rate["required"], rate["default"]) == ("a number of at least 0", False, 1.0)


def test_list_of_sections_shows_the_keys_of_an_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "sections", "--json"]) == 0
    sections = {entry["name"]: entry["settings"] for entry in json.loads(capsys.readouterr().out)["sections"]}
    (rounds,) = [setting for setting in sections["phase"] if setting["name"] == "rounds"]
    assert rounds["required"]
    assert rounds["meaning"] == "T"


def test_every_setting_of_every_shelf_has_a_meaning() -> None:
    for shelf in (*catalogue.REGISTRIES, "sections"):
        for entry in catalogue.entries(shelf):
            assert entry.summary, entry.name
            for setting in entry.settings:
                assert setting.meaning, f"{shelf} {entry.name}.{setting.name} has no comment"


def test_list_of_an_unknown_shelf_is_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "codec"]) == 2
    assert capsys.readouterr().err == "simfl: list: unknown shelf 'codec'; did you mean 'codecs'?\n"
    assert main(["list", "fedprox"]) == 2
    said = "simfl: list: unknown shelf 'fedprox'; it is one of algorithms: simfl list algorithms\n"
    assert capsys.readouterr().err == said


def test_a_group_without_a_command_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 2
    assert capsys.readouterr().err.startswith("Usage: simfl data [OPTIONS] COMMAND")
