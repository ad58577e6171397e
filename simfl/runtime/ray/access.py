"""Access to a Ray that a run starts on its machine: it listens on loopback alone, and only its user reads its token.

Imports nothing heavy, because the launcher of Ray uses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOKEN_FILE = Path(".ray") / "auth_token"  # in the home folder; Ray makes it readable to all users


@contextmanager
def on_loopback() -> Iterator[None]:
    """Have a Ray that starts within the block listen on loopback alone.

    Ray's servers bind to the address of their node. Ray replaces a loopback address by that of the network, unless the
    machine cannot be part of a cluster, as it assumes for macOS and Windows; the block makes the same assumption.
    """
    from ray._private import ray_constants

    constants = vars(ray_constants)
    before = constants.get("ENABLE_RAY_CLUSTER")
    constants["ENABLE_RAY_CLUSTER"] = False
    try:
        yield
    finally:
        constants["ENABLE_RAY_CLUSTER"] = before


@contextmanager
def private_token() -> Iterator[None]:
    """Make files private to the user within the block, and the file of Ray's token afterwards, whoever made it."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
        _protect(Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / TOKEN_FILE))


def _protect(token: Path) -> None:
    """Take the rights of other users to the file of the token, if it is a file of this user."""
    if token.is_file() and token.stat().st_uid == os.getuid() and token.stat().st_mode & 0o077:
        token.chmod(0o600)
