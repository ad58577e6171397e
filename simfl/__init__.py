"""simfl simulates federated learning at scale, on Ray, for people who research and ship federated multimodal models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simfl.api import load, run
    from simfl.experiment import Experiment
    from simfl.runs.results import Run

__version__ = "0.1.0"
__all__ = ["Experiment", "Run", "__version__", "load", "run"]

FACE = {"Experiment": "simfl.experiment", "Run": "simfl.runs.results", "load": "simfl.api", "run": "simfl.api"}


def __getattr__(name: str) -> Any:
    """What stands at the front, imported when it is first asked for: `import simfl` alone loads nothing heavy."""
    if name not in FACE:
        raise AttributeError(f"module 'simfl' has no attribute {name!r}")
    return getattr(importlib.import_module(FACE[name]), name)
