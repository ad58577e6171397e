"""The three protocols of EdgeFlowerTune (Geng et al. 2026, arXiv 2605.08636) on finished runs.

    quality under budget   the score of the last evaluation within a budget of seconds, bytes or energy
    cost to target         rounds, seconds, bytes and energy until a score is first at least a target
    robustness             the score over that of a reference, such as the same method without failures

Each replaces the scores of a comparison. Seconds are virtual (`clients.profile`), and energy is that of computing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simfl.errors import ConfigError, nearest
from simfl.reports.curves import RunCurves, run_curves
from simfl.reports.results import RunResult
from simfl.reports.table import COST, Comparison, ComparisonRow, SeedScores, compare

RESOURCES = ("seconds", "MB", "joules", "rounds")
REACHED, RETAINED = "reached", "retained"
MEGA = 1e6


@dataclass(frozen=True)
class Protocol:
    """A protocol and its settings."""

    name: Literal["budget", "target", "robustness"]
    budget: Mapping[str, float]  # resource -> largest amount, for `budget`
    target: float | None = None  # for `target`

    def __post_init__(self) -> None:
        """Check that the settings are those of the protocol."""
        for resource in self.budget:
            if resource not in RESOURCES:
                raise ConfigError(f"--budget: unknown {resource!r}; {nearest(resource, RESOURCES)}")
        if (self.name == "budget") != bool(self.budget):
            given = "missing; give NAME=AMOUNT" if self.name == "budget" else f"has no effect with {self.name}"
            raise ConfigError(f"--budget: {given} (names: {', '.join(RESOURCES)})")
        if (self.name == "target") != (self.target is not None):
            given = "missing; give a score" if self.name == "target" else f"has no effect with {self.name}"
            raise ConfigError(f"--reach: {given}")


def parse_budget(texts: Sequence[str]) -> dict[str, float]:
    """Return budgets given as `NAME=AMOUNT`; ConfigError for anything else."""
    found = {}
    for text in texts:
        name, sign, amount = text.partition("=")
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = -1.0
        if not sign or not found[name] > 0:
            raise ConfigError(f"--budget: {text!r} given; allowed: NAME=AMOUNT with an amount above 0, as seconds=600")
    return found


def compare_by(
    protocol: Protocol, results: Sequence[RunResult], metrics: Sequence[str], against: str | None
) -> Comparison:
    """Return the comparison of runs under a protocol, without tests.

    Raises:
        ConfigError: Runs have no virtual time or energy, or no such score.
    """
    plain = compare(results, metrics, against, None)
    if protocol.name == "robustness":
        return _robustness(compare(results, metrics, against, lambda row, reference, metric: None), against, results)
    if protocol.name == "target" and len(plain.metrics) != 1:
        raise ConfigError(f"--metric: give one of {', '.join(plain.metrics)}, which reaches the target")
    rows = [_row(row, protocol, plain.metrics) for row in plain.rows]
    names = dict.fromkeys(name for row in rows for name in row.scores)
    return replace(plain, metrics=tuple(names), rows=tuple(rows))


def _row(row: ComparisonRow, protocol: Protocol, metrics: Sequence[str]) -> ComparisonRow:
    found: dict[str, list[float]] = {}
    for run in row.done:
        curves = run_curves(run)
        _check_known(run, curves, protocol)
        values = (
            within(curves, protocol.budget, metrics)
            if protocol.name == "budget"
            else cost(curves, metrics[0], protocol.target or 0.0)
        )
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return replace(row, scores={name: SeedScores(tuple(values)) for name, values in found.items()})


def _check_known(run: RunResult, curves: RunCurves, protocol: Protocol) -> None:
    for resource in ("seconds", "joules"):
        if resource in protocol.budget and not getattr(curves, resource):
            raise ConfigError(f"--budget: {run.label} has no {resource}; set clients.profile in its experiment")


def spent(curves: RunCurves, step: int) -> dict[str, float]:
    """Return what a run had spent after this many rounds, by resource: those that are known."""
    found = {"rounds": float(step), "MB": curves.bytes.get(step, 0) / MEGA}
    found |= {name: known[step] for name in ("seconds", "joules") if (known := getattr(curves, name))}
    return found


def within(curves: RunCurves, budget: Mapping[str, float], metrics: Sequence[str]) -> dict[str, float]:
    """Return the scores of the last evaluation within a budget; that before the first round costs nothing."""
    found = {}
    for metric in metrics:
        steps = [
            step
            for step in sorted(curves.scores.get(metric, {}))
            if all(spent(curves, step)[name] <= most for name, most in budget.items())
        ]
        if steps:
            found[metric] = curves.scores[metric][steps[-1]]
    return found


def cost(curves: RunCurves, metric: str, target: float) -> dict[str, float]:
    """Return what it cost to reach a score, by resource, and `reached`: 1, or 0 without costs if it never was."""
    for step, value in sorted(curves.scores.get(metric, {}).items()):
        if value >= target:
            return {REACHED: 1.0} | {f"{COST}{name}": amount for name, amount in spent(curves, step).items()}
    return {REACHED: 0.0}


def _robustness(comparison: Comparison, against: str | None, results: Sequence[RunResult]) -> Comparison:
    """Return a comparison with the fraction of the reference's score that each row retains, seed by seed."""
    if not comparison.settings:
        raise ConfigError("--protocol: robustness compares rows with a reference, but all runs have the same settings")
    setting = next(
        (name for name in comparison.settings if str(against) in {str(row.varied[name]) for row in comparison.rows}),
        comparison.settings[0],
    )
    value = against or str(comparison.rows[0].varied[setting])
    rows = []
    for row in comparison.rows:
        reference = _reference(comparison.rows, {**row.varied, setting: value})
        scores = dict(row.scores)
        for metric, own in row.scores.items():
            there = None if reference is None else reference.scores.get(metric)
            if there is not None and len(there.values) == len(own.values) and all(there.values):
                kept = tuple(a / b for a, b in zip(own.values, there.values, strict=True))
                scores[f"{metric} {RETAINED}"] = SeedScores(kept)
        rows.append(replace(row, scores=scores))
    metrics = tuple(dict.fromkeys(name for row in rows for name in row.scores))
    return replace(comparison, metrics=metrics, rows=tuple(rows), reference="", tests=())


def _reference(rows: Sequence[ComparisonRow], wanted: Mapping[str, object]) -> ComparisonRow | None:
    """Return the row with these settings; None if there is none."""
    texts = {name: str(value) for name, value in wanted.items()}
    return next((row for row in rows if {name: str(value) for name, value in row.varied.items()} == texts), None)
