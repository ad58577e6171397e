"""Included experiments: listed, copied, and part of the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from simfl import config
from simfl.cli import main
from simfl.commands.templates import templates

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", templates())
def test_every_included_experiment_is_valid_and_has_a_summary(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    config.load(templates()[name])
    assert main(["new", "--list"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name} ")]
    assert len(line.split()) > 3


def test_a_new_experiment_is_a_copy_with_the_name_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    assert main(["new", str(file), "--from", "quickstart"]) == 0
    assert capsys.readouterr().out == f"{file} written; run it with: simfl run {file}\n"
    before, after = config.to_mapping(config.load(templates()["quickstart"])), config.to_mapping(config.load(file))
    assert after == {**before, "name": "mine"}
    kept = set(templates()["quickstart"].read_text().splitlines()) - set(file.read_text().splitlines())
    assert kept == {"name: quickstart"}  # comments are copied


def test_a_copy_of_an_experiment_with_a_base_contains_all_settings(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert main(["new", str(file), "--from", "pfl_docvqa/lora_nf4"]) == 0
    assert config.load(file) == replace(config.load(templates()["pfl_docvqa/lora_nf4"]), name="mine")
    first, second, third, *_ = file.read_text().splitlines()
    assert first.startswith("# From pfl_docvqa/lora_nf4 of simfl ")
    assert second.startswith("# The winner of Track 1")
    assert third == "name: mine"


def test_a_summary_does_not_end_at_et_al(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "--list"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed["fedvqa/fedprox"].startswith("FedProx (Li et al. 2020), on the small FedVQA benchmark")
    assert not [name for name, said in listed.items() if said.endswith("et al.")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["there.yaml", "--from", "quickstart"], "there.yaml: the file exists already"),
        (["x.yaml", "--from", "quickstat"], "--from: unknown 'quickstat'; did you mean 'quickstart'?"),
        (["a b.yaml", "--from", "quickstart"], "FILE: 'a b' is not letters, digits, '.', '_' and '-', not beginning"),
        (["none/x.yaml", "--from", "quickstart"], "none/x.yaml: No such file or directory"),
        (["x.yaml"], "new: write `simfl new FILE --from NAME`, or `simfl new FILE --kind "),
    ],
)
def test_new_refuses_wrong_arguments_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text("mine")
    assert main(["new", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"simfl: {said}")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there.yaml", "mine")]


@pytest.mark.slow
def test_the_wheel_contains_the_experiments(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("simfl", "experiments"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*pip, str(tmp_path), str(tree)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        held = {name: packed.read(name) for name in packed.namelist() if name.startswith("simfl/experiments/")}
        assert "simfl/py.typed" in packed.namelist()
    there = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in (ROOT / "experiments").rglob("*.yaml")}
    assert held == {f"simfl/{name}": content for name, content in there.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["algorithm", "data", "model", "experiment"])
def test_a_template_passes_its_test(kind: str, tmp_path: Path) -> None:
    assert main(["new", str(tmp_path / "mine_own"), "--kind", kind]) == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine_own.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_templates_are_refused_where_they_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", str(tmp_path / "mine_own.py"), "--kind", "data"]) == 0
    wrong = {"mine_own.py": "exists already", "my-own.py": "allowed: a name of a Python module", "a.yaml": "ending .py"}
    capsys.readouterr()
    for name, message in (*wrong.items(), ("json.py", "a Python module 'json' exists already")):
        assert main(["new", str(tmp_path / name), "--kind", "data"]) == 2
        assert message in capsys.readouterr().err
    compile((tmp_path / "mine_own.py").read_text(), "mine_own.py", "exec")
    assert main(["new", str(tmp_path / "e.yaml"), "--kind", "experiment"]) == 0
    config.load(tmp_path / "e.yaml")
