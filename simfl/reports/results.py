"""Results of the runs of sweeps: for each run, its values of the settings that vary, its status and its scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from simfl.errors import ConfigError, RunError
from simfl.reports.significance import ExampleScores, client_means, client_spread, example_scores
from simfl.runs.folder import ERROR, MANIFEST, RUN, SWEEP, JsonObject, check_run_format, missing_run, read_json
from simfl.runs.manifest import RunManifest
from simfl.runs.stored import StoredRun
from simfl.runs.summary import ENDED, read_summary
from simfl.runs.tables import TableRow

if TYPE_CHECKING:
    from simfl.experiment import Experiment
    from simfl.runs.results import Run

TRIAL = "trial"  # the column that names the trials of a search; no setting
SPREAD = ("worst", "tenth", "deviation")  # statistics over clients


@dataclass(frozen=True)
class RunResult:
    """The current result of one run of a sweep, or of a single run."""

    label: str
    varied: Mapping[str, object]  # its values of the settings that vary
    folder: Path
    status: str  # completed, stopped, interrupted, failed, waiting
    error: str = ""  # one line; empty unless the run failed
    summary: JsonObject = field(default_factory=dict)  # empty without `summary.json`
    known_experiment: Experiment | None = None  # None: read from the folder when it is needed

    @cached_property
    def scores(self) -> dict[str, float]:
        """Final scores by name, such as `anls` and `test.personal.anls`; empty unless the run ended well.

        `anls:worst`, `anls:tenth` (percentile) and `anls:deviation` are statistics over clients, where their scores
        are known.
        """
        if self.status not in ENDED:
            return {}
        spreads = {name: client_spread(values) for name, values in client_means(self.run).items()}
        over_clients = {f"{name}:{kind}": getattr(spread, kind) for name, spread in spreads.items() for kind in SPREAD}
        return {**self.summary["final"], **over_clients}

    @cached_property
    def run(self) -> StoredRun:
        """The run as it was stored, without its experiment and models."""
        return StoredRun(self.folder)

    @cached_property
    def whole_run(self) -> Run:
        """The run with its experiment, data and models, for which torch is imported."""
        from simfl.runs.results import Run

        run = Run(self.folder)
        if self.known_experiment is not None:
            run.experiment = self.known_experiment
        return run

    @cached_property
    def example_scores(self) -> ExampleScores:
        """The score of each example."""
        return example_scores(self.run)

    @property
    def metric(self) -> str:
        """The headline metric of the last phase."""
        stored = self.summary.get("metric")  # runs of an older simfl have none
        return str(stored or self.whole_run.experiment.phases[-1].objective.metric)

    def row(self) -> TableRow:
        """Return the run's row of `results.parquet`."""
        row: TableRow = {"label": self.label, **self.varied, "status": self.status, "error": self.error or None}
        if summary := self.summary:
            row |= {"rounds": summary["rounds"], "clients": summary["clients"]} | dict(self.varied)
            for when, scores in {"final": summary["final"] | self.scores, "initial": summary["initial"]}.items():
                row |= {f"{when}.{name}": value for name, value in scores.items()}
            row |= {f"{direction}_bytes": count for direction, count in summary["bytes"].items()}
            row |= {f"charged_{direction}_bytes": count for direction, count in summary["charged"].items()}
            row |= {"seconds": summary["seconds"]["total"], "weights_sha256": summary["weights_sha256"]}
            row["seconds_per_round"] = summary["seconds"]["per_round_median"]
            row |= {"state_sha256": summary["state_sha256"], **self.hashes}
        return row | {"folder": str(self.folder)}

    @property
    def hashes(self) -> dict[str, str]:
        """The hashes of what the run was made from."""
        made = RunManifest.read(self.folder)
        names = ("data_sha256", "partition_sha256", "experiment_sha256")
        return {name: getattr(made, name) for name in names}


def results_of(paths: Sequence[Path], known: Mapping[Path, RunResult] | None = None) -> list[RunResult]:
    """Return the results of sweeps, in their order, and of single runs, which are named by their folders.

    Args:
        paths: Folders of runs and sweeps.
        known: Results that were read before, by the folder of the run.

    Raises:
        ConfigError: A path is given twice.
        RunError: A folder holds neither a run nor a sweep, or files of another format.
    """
    found: list[RunResult] = []
    if twice := [path for i, path in enumerate(paths) if path.resolve() in [p.resolve() for p in paths[:i]]]:
        raise ConfigError(f"{twice[0]}: given twice; give each run or sweep once")
    names, sweeps = _short_names(paths), [path for path in paths if (path / SWEEP).exists()]
    for path in paths:
        if (path / SWEEP).exists():
            runs = read_json(path / SWEEP)["runs"]
            folders = [(path / "runs" / run["label"], run["varied"]) for run in runs]
            own = [(known or {}).get(folder) or result_of(folder, varied) for folder, varied in folders]
            found += [_of_sweep(one, names[path]) for one in own] if len(sweeps) > 1 else own
        elif (path / RUN).exists():
            found.append(result_of(path, {"run": names[path]}))
        elif (path / MANIFEST).exists():
            raise missing_run(path)
        else:
            raise RunError(f"{path}: the folder holds neither a run nor a sweep")
    return found


def result_of(folder: Path, varied: Mapping[str, object], experiment: Experiment | None = None) -> RunResult:
    """Return the result of the run in a folder, which need not exist yet; `experiment` is the one of the folder."""
    if (folder / RUN).exists():
        check_run_format(folder)
    summary, error = read_summary(folder), folder / ERROR
    if error.exists():
        return RunResult(folder.name, varied, folder, "failed", first_line(error), summary or {})
    status = summary["status"] if summary else "interrupted" if (folder / RUN).exists() else "waiting"
    return RunResult(folder.name, varied, folder, status, summary=summary or {}, known_experiment=experiment)


def _of_sweep(result: RunResult, name: str) -> RunResult:
    """Return a result of one of several sweeps, whose runs may have the same names and settings."""
    return replace(result, label=f"{name}/{result.label}", varied={"sweep": name, **result.varied})


def first_line(path: Path) -> str:
    """Return the first line of a text file of any content."""
    return path.read_text(errors="replace").partition("\n")[0]


def result_rows(results: Iterable[RunResult]) -> list[TableRow]:
    """Return table rows; a column of numbers and texts becomes one of texts."""
    rows = [result.row() for result in results]
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if row.get(name) is not None]
        if any(isinstance(v, str) for v in values) and not all(isinstance(v, str) for v in values):
            rows = [{**row, name: str(row[name])} if row.get(name) is not None else row for row in rows]
    return rows


def _short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the shortest unique end of each path."""
    found = {}
    for path in paths:
        parts, others = path.resolve().parts, [other.resolve().parts for other in paths if other is not path]
        count = next(n for n in range(1, len(parts) + 1) if all(other[-n:] != parts[-n:] for other in others))
        found[path] = "/".join(parts[-count:])
    return found
