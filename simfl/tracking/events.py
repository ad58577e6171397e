"""What a tracker is told after each round, and the names of its numbers.

Metrics are named `rounds/<column>`, `timings/<name>`, `busy/<worker>`, `memory/<worker>`, `use/<worker>` and
`evaluations/<split>/<model>/…/<metric>` over the axis `round`; headline scores stand a second time as `by_bytes/…` (and
`by_epsilon/…`), over what was spent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simfl import evaluation

MOST_GROUPS = 100  # of a kind, such as clients, with a chart each; tables hold all
AXES = {"by_bytes": "bytes", "by_epsilon": "epsilon"}  # of headline scores: prefix -> metric


@dataclass(frozen=True)
class TrackingEvent:
    """What is new after a round, or before the first: rows as in the tables, seconds as in the log."""

    step: int
    bytes: int  # sent so far in both directions
    row: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    busy: tuple[float, ...] = ()  # seconds of each worker
    memory: tuple[int, ...] = ()  # bytes of each worker's GPU, or process, at their highest so far
    use: tuple[float | None, ...] = ()  # share of the time in which each worker's GPU computed; none: not known
    evaluations: tuple[dict[str, Any], ...] = ()
    samples: tuple[dict[str, Any], ...] = ()


def metrics(news: TrackingEvent, first_split: str) -> dict[str, float]:
    """All numbers of the news by name, with their axes."""
    found = {f"rounds/{name}": value for name, value in news.row.items() if _is_number(value)}
    found |= {f"timings/{name}": value for name, value in news.timings.items()}
    found |= {f"busy/{worker}": value for worker, value in enumerate(news.busy)}
    found |= {f"memory/{worker}": value for worker, value in enumerate(news.memory)}
    found |= {f"use/{worker}": value for worker, value in enumerate(news.use) if value is not None}
    groups = Counter((row["split"], row["model"], row["by"], row["metric"]) for row in news.evaluations)
    for row in news.evaluations:
        if groups[row["split"], row["model"], row["by"], row["metric"]] <= MOST_GROUPS:
            found[name_of(row)] = row["value"]
    axes = {"by_bytes": news.bytes} | ({"by_epsilon": news.row["epsilon"]} if "epsilon" in news.row else {})
    for prefix, value in axes.items():
        found |= {f"{prefix}/{k}": v for k, v in evaluation.headlines(list(news.evaluations), first_split).items()}
        found[AXES[prefix]] = value
    return found | {"round": news.step}


def name_of(row: Mapping[str, Any]) -> str:
    """The metric's name for a row of `evaluations.parquet`."""
    by = [] if row["by"] == "all" else [row["by"], row["group"]]
    path = [row["split"], row["model"], *by, row["metric"]]
    return "/".join(["evaluations", *(str(part) for part in path if part != "")])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
