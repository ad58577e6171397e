"""Comparison of runs: one row per setting, with means over its seeds and a test against a reference row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from simfl.errors import ConfigError, nearest
from simfl.reports.results import RunResult
from simfl.reports.significance import difference
from simfl.reports.statistical_tests import Difference, holm
from simfl.runs.folder import JsonObject

COST = "cost:"  # before the name of a score of which less is better
SEED = "seed"  # the setting that means are taken over


@dataclass(frozen=True)
class SeedScores:
    """One metric of a setting, over its seeds."""

    values: tuple[float, ...]  # one per seed
    p: float | None = None  # against the reference, corrected; None: of the reference, or fewer than two common seeds

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return mean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the sample (n − 1); None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class ComparisonRow:
    """A setting: the runs that differ only in their seed."""

    varied: Mapping[str, object]  # its values of the settings that vary, except the seed
    runs: tuple[RunResult, ...]
    scores: dict[str, SeedScores]  # by metric; empty if no run has ended well

    @property
    def done(self) -> tuple[RunResult, ...]:
        """The runs that ended well."""
        return tuple(run for run in self.runs if run.scores)

    def mean_of(self, *path: str) -> float | None:
        """Return the mean over the seeds of a number in the summaries, such as `"bytes", "upload"`."""
        found = [_value_at(run.summary, path) for run in self.done]
        return mean(found) if found else None


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, in the order of the sweep."""

    settings: tuple[str, ...]  # names of the settings that vary, except the seed
    metrics: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    reference: str = ""  # what each row was tested against; empty: no row has another one to be tested against
    tests: tuple[Difference, ...] = ()  # all tests of the table, for whose number each p is corrected

    def best(self, metric: str) -> set[int]:
        """Return the indices of the rows with the highest mean (lowest for deviations and costs); several if tied."""
        means = {i: row.scores[metric].mean for i, row in enumerate(self.rows) if metric in row.scores}
        best = min if metric.endswith(":deviation") or metric.startswith(COST) else max
        return {i for i, value in means.items() if value == best(means.values())} if len(means) > 1 else set()

    def json(self) -> JsonObject:
        """Return the comparison as plain values: the settings, seeds, scores and bytes of each row."""
        return {
            "settings": list(self.settings),
            "metrics": list(self.metrics),
            "reference": self.reference,
            "rows": [self._row_json(number, row) for number, row in enumerate(self.rows)],
        }

    def _row_json(self, number: int, row: ComparisonRow) -> JsonObject:
        scores = {
            metric: {
                "mean": one.mean, "deviation": one.deviation, "values": list(one.values), "p": one.p,
                "best": number in self.best(metric),
            }
            for metric, one in row.scores.items()
        }  # fmt: skip
        return {
            "varied": dict(row.varied),
            "runs": [run.label for run in row.runs],
            "status": [run.status for run in row.runs],
            "scores": scores,
            "bytes": {direction: row.mean_of("bytes", direction) for direction in ("download", "upload")},
            "seconds": row.mean_of("seconds", "total"),
        }


Test = Callable[[ComparisonRow, ComparisonRow, str], Difference | None]  # row, reference, metric


def paired_test(row: ComparisonRow, reference: ComparisonRow, metric: str) -> Difference | None:
    """Test a difference over the seeds and examples that both rows have; None with fewer than two common seeds."""
    return difference([run.example_scores for run in reference.done], [run.example_scores for run in row.done], metric)


def compare(
    results: Sequence[RunResult], metrics: Iterable[str] = (), against: str | None = None, test: Test | None = None
) -> Comparison:
    """Group runs that differ only in their seed, and test each group against a reference.

    Args:
        results: The runs.
        metrics: Names of scores; by default the headline metric of every split and model.
        against: The reference: a value of a setting that varies, by default the first value of the first setting. A
            row is tested against the row that has this value and is otherwise equal. Or the name of a run: all other
            rows are tested against its row.
        test: The test; None tests nothing.

    Raises:
        ConfigError: No run has a score, or no row a value, of this name.
    """
    settings = tuple(dict.fromkeys(name for r in results for name in r.varied if name != SEED))
    names = _metrics(results, tuple(metrics))
    groups: dict[tuple[object, ...], list[RunResult]] = {}
    for result in results:
        groups.setdefault(tuple(result.varied.get(name) for name in settings), []).append(result)
    rows = [_row(settings, values, runs, names) for values, runs in groups.items()]
    if test is None or not rows:
        return Comparison(settings, names, tuple(rows))
    setting, value = _reference(rows, settings, against)
    references = {i: _reference_row(row, rows, setting, value) for i, row in enumerate(rows)}
    pairs = [(i, reference) for i, reference in references.items() if reference is not None]
    if not pairs:
        return Comparison(settings, names, tuple(rows))
    tests = {
        (i, metric): found
        for i, reference in pairs
        for metric in rows[i].scores
        if (found := test(rows[i], reference, metric)) is not None
    }
    corrected = dict(zip(tests, holm([found.p for found in tests.values()]), strict=True))
    tested = tuple(
        replace(row, scores={m: replace(score, p=corrected.get((i, m))) for m, score in row.scores.items()})
        for i, row in enumerate(rows)
    )
    return Comparison(settings, names, tested, f"{setting} {value}" if setting else str(value), tuple(tests.values()))


def _metrics(results: Sequence[RunResult], requested: tuple[str, ...]) -> tuple[str, ...]:
    known = list(dict.fromkeys(name for r in results for name in r.scores))
    for name in requested:
        if name not in known:
            raise ConfigError(f"--metric: no run has a score {name!r}; {nearest(name, known)}")
    headlines = {r.metric for r in results if r.scores} if not requested else set()
    return requested or tuple(name for name in known if name.rpartition(".")[2] in headlines)


def _row(
    settings: tuple[str, ...], values: tuple[object, ...], runs: list[RunResult], metrics: tuple[str, ...]
) -> ComparisonRow:
    scores = {}
    for metric in metrics:
        found = tuple(run.scores[metric] for run in runs if metric in run.scores)
        if found:
            scores[metric] = SeedScores(found)
    return ComparisonRow(dict(zip(settings, values, strict=True)), tuple(runs), scores)


def _reference(rows: Sequence[ComparisonRow], settings: tuple[str, ...], against: str | None) -> tuple[str, object]:
    """Return the setting and its value that rows are tested against; for the name of a run, no setting and the name."""
    known = {name: {str(row.varied[name]): row.varied[name] for row in rows} for name in settings}
    if against is None:
        return (settings[0], rows[0].varied[settings[0]]) if settings else ("", rows[0].runs[0].label)
    for name, values in known.items():
        if against in values:
            return name, values[against]
    labels = {run.label for row in rows for run in row.runs}
    if against in labels:
        return "", against
    names = {value for values in known.values() for value in values} | labels
    raise ConfigError(f"--against: no row has {against!r}; {nearest(against, names)}")


def _reference_row(
    row: ComparisonRow, rows: Sequence[ComparisonRow], setting: str, value: object
) -> ComparisonRow | None:
    """Return the row that a row is tested against; None if it is the row itself, or there is none."""
    wanted = {**row.varied, setting: value}
    for other in rows:
        if (other.varied == wanted) if setting else any(run.label == value for run in other.runs):
            return other if other is not row else None
    return None


def _value_at(summary: JsonObject, path: tuple[str, ...]) -> float:
    for key in path[:-1]:
        summary = summary[key]
    return float(summary[path[-1]])
