"""Documents that are written from the code are current, and name what the code names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from simfl.algorithms import ALGORITHMS
from simfl.optimizers import LOCAL_OPTIMIZERS

DOCS = Path(__file__).parent.parent / "docs"


def test_the_table_of_algorithms_is_current() -> None:
    command = [sys.executable, str(DOCS / "make_algorithms.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_fidelity_speaks_of_exists() -> None:
    text = (DOCS / "fidelity.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| (\w+) \|", text.partition("## Algorithms")[2], re.MULTILINE)) - {"method"}
    assert named
    assert named <= {*ALGORITHMS, *LOCAL_OPTIMIZERS}
