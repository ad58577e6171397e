"""Generated documents are up to date, and documents name existing components and tests."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import experiment, run

from simfl.algorithms import ALGORITHMS
from simfl.algorithms.fedprox import FedProx
from simfl.optimizers import LOCAL_OPTIMIZERS

NAME = (
    r"\b(test_[a-z0-9]+_[a-z0-9_]+|test_\w+(?=\.py))"  # name of a test or its file; splits of data have shorter names
)
DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "how-to/own_algorithm.md"


def test_the_table_of_algorithms_is_up_to_date() -> None:
    command = [sys.executable, str(DOCS / "make_algorithms.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_table_of_trials_of_faults_is_up_to_date() -> None:
    command = [sys.executable, str(DOCS / "make_failures.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, "run `python docs/make_failures.py`"


@pytest.mark.slow
def test_the_tables_of_codecs_are_up_to_date() -> None:
    """Times in the tables are not compared."""
    command = [sys.executable, str(DOCS / "make_codecs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_table_of_figures_is_up_to_date() -> None:
    """The table has about thirty plans."""
    command = [sys.executable, str(DOCS / "make_figures.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_methods_named_in_fidelity_exist() -> None:
    text = (DOCS / "explanation/fidelity.md").read_text(encoding="utf-8")
    named = set(
        re.findall(
            r"^\| (\w+) \|",
            text.partition("\n## Algorithms and local optimizers\n")[2].partition("\n## ")[0],
            re.MULTILINE,
        )
    ) - {"method"}
    assert named
    assert named <= {*ALGORITHMS, *LOCAL_OPTIMIZERS}


def test_tests_named_in_documents_exist() -> None:
    sources = {path: path.read_text() for path in Path(__file__).parent.rglob("test_*.py")}
    known = {path.stem for path in sources} | {
        name for text in sources.values() for name in re.findall(r"^ *def (test_\w+)", text, re.MULTILINE)
    }
    named = {name for path in DOCS.rglob("*.md") for name in re.findall(NAME, path.read_text())}
    assert named - known == set()
    assert len(named) > 20


def test_the_fedprox_of_the_documentation_runs_as_pasted_and_equals_the_built_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "class FedProx" in block]
    (tmp_path / "pasted_fedprox.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    pasted = importlib.import_module("pasted_fedprox").FedProx
    hashes = [
        run(experiment(algorithm(mu=0.5), rounds=2), tmp_path / algorithm.__module__)["weights_sha256"]
        for algorithm in (pasted, FedProx)
    ]
    assert hashes[0] == hashes[1]
