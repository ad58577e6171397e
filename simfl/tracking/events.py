"""The event that trackers receive after each round, and the names of its metrics.

Metrics are named `rounds/<column>`, `timings/<name>`, `busy/<worker>`, `memory/<worker>`, `use/<worker>` and
`evaluations/<split>/<model>/…/<metric>`, over the axis `round`. The score of clients' models is their mean, over the
number of clients in `evaluations/<split>/<model>/clients`. Headline scores are logged again as `by_bytes/…` and
`by_epsilon/…`, over the bytes and the privacy budget spent so far; `by_deployment_epsilon/…` is that of the deployment
which a run simulates (`privacy.deployment`), and `by_time/…` is over virtual seconds (`clients.profile`). A value that
an algorithm reports is the column `metric:NAME` of the round, so its metric is `rounds/metric:NAME`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from simfl.evaluation.headlines import CLIENT_MEAN, GLOBAL, headlines
from simfl.runs.tables import TableRow

MAX_GROUPS = 100  # of one kind, such as clients, that are logged; tables hold all
AXES = {
    "by_bytes": "bytes",
    "by_epsilon": "epsilon",
    "by_deployment_epsilon": "deployment_epsilon",
    "by_time": "virtual_seconds",
}  # prefix of a headline score -> the metric that is its axis


@dataclass(frozen=True)
class PoolLoad:
    """Tasks and workers of a run at one moment."""

    queued: int  # tasks that wait for a worker
    in_flight: int  # tasks that were sent to a worker and have not returned
    workers: int  # including those that start
    ready: int  # workers that take tasks


@dataclass(frozen=True)
class TrackingEvent:
    """The results of one round, or of the evaluation before the first: rows of the tables, seconds of the log."""

    step: int  # finished rounds of the run
    bytes: int  # sent so far in both directions
    row: TableRow = field(default_factory=dict)  # of `rounds.parquet`
    timings: Mapping[str, float] = field(default_factory=dict)  # activity -> seconds
    busy: tuple[float, ...] = ()  # seconds of each worker
    memory: tuple[int, ...] = ()  # peak so far, in bytes, of each worker's GPU or process
    use: tuple[float | None, ...] = ()  # fraction of the time that each worker's GPU computed; None: unknown
    evaluations: tuple[TableRow, ...] = ()
    samples: tuple[TableRow, ...] = ()
    ended: float = 0.0  # when the round ended, in seconds since 1970


def metrics(event: TrackingEvent, first_split: str) -> dict[str, float]:
    """Return all numbers of an event by name, with their axes.

    Args:
        event: The event.
        first_split: The first evaluated split; its headline scores are named without the split.
    """
    found: dict[str, float] = {f"rounds/{name}": value for name, value in event.row.items() if _is_number(value)}
    found |= {f"timings/{name}": value for name, value in event.timings.items()}
    found |= {f"busy/{worker}": value for worker, value in enumerate(event.busy)}
    found |= {f"memory/{worker}": value for worker, value in enumerate(event.memory)}
    found |= {f"use/{worker}": value for worker, value in enumerate(event.use) if value is not None}
    group_counts = Counter((row["split"], row["model"], row["by"], row["metric"]) for row in event.evaluations)
    for row in event.evaluations:
        if group_counts[row["split"], row["model"], row["by"], row["metric"]] <= MAX_GROUPS:
            found[evaluation_name(row)] = row["value"]
        if row["by"] == CLIENT_MEAN and row["model"] != GLOBAL:
            found[evaluation_name({**row, "metric": "clients"})] = row["count"]
    axes = {"by_bytes": event.bytes} | {
        axis: event.row[name] for axis, name in AXES.items() if name != "bytes" and name in event.row
    }
    overall = headlines(list(event.evaluations), first_split)
    for prefix, value in axes.items():
        found |= {f"{prefix}/{name}": score.value for name, score in overall.items()}
        found[AXES[prefix]] = value
    return found | {"round": event.step}


def evaluation_name(row: TableRow) -> str:
    """Return the metric's name for a row of `evaluations.parquet`."""
    is_overall = row["by"] == "all" or (row["by"] == CLIENT_MEAN and row["model"] != GLOBAL)
    by = [] if is_overall else [row["by"], row["group"]]
    path = [row["split"], row["model"], *by, row["metric"]]
    return "/".join(["evaluations", *(str(part) for part in path if part != "")])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
