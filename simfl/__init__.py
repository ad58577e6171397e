"""Simulate federated learning at scale, on Ray, for people who research and ship federated multimodal models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simfl.api import check_data, load, run
    from simfl.experiment import Experiment
    from simfl.runs.results import Run

__version__ = "0.2.0"
__all__ = ["Experiment", "Run", "__version__", "check_data", "load", "run"]

MODULES = {
    "Experiment": "simfl.experiment",
    "Run": "simfl.runs.results",
    "check_data": "simfl.api",
    "load": "simfl.api",
    "run": "simfl.api",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import simfl` alone loads nothing heavy."""
    if name not in MODULES:
        raise AttributeError(f"module 'simfl' has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name]), name)
