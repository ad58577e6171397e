"""The audit of a run, kept in its folder for reports, and added to its W&B run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict

from simfl.audit.one_run import CanaryAudit
from simfl.errors import RunError
from simfl.runs.folder import AUDIT, write_json
from simfl.runs.results import Run
from simfl.tracking.trackers import log_afterwards

AXIS = "audit/round"


def require_writable(run: Run) -> None:
    """Raise RunError if an audit could not be kept in the folder of a run."""
    if not os.access(run.folder, os.W_OK):
        raise RunError(f"--save: {run.folder} cannot be written to")


def save(run: Run, found: CanaryAudit, on_message: Callable[[str], None]) -> None:
    """Write an audit to the folder of its run, in place of an older one, and log bound and claim by round to W&B.

    Raises:
        RunError: The disk refuses the file.
    """
    write_json(run.folder / AUDIT, {"canaries": asdict(found)})
    log_afterwards(run.experiment, run.folder, AXIS, rows(found), on_message)


def rows(found: CanaryAudit) -> list[dict[str, float]]:
    """Return bound and claim of each view after each number of rounds, as metrics by name, by round."""
    by_round: dict[int, dict[str, float]] = {}
    for one in found.by_round:
        row = by_round.setdefault(one.round, {AXIS: one.round})
        row |= {f"audit/{one.view}/bound": one.bound, f"audit/{one.view}/claim": one.claim}
    return [by_round[number] for number in sorted(by_round)]
