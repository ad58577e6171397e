"""Import times: a process imports slow libraries only if its run needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
HEAVY = (
    "opacus",
    "scipy",
    "sklearn",
    "transformers",
    "peft",
    "ray",
    "tensorboard",
    "wandb",
    "matplotlib",
    "torch._dynamo",
    "torch._inductor",
)


def imported(code: str, folder: Path) -> list[str]:
    """Return the heavy modules that a process has imported at its end."""
    code += f"\nimport sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"},
    )
    return done.stdout.split()


def test_run_of_a_small_network_imports_nothing_heavy(tmp_path):
    code = "import sys, simfl; from fakes import experiment; simfl.run(experiment(), sys.argv[1], backend='inline')"
    assert imported(code, tmp_path / "run") == []


@pytest.mark.parametrize("module", ["simfl.cli", "simfl.runtime.ray.actor, simfl.sweeps.sweep", "simfl.reports.report"])
def test_module_imports_nothing_heavy(module, tmp_path):
    assert imported(f"import {module}", tmp_path) == []
