"""Errors that a user can cause. All other exceptions propagate unchanged."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SimflError(Exception):
    """Base class of errors that the command line reports in one line, with exit code 2."""


class ConfigError(SimflError):
    """An experiment file, an option or an argument is invalid."""


class DataError(SimflError):
    """A data set or a partition cannot be read, or does not meet the request."""


class RunError(SimflError):
    """A run cannot be started, continued or resumed in its folder."""


class ClientError(SimflError):
    """The computation of a client failed; the message names the client, the round and the seed."""


class PrivacyError(SimflError):
    """An operation would violate the privacy guarantee of the experiment or exceed its budget."""


class OutOfMemory(SimflError):
    """A task does not fit into the memory of a GPU or a machine, even alone on a new worker."""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """Return a hint for the end of an error message: the closest allowed name, or all allowed names."""
    names = sorted(set(allowed))
    match = difflib.get_close_matches(str(given), names, n=1)
    return f"did you mean {match[0]!r}?" if match else f"allowed: {', '.join(names)}"
