"""Real clusters on this machine, on loopback alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_slurm import LocalSlurm, missing_packages


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """Slurm with two nodes; tests are skipped where its packages are missing."""
    if reason := missing_packages():
        pytest.skip(reason)
    found = LocalSlurm()
    try:
        found.start()
        yield found
    finally:
        found.stop()
