"""Errors that a user can cause. All other exceptions propagate unchanged."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import TracebackType
from typing import Self


class SimflError(Exception):
    """Base class of errors that the command line reports in one line, with exit code 2."""


class ConfigError(SimflError):
    """An experiment file, an option or an argument is invalid."""


class DataError(SimflError):
    """A data set or a partition cannot be read, or does not meet the request."""


class RunError(SimflError):
    """A run cannot be started, continued or resumed in its folder."""


class DamagedFile(RunError):
    """A file of a run is missing, or its content is not what the run wrote."""


class ClientError(SimflError):
    """The computation of a client failed; the message names the client, the round and the seed."""


class ClusterError(RunError):
    """Ray or its workers ended or do not answer; the run can be resumed."""


class PrivacyError(SimflError):
    """An operation would violate the privacy guarantee of the experiment or exceed its budget."""


class OutOfMemory(SimflError):
    """A task does not fit into the memory of a GPU or a machine, even alone on a new worker."""


class Problems:
    """Config errors that are collected and then raised together, so that a user can correct all at once.

    Each `with` block adds the lines of the ConfigError that it raises.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if isinstance(error, ConfigError):
            self.add(*str(error).splitlines())
            return True
        return False

    def add(self, *lines: str) -> None:
        """Add problems, one line each; a line that was added before is not repeated."""
        self.lines += [line for line in lines if line not in self.lines]

    def refuse(self) -> None:
        """Raise one ConfigError with all lines, if there are any."""
        if self.lines:
            raise ConfigError("\n".join(self.lines))


def closest(given: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that is most similar to a misspelt one, if need be in another case; None if none is."""
    names = sorted(set(allowed))
    if same := [name for name in names if name.lower() == str(given).lower()]:
        return same[0]
    if match := difflib.get_close_matches(str(given), names, n=1):
        return match[0]
    lower = {name.lower(): name for name in reversed(names)}
    match = difflib.get_close_matches(str(given).lower(), sorted(lower), n=1)
    return lower[match[0]] if match else None


def nearest(given: str, allowed: Iterable[str]) -> str:
    """Return a hint for the end of an error message: the closest allowed name, or all allowed names."""
    names = sorted(set(allowed))
    if not names:
        return "there are none"
    match = closest(given, names)
    return f"did you mean {match!r}?" if match else f"allowed: {', '.join(names)}"
