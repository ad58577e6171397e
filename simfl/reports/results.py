"""What the runs of a sweep came to: of each run what it had of everything that varies, and what it reached."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from simfl.errors import ConfigError, RunError
from simfl.reports.significance import Scored, per_client, scored, spread
from simfl.runs.results import ENDED, ERROR, Run, summary_of
from simfl.tracking.run_folder import RUN, SWEEP

POINTS = SWEEP  # in a sweep's folder: its runs
SPREAD = ("worst", "tenth", "deviation")  # over clients


@dataclass(frozen=True)
class Result:
    """One run of a sweep, or a run by itself, as it stands now."""

    label: str
    shown: dict[str, Any]  # what it has of everything that varies
    folder: Path
    status: str  # completed, stopped, interrupted, failed, waiting
    error: str = ""  # one line, of a run that failed
    summary: dict[str, Any] = field(default_factory=dict)  # empty while there is none

    @cached_property
    def scores(self) -> dict[str, float]:
        """Scores at the end by name, such as `anls` and `test.personal.anls`; none of a run that did not end well.

        `anls:worst`, `anls:tenth` (percentile) and `anls:deviation` are over clients, where their scores are known.
        """
        if self.status not in ENDED:
            return {}
        spreads = {name: spread(values) for name, values in per_client(self.run).items()}
        over = {f"{name}:{kind}": getattr(of, kind) for name, of in spreads.items() for kind in SPREAD}
        return {**self.summary["final"], **over}

    @cached_property
    def run(self) -> Run:
        """The run itself."""
        return Run(self.folder)

    @cached_property
    def scored(self) -> Scored:
        """Each example's scores."""
        return scored(self.run)

    @property
    def metric(self) -> str:
        """The headline metric of the last phase."""
        return str(self.run.experiment.phases[-1].objective.metric)

    def row(self) -> dict[str, Any]:
        """Its row in `results.parquet`."""
        row: dict[str, Any] = {"label": self.label, **self.shown, "status": self.status, "error": self.error or None}
        if summary := self.summary:
            row |= {"rounds": summary["rounds"], "clients": summary["clients"]} | self.shown
            for when, scores in {"final": summary["final"] | self.scores, "initial": summary["initial"]}.items():
                row |= {f"{when}.{name}": value for name, value in scores.items()}
            row |= {f"{way}_bytes": count for way, count in summary["bytes"].items()}
            row |= {f"charged_{way}_bytes": count for way, count in summary["charged"].items()}
            row |= {"seconds": summary["seconds"]["total"], "weights_sha256": summary["weights_sha256"]}
            row["seconds_per_round"] = summary["seconds"]["per_round_median"]
        return row | {"folder": str(self.folder)}


def results_of(paths: Sequence[Path]) -> list[Result]:
    """The runs of sweeps in their order, and single runs, which are told apart by the names of their folders."""
    found: list[Result] = []
    if twice := [path for i, path in enumerate(paths) if path.resolve() in [p.resolve() for p in paths[:i]]]:
        raise ConfigError(f"{twice[0]}: given twice; each run or sweep stands in a table once")
    names = _told_apart(paths)
    for path in paths:
        if (path / POINTS).exists():
            runs = json.loads((path / POINTS).read_bytes())["runs"]
            found += [result(path / "runs" / run["label"], run["shown"]) for run in runs]
        elif (path / RUN).exists():
            found.append(result(path, {"run": names[path]}))
        else:
            raise RunError(f"{path}: neither a run nor a sweep lies here")
    return found


def _told_apart(paths: Sequence[Path]) -> dict[Path, str]:
    """The ends of these paths, as much of each as no other has."""
    found = {}
    for path in paths:
        parts, others = path.resolve().parts, [other.resolve().parts for other in paths if other is not path]
        count = next(n for n in range(1, len(parts) + 1) if all(other[-n:] != parts[-n:] for other in others))
        found[path] = "/".join(parts[-count:])
    return found


def result(folder: Path, shown: dict[str, Any]) -> Result:
    """A run as it lies in its folder."""
    summary, error = summary_of(folder), folder / ERROR
    if error.exists():
        return Result(folder.name, shown, folder, "failed", error.read_text().splitlines()[0], summary or {})
    begun = "interrupted" if (folder / "experiment.yaml").exists() else "waiting"
    return Result(folder.name, shown, folder, summary["status"] if summary else begun, summary=summary or {})


def rows(found: Iterable[Result]) -> list[dict[str, Any]]:
    """Rows for a table; a column that holds numbers and text holds text alone."""
    flat = [one.row() for one in found]
    for name in dict.fromkeys(name for row in flat for name in row):
        values = [row[name] for row in flat if row.get(name) is not None]
        if any(isinstance(v, str) for v in values) and not all(isinstance(v, str) for v in values):
            flat = [{**row, name: str(row[name])} if row.get(name) is not None else row for row in flat]
    return flat
