"""Documents that are written from the code are current, and name what the code names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from simfl.algorithms import ALGORITHMS
from simfl.optimizers import LOCAL_OPTIMIZERS

NAME = r"\b(test_[a-z0-9]+_[a-z0-9_]+|test_\w+(?=\.py))"  # of a test or its file; splits of data have shorter ones
DOCS = Path(__file__).parent.parent / "docs"


def test_the_table_of_algorithms_is_current() -> None:
    command = [sys.executable, str(DOCS / "make_algorithms.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_tables_of_codecs_are_current() -> None:
    """But for the times in them."""
    command = [sys.executable, str(DOCS / "make_codecs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_table_of_figures_is_current() -> None:
    """Some thirty plans."""
    command = [sys.executable, str(DOCS / "make_figures.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_what_fidelity_speaks_of_exists() -> None:
    text = (DOCS / "fidelity.md").read_text(encoding="utf-8")
    named = set(
        re.findall(
            r"^\| (\w+) \|",
            text.partition("\n## Algorithms and local optimizers\n")[2].partition("\n## ")[0],
            re.MULTILINE,
        )
    ) - {"method"}
    assert named
    assert named <= {*ALGORITHMS, *LOCAL_OPTIMIZERS}


def test_every_test_that_a_document_names_is_there() -> None:
    sources = {path: path.read_text() for path in Path(__file__).parent.rglob("test_*.py")}
    known = {path.stem for path in sources} | {
        name for text in sources.values() for name in re.findall(r"^ *def (test_\w+)", text, re.MULTILINE)
    }
    named = {name for path in DOCS.rglob("*.md") for name in re.findall(NAME, path.read_text())}
    assert named - known == set()
    assert len(named) > 20
