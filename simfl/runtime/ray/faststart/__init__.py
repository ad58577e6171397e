"""Optional fast start of Ray on one machine: about one second instead of four.

This package holds every override of private parts of Ray:

- `launcher`: a process that starts Ray while the driver still imports, and stops it with the driver;
- `patches`: Ray's start without the dashboard, monitors and agents that a simulation does not use;
- `fork_server` and `forked_worker`: workers forked from one process that has the imports, data and model.

`cluster` uses it for the versions of Ray in `TESTED_VERSIONS`. For other versions, with SIMFL_PLAIN_RAY=1, and where
this package is absent, Ray starts in the usual way. To add a version, install it, add it to the table and run
`tests/runtime/test_faststart.py` and `tests/runtime/test_fork_server.py`.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib import metadata

from simfl.runtime.ray.faststart.launcher import RayLauncher
from simfl.runtime.ray.faststart.patches import mute_errors

__all__ = ["PLAIN", "TESTED_VERSIONS", "RayLauncher", "enabled", "mute_errors"]

log = logging.getLogger(__name__)
TESTED_VERSIONS = frozenset(
    {
        "2.54.0",
        "2.54.1",
        "2.55.0",
        "2.55.1",
        "2.56.0",
        "2.56.1",
        "2.57.0",
        "2.57.1",
        "2.58.0",
        "2.58.1",
        "2.59.0",
        "2.60.0",
    }
)
PLAIN = "SIMFL_PLAIN_RAY"  # environment variable: any value turns the fast start off


def enabled() -> bool:
    """Return whether the fast start is on and supports the installed version of Ray; log once if it does not."""
    return not os.environ.get(PLAIN) and _supported(TESTED_VERSIONS)


@cache
def _supported(tested: frozenset[str]) -> bool:
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return False
    if version not in tested:
        log.warning("the fast start of Ray is not tested with Ray %s; Ray starts in the usual way", version)
    return version in tested
