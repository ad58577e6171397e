"""The best setting of each method: in a grid of methods and their settings, one row for each method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simfl.reports.chart import format_number
from simfl.reports.final_scores import differing_settings
from simfl.reports.labels import short_label
from simfl.reports.page import table
from simfl.reports.statistical_tests import SIGNIFICANCE_LEVEL, Difference, holm
from simfl.reports.table import COST, Comparison, ComparisonRow, paired_test

METHODS = ("variant", "experiment", "phases.0.algorithm", "phases.*.algorithm", "algorithm")  # in this order
NOTE = "The setting of each method with the best {metric}; other scores are those of the same setting."


@dataclass(frozen=True)
class BestRow:
    """The best setting of a method."""

    method: str
    row: ComparisonRow
    settings: int  # number of settings that were tried


def method_setting(rows: Sequence[ComparisonRow]) -> str | None:
    """Return the setting that names the method of a row: a varied one of texts; None if nothing else varies."""
    names = differing_settings(rows)
    texts = [name for name in names if all(isinstance(row.varied.get(name), str) for row in rows)]
    found = next((name for name in METHODS if name in texts), texts[0] if texts else None)
    return found if len(names) > 1 else None


def best_of_methods(comparison: Comparison) -> list[BestRow]:
    """Return the best row of each method by the first metric; empty where no method has several settings."""
    metric = comparison.metrics[0] if comparison.metrics else ""
    rows = [row for row in comparison.rows if metric in row.scores]
    name = method_setting(rows)
    if name is None:
        return []
    groups: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        groups.setdefault(str(row.varied[name]), []).append(row)
    if all(len(group) == 1 for group in groups.values()):
        return []
    best = min if metric.endswith(":deviation") or metric.startswith(COST) else max
    return [
        BestRow(method, best(group, key=lambda row: row.scores[metric].mean), len(group))
        for method, group in groups.items()
    ]


def best_table(comparison: Comparison) -> tuple[str, tuple[str, ...]]:
    """Return the table of the best setting of each method, against that of the baseline, and the notes under it."""
    found = best_of_methods(comparison)
    if not found:
        return "", ()
    name, metric = method_setting([one.row for one in found]) or "", comparison.metrics[0]
    names = [setting for setting in differing_settings(comparison.rows) if setting != name]
    reference = next((one for one in found if comparison.reference.endswith(f" {one.method}")), found[0])
    tests = {one.method: paired_test(one.row, reference.row, metric) for one in found if one is not reference}
    kept = {method: test for method, test in tests.items() if test is not None}
    corrected = dict(zip(kept, holm([test.p for test in kept.values()]), strict=True))
    lines = [
        [
            one.method, f"{one.settings}", short_label(one.row.varied, names, ""),
            *(_score(one.row, given) for given in comparison.metrics),
            _difference(one, reference, metric, kept.get(one.method), corrected.get(one.method)),
        ]
        for one in found
    ]  # fmt: skip
    head = ["method", "settings", "best setting", *comparison.metrics, f"{metric} − {reference.method}"]
    return table(head, lines, 3), (NOTE.format(metric=metric), _test_note(bool(kept)))


def _test_note(tested: bool) -> str:
    rule = (
        f"* p < {SIGNIFICANCE_LEVEL}, over the seeds and examples that both have, corrected for the number of methods."
    )
    choice = "Settings were chosen by the scores that are shown, which favours methods with more of them."
    return f"{rule} {choice}" if tested else choice


def _score(row: ComparisonRow, metric: str) -> str:
    score = row.scores.get(metric)
    if score is None:
        return ""
    return f"{score.mean:.4f}" + ("" if score.deviation is None else f" ± {score.deviation:.4f}")


def _difference(one: BestRow, reference: BestRow, metric: str, test: Difference | None, p: float | None) -> str:
    if one is reference:
        return "baseline"
    value = one.row.scores[metric].mean - reference.row.scores[metric].mean
    shown = f"{'+' if value >= 0 else '−'}{format_number(abs(value))}"
    return shown + (" *" if test is not None and p is not None and p < SIGNIFICANCE_LEVEL else "")
