"""The command line: exit codes, one-line errors, options of a run, and `simfl list`."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import Toy

from simfl import __version__, simulation
from simfl.cli import main
from simfl.config import catalogue
from simfl.errors import ClientError
from simfl.runtime import machine
from simfl.runtime.backend import choose_backend

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


class FakeSimulation:
    """Fake of `simulation`: records its arguments, and returns or raises `result`."""

    def __init__(self) -> None:
        self.called: tuple[Any, ...] = ()
        self.result: Any = {"status": "completed"}

    def run(self, *arguments: Any) -> Any:
        self.called = arguments
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSimulation:
    made = FakeSimulation()
    monkeypatch.setattr(simulation, "run", made.run)
    return made


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(EXPERIMENT)
    return str(path)


def test_help_imports_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from simfl.cli import main; main(['--help']); print(sorted({'torch', 'ray'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "run" in shown
    assert shown.endswith("[]\n")


def test_a_wrong_value_is_refused_without_importing_ray(file: str) -> None:
    arguments = ["run", file, "--set", "seed=x"]
    code = f"import sys; from simfl.cli import main; print(main({arguments}), 'ray' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "2 False\n"
    assert shown.stderr == "simfl: seed: 'x' is not a whole number from 0 to 2**63 - 1\n"


def test_the_module_runs_like_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "simfl", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"simfl {__version__}\n"


def test_simfl_without_a_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: simfl")


def test_run_passes_its_options_to_the_simulation(fake: FakeSimulation, file: str) -> None:
    assert main(["run", file, "--backend", "ray"]) == 0
    experiment, options = fake.called
    assert (options.out, options.backend, options.workers) == (Path("runs/small"), "ray", "auto")
    assert (options.address, options.resume) == (None, False)
    assert (
        main(["run", file, "--out", "o", "--workers", "2", "--address", "a", "--resume", "--set", "phases.0.rounds=5"])
        == 0
    )
    experiment, options = fake.called
    assert (Path(options.out), options.backend, options.workers) == (Path("o"), "ray", 2)
    assert (options.address, options.resume) == ("a", True)
    assert experiment.phases[0].rounds == 5


@pytest.mark.parametrize(
    ("cpus", "gpus", "expected"),
    [(1, 0, "inline"), (3, 0, "inline"), (4, 0, "ray"), (64, 1, "inline"), (2, 2, "ray")],
)
def test_auto_chooses_the_backend_by_the_number_of_cpus_and_gpus(
    monkeypatch: pytest.MonkeyPatch, cpus: int, gpus: int, expected: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(machine, "cpus", lambda: cpus)
    monkeypatch.setattr("simfl.runtime.backend.count_gpus", lambda: gpus)
    choice = choose_backend("auto")
    assert choice.name == expected
    assert choice.message.startswith(f"backend {expected}: {cpus} CPU")
    assert choose_backend("auto", workers=2).name == choose_backend("auto", address="a").name == "ray"
    assert choose_backend("inline").message == ""


def test_run_prints_the_backend_that_auto_chose(
    fake: FakeSimulation, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simfl.runtime.backend.count_gpus", lambda: 0)
    monkeypatch.setattr(machine, "cpus", lambda: 2)
    assert main(["run", file]) == 0
    assert fake.called[1].backend == "inline"
    assert capsys.readouterr().err.startswith("backend inline: 2 CPUs, no GPU (auto uses Ray from 2 GPUs")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "phases.0.round=3"], "simfl: phases.0.round: unknown key (given 3); did you mean"),
        (["--workers", "0"], "simfl: --workers: '0' is not a whole number of at least 1 or auto"),
        (["--backend", "inline", "--workers", "2"], "simfl: --workers: has no effect with --backend inline"),
        (["--backend", "inline", "--address", "a"], "simfl: --address: has no effect with --backend inline"),
        (["--backend", "rya"], "simfl: Invalid value for '--backend': 'rya' is not one of 'auto', 'inline', 'ray'."),
        (["--worker", "2"], "simfl: No such option '--worker'."),
    ],
)
def test_a_user_error_is_one_line_and_exit_code_2(
    fake: FakeSimulation, file: str, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(["run", file, *arguments]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(expected)
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert fake.called == ()


def test_a_missing_file_is_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err == "simfl: nowhere.yaml: No such file or directory\n"


def test_a_failed_client_has_exit_code_1_and_its_traceback_is_printed_last(
    fake: FakeSimulation, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.result = ClientError(
        "client 3, phase 0, round 1, seed 7 failed:\nTraceback …\nZeroDivisionError: division by zero"
    )
    assert main(["run", file, "--backend", "inline"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("simfl: client 3, phase 0, round 1, seed 7 failed:\n")
    assert said.endswith("\nZeroDivisionError: division by zero\n")


def test_an_interrupted_run_has_exit_code_130(fake: FakeSimulation, file: str) -> None:
    fake.result = {"status": "interrupted"}
    assert main(["run", file]) == 130
    fake.result = KeyboardInterrupt()
    assert main(["run", file]) == 130


def test_other_errors_propagate_with_their_traceback(fake: FakeSimulation, file: str) -> None:
    fake.result = AssertionError("ours")
    with pytest.raises(AssertionError, match="ours"):
        main(["run", file])


def test_list_shows_every_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in (*catalogue.NAMES, "fedavg", "nf4", "adamw", "provider"):
        assert name in shown


def test_list_of_a_registry_shows_settings_defaults_and_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "codecs"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("block "))
    assert "64" in line
    assert "values that share a scale" in line


def test_list_as_json_is_stable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "server_optimizers", "--json"]) == 0
    first = capsys.readouterr().out
    assert main(["list", "server_optimizers", "--json"]) == 0
    assert capsys.readouterr().out == first
    (sgd,) = [entry for entry in json.loads(first)["registries"]["server_optimizers"] if entry["name"] == "sgd"]
    assert set(sgd) == {"name", "summary", "settings"}
    (rate,) = [setting for setting in sgd["settings"] if setting["name"] == "learning_rate"]
    assert set(rate) == {"name", "type", "required", "default", "meaning"}
    assert (rate["type"], rate["required"], rate["default"]) == ("a number of at least 0", False, 1.0)


def test_list_of_sections_shows_the_keys_of_an_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "sections", "--json"]) == 0
    sections = {
        entry["name"]: entry["settings"] for entry in json.loads(capsys.readouterr().out)["registries"]["sections"]
    }
    (rounds,) = [setting for setting in sections["phase"] if setting["name"] == "rounds"]
    assert rounds["required"]
    assert rounds["meaning"] == "T: number of rounds"


def test_every_setting_of_every_registry_has_a_meaning() -> None:
    for registry in (*catalogue.REGISTRIES, "sections"):
        for entry in catalogue.entries(registry):
            assert entry.summary, entry.name
            for setting in entry.settings:
                assert setting.meaning, f"{registry} {entry.name}.{setting.name} has no comment"


def test_list_of_an_unknown_name_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "codec"]) == 2
    assert capsys.readouterr().err == "simfl: list: unknown name 'codec'; did you mean 'codecs'?\n"
    assert main(["list", "fedproxx"]) == 2
    assert capsys.readouterr().err == "simfl: list: unknown name 'fedproxx'; did you mean 'fedprox'?\n"


def test_list_describes_a_component_of_any_registry_and_a_class_of_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "fedprox", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["registries"]["algorithms"]
    assert [setting["name"] for setting in entry["settings"]] == ["mu"]
    assert main(["list", "fakes:Toy", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["registries"]["data"]
    assert entry["name"] == "fakes:Toy"
    assert entry["summary"].startswith(inspect.getdoc(Toy).partition("\n")[0])
    assert main(["list", "json:JSONDecoder"]) == 2
    assert "is not a class of one of the registries" in capsys.readouterr().err


def test_a_command_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 2
    assert capsys.readouterr().err.startswith("Usage: simfl data [OPTIONS] COMMAND")
