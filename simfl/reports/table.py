"""Runs side by side: one line for each setting, over its seeds, each tested against the one that it is held to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from simfl.errors import ConfigError, nearest
from simfl.reports.results import Result
from simfl.reports.significance import difference

SEED = "seed"  # what means are taken over
LEVEL = 0.05  # below it, a difference is marked


@dataclass(frozen=True)
class Score:
    """One metric of a setting, over its seeds."""

    values: tuple[float, ...]  # one a seed
    p: float | None = None  # paired bootstrap against the reference; None: it is the reference, or nothing is common

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def deviation(self) -> float | None:
        """Of the sample (n − 1); None of one seed."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Line:
    """A setting: the runs that differ in nothing but their seed."""

    shown: dict[str, Any]  # what it has of everything that varies, but the seed
    runs: tuple[Result, ...]
    scores: dict[str, Score]  # by metric; none of a setting of which no run has ended

    @property
    def done(self) -> tuple[Result, ...]:
        """The runs that ended well."""
        return tuple(run for run in self.runs if run.scores)

    def mean_of(self, *path: str) -> float | None:
        """The mean over the seeds of a number in their summaries."""
        found = [_at(run.summary, path) for run in self.done]
        return mean(found) if found else None


@dataclass(frozen=True)
class Comparison:
    """The lines, in the order of the sweep."""

    settings: tuple[str, ...]  # columns of what varies
    metrics: tuple[str, ...]
    lines: tuple[Line, ...]
    against: str = ""  # what each line was tested against, in words; empty where nothing was

    def best(self, metric: str) -> set[int]:
        """The lines with the highest mean, of a deviation the lowest; more than one only if they are equal."""
        means = {i: line.scores[metric].mean for i, line in enumerate(self.lines) if metric in line.scores}
        best = min if metric.endswith(":deviation") else max
        return {i for i, value in means.items() if value == best(means.values())} if len(means) > 1 else set()


Test = Callable[[Line, Line, str], float | None]  # p of a line against the reference on a metric


def paired(line: Line, reference: Line, metric: str) -> float | None:
    """The paired bootstrap over the examples that both have."""
    found = difference([run.scored for run in reference.done], [run.scored for run in line.done], metric)
    return None if found is None else found.p


def compare(
    results: Sequence[Result], metrics: Iterable[str] = (), against: str | None = None, test: Test | None = None
) -> Comparison:
    """Lines over seeds. `metrics`: names of scores, by default the headline metric of every split and model.

    `against`: a value of what varies, by default the first of the first column. A line is tested against the one that
    has this value and is else the same. It may also be the name of a run, whose line is then that of all others.
    """
    settings = tuple(dict.fromkeys(name for r in results for name in r.shown if name != SEED))
    names = _metrics(results, tuple(metrics))
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for r in results:
        groups.setdefault(tuple(r.shown.get(name) for name in settings), []).append(r)
    lines = [_line(settings, key, runs, names) for key, runs in groups.items()]
    if test is None or not lines:
        return Comparison(settings, names, tuple(lines))
    column, value = _reference(lines, settings, against)
    tested = tuple(_tested(line, _like(line, lines, column, value), test) for line in lines)
    return Comparison(settings, names, tested, f"{column} {value}" if column else str(value))


def _metrics(results: Sequence[Result], asked: tuple[str, ...]) -> tuple[str, ...]:
    known = list(dict.fromkeys(name for r in results for name in r.scores))
    for name in asked:
        if name not in known:
            raise ConfigError(f"--metric: no run has a score {name!r}; {nearest(name, known)}")
    heads = {r.metric for r in results if r.scores} if not asked else set()
    return asked or tuple(name for name in known if name.rpartition(".")[2] in heads)


def _line(settings: tuple[str, ...], key: tuple[Any, ...], runs: list[Result], metrics: tuple[str, ...]) -> Line:
    scores = {}
    for metric in metrics:
        values = tuple(run.scores[metric] for run in runs if metric in run.scores)
        if values:
            scores[metric] = Score(values)
    return Line(dict(zip(settings, key, strict=True)), tuple(runs), scores)


def _reference(lines: Sequence[Line], settings: tuple[str, ...], against: str | None) -> tuple[str, Any]:
    """The column and the value that lines are tested against; of a run's name, no column and the name."""
    known = {name: {str(line.shown[name]): line.shown[name] for line in lines} for name in settings}
    if against is None:
        return (settings[0], lines[0].shown[settings[0]]) if settings else ("", lines[0].runs[0].label)
    for name, values in known.items():
        if against in values:
            return name, values[against]
    labels = {run.label for line in lines for run in line.runs}
    if against in labels:
        return "", against
    names = {value for values in known.values() for value in values} | labels
    raise ConfigError(f"--against: no line has {against!r}; {nearest(against, names)}")


def _like(line: Line, lines: Sequence[Line], column: str, value: Any) -> Line | None:
    """The line that one is tested against; None if it is the line itself, or there is none."""
    wanted = {**line.shown, column: value}
    for other in lines:
        if (other.shown == wanted) if column else any(run.label == value for run in other.runs):
            return other if other is not line else None
    return None


def _tested(line: Line, reference: Line | None, test: Test) -> Line:
    if reference is None:
        return line
    scores = {metric: Score(score.values, test(line, reference, metric)) for metric, score in line.scores.items()}
    return Line(line.shown, line.runs, scores)


def _at(summary: dict[str, Any], path: tuple[str, ...]) -> float:
    found: Any = summary
    for key in path:
        found = found[key]
    return float(found)
