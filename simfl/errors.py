"""What a user can cause. Everything else rises as it is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SimflError(Exception):
    """Base of the errors that are answered with one clear line and exit code 2."""


class ConfigError(SimflError):
    """An experiment file, a flag or an argument cannot be used as given."""


class DataError(SimflError):
    """A data set or a partition cannot be read, or does not fit what was asked."""


class RunError(SimflError):
    """A run cannot start, go on or be resumed as it lies on disk."""


class ClientError(SimflError):
    """A client's own computation failed; the message names client, round and seed."""


class PrivacyError(SimflError):
    """Something was about to leave a client, or a budget to be overdrawn, against what the experiment promises."""


class OutOfMemory(SimflError):
    """Work did not fit into the memory of a GPU or a machine, also alone on a fresh worker."""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """A hint that ends an error line: the nearest allowed name, or all of them."""
    names = sorted(set(allowed))
    match = difflib.get_close_matches(str(given), names, n=1)
    return f"did you mean {match[0]!r}?" if match else f"allowed: {', '.join(names)}"
