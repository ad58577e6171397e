"""Text of the results of attacks: tables, and a verdict in the last line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simfl.audit.extraction import ExtractionResult
from simfl.audit.inversion import InversionResult
from simfl.audit.membership import MembershipResult
from simfl.audit.one_run import CanaryAudit, ViewAudit
from simfl.audit.statistics import Roc
from simfl.formatting import format_bytes


def canary_lines(found: CanaryAudit) -> list[str]:
    """Format an audit with canaries; the last line is the verdict."""
    lines = [
        f"{found.canaries} canaries, {found.included} of them included; {found.rounds} rounds, delta {found.delta:g},"
        f" noise multiplier {found.noise_multiplier:.4g}; all bounds hold with {100 * found.confidence:g} % confidence"
    ]
    header = ("view", "claim", "one-run bound", "Gaussian bound", "estimate", "noise", "AUC of coins", "detectable")
    lines += table([header, *(_view_row(view) for view in found.views)])
    if len(found.by_round) > len(found.views):
        rows = [(str(one.round), one.view, number(one.claim), number(one.bound)) for one in found.by_round]
        lines += table([("rounds", "view", "claim", "bound"), *rows])
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
        number(view.auc),
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


def membership_lines(found: MembershipResult) -> list[str]:
    """Format a membership attack; the last line compares the main score with guessing."""
    first = found.attacks[0].roc
    rates = list(first.true_positives)
    lines = [
        f"{found.unit} membership: {first.members} members ({found.members}), {first.others} others ({found.others});"
        " intervals with 95 % confidence"
    ]
    header = ("score", "AUC", *(f"TPR at {100 * rate:g} % FPR" for rate in rates))
    rows = [(one.name, *_roc_cells(one.roc)) for one in found.attacks]
    rows += [(f"initial model: {one.name}", *_roc_cells(one.roc)) for one in found.control]
    lines += table([header, *rows])
    for rate in rates:
        if (allowed := found.allowed(rate)) is not None:
            lines.append(f"epsilon {found.epsilon:.4g} allows a TPR of at most {allowed:.3g} at {100 * rate:g} % FPR")
    return [*lines, membership_verdict(found)]


def membership_verdict(found: MembershipResult) -> str:
    """Return one sentence about the main score."""
    main, auc = found.main, found.main.roc.auc
    if auc.low > 0.5:
        return f"membership leaks: {main.name} has an AUC of {auc}"
    return f"no better than guessing: {main.name} has an AUC of {auc}"


def _roc_cells(found: Roc) -> tuple[str, ...]:
    rates = ("too few units" if one is None else str(one) for one in found.true_positives.values())
    return (str(found.auc), *rates)


def inversion_lines(found: InversionResult) -> list[str]:
    """Format the attacks on one upload."""
    lines = [
        f"upload of client {found.client} in round {found.round}, {format_bytes(found.payload)}: {found.examples}"
        f" examples, {found.tokens} distinct tokens in their questions"
    ]
    rows = [("attack", "AUC", "found", "dimensions", "recovered")]
    for one in found.attacks:
        rank = "-" if one.rank is None else str(one.rank)
        recovered = "-" if one.recovered is None else f"{100 * one.recovered:.0f} %"
        rows.append((one.name, str(one.roc.auc), f"{100 * one.recall:.0f} %", rank, recovered))
    return [*lines, *table(rows)]


def extraction_lines(found: ExtractionResult) -> list[str]:
    """Format an extraction; the last line is the verdict."""
    rows = [("erased fields", "number", "right answers")]
    rows += [(one.name, str(one.fields), str(one.extracted)) for one in found.rates]
    compared = f"{found.gained} fields more and {found.lost} fewer than the {found.baseline} (p = {found.p:.2g})"
    verdict = "fields leak" if found.leaks else "no field is shown to leak"
    return [*table(rows), f"{verdict}: {compared}"]
