"""Where data sets are kept once they are built or read."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """`SIMFL_CACHE`, or `~/.cache/simfl`."""
    return Path(os.environ.get("SIMFL_CACHE") or Path.home() / ".cache" / "simfl")
