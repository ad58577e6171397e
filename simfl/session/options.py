"""Options of a run that do not change its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunOptions:
    """Settings of a run besides its experiment: backend, run folder and display."""

    out: Path | str  # the run folder, or a URL that fsspec knows, to which the folder is copied
    backend: str = "ray"  # `ray` or `inline`
    workers: int | str = "auto"  # number of Ray workers; `auto`: one per GPU, or per CPU without GPUs
    address: str | None = None  # of a running Ray cluster; None starts Ray on this machine
    resume: bool = False  # continue from the newest checkpoint in `out`
    display: Any = None  # an object with the methods of `NullDisplay`; None shows nothing
    profile: bool = False  # write a trace of where time is spent
    notes: tuple[str, ...] = ()  # messages at the start, such as on GPUs that others use
    until: Callable[[], str] = str  # called before each round; a non-empty string ends the run with that status
    shared: dict[str, Any] | None = None  # data and models that consecutive runs of this process share
