"""Text of the results of attacks: tables, and a verdict in the last line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simfl.audit.one_run import CanaryAudit, ViewAudit


def canary_lines(found: CanaryAudit) -> list[str]:
    """Format an audit with canaries; the last line is the verdict."""
    lines = [
        f"{found.canaries} canaries, {found.included} of them included; {found.rounds} rounds, delta {found.delta:g},"
        f" noise multiplier {found.noise_multiplier:.4g}; bounds with 95 % confidence"
    ]
    header = ("view", "claim", "one-run bound", "Gaussian bound", "estimate", "noise", "detectable")
    lines += table([header, *(_view_row(view) for view in found.views)])
    return [*lines, canary_verdict(found)]


def canary_verdict(found: CanaryAudit) -> str:
    """Return one sentence: which claims a bound exceeds, or that none does."""
    wrong = [view for view in found.views if not view.holds]
    if not found.views:
        return "nothing to audit: no view has a finite epsilon"
    if not wrong:
        return "no bound exceeds its claim"
    parts = (f"epsilon is at least {one.bound:.4g} for {one.view}, but {one.claim:.4g} is claimed" for one in wrong)
    return f"VIOLATED: {'; '.join(parts)}"


def _view_row(view: ViewAudit) -> tuple[str, ...]:
    return (
        view.view,
        number(view.claim),
        number(view.one_run),
        number(view.gaussian),
        number(view.estimate),
        "-" if view.noise is None or math.isinf(view.noise) else f"{100 * view.noise:.0f} %",
        "-" if view.detectable is None else f"{view.detectable:.2f} x claim",
    )


def number(value: float | None) -> str:
    """Format a number; a dash if there is none."""
    return "-" if value is None else f"{value:.3f}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns; the first one to the left, others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if k else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
