"""The cache folder, which holds built and read data sets."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """Return `SIMFL_CACHE`, or `~/.cache/simfl` without it."""
    return Path(os.environ.get("SIMFL_CACHE") or Path.home() / ".cache" / "simfl")
