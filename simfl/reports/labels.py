"""Names of runs and rows in tables and charts: what they differ in, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simfl.reports.results import TRIAL, RunResult


def differing(varied: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Return the settings in which these values differ; of trials of a search, the name of the trial alone."""
    names = dict.fromkeys(name for one in varied for name in one)
    found = tuple(name for name in names if len({str(one.get(name)) for one in varied}) > 1)
    return (TRIAL,) if TRIAL in found else found


def short_label(varied: Mapping[str, object], settings: Sequence[str], otherwise: str) -> str:
    """Return the values of these settings: texts alone, numbers after the name of the setting."""
    values = [(name, varied[name]) for name in settings if name in varied]
    return ", ".join(v if isinstance(v, str) else f"{name} {v}" for name, v in values) or otherwise


def run_names(results: Sequence[RunResult]) -> tuple[list[str], tuple[str, ...]]:
    """Return the name of each run, its values of what differs, and the names of these settings.

    Runs of which two have the same values keep their labels.
    """
    settings = differing([result.varied for result in results])
    names = [", ".join(str(one.varied[name]) for name in settings if name in one.varied) for one in results]
    if all(names) and len(set(names)) == len(names):
        return names, settings
    return [result.label for result in results], ()
