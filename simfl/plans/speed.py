"""How long a planned run would take, at the pace of one that was run: its local steps a second, evaluation included.

Of a run that was stopped before its first round ended, it is the pace that was measured when its execution_mode was chosen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simfl import config
from simfl.errors import ConfigError
from simfl.experiment import Experiment


@dataclass(frozen=True)
class Pace:
    """What a run managed. `unlike`: settings that make steps cost other than there; empty if there are none."""

    steps_per_second: float
    unlike: tuple[str, ...] = ()

    def hours(self, steps: float) -> float:
        """Of so many local steps."""
        return steps / self.steps_per_second / 3600.0


def pace(folder: Path, experiment: Experiment) -> Pace:
    """The pace of the run in `folder`, compared with what is planned; ConfigError if it has no finished round."""
    try:
        lines = (folder / "log.jsonl").read_text().splitlines()
        ran = config.load(folder / "experiment.yaml")
    except OSError as error:
        raise ConfigError(f"--speed: {folder}: no run is there ({error.strerror})") from None
    events = [json.loads(line) for line in lines]
    rounds = [event for event in events if event["event"] == "round"]
    steps, seconds = (sum(row[key] for row in rounds) for key in ("local_steps", "seconds"))
    found = steps / seconds if steps and seconds else _tried(events)
    if not found:
        raise ConfigError(f"--speed: {folder}: no round with a local step is in its log")
    return Pace(found, tuple(_unlike(ran, experiment)))


def _tried(events: Sequence[dict[str, Any]]) -> float:
    """Local steps a second of all workers in the execution_mode that was chosen last; 0 where none was tried."""
    workers = [event["workers"] for event in events if event["event"] == "started"]
    for event in reversed([event for event in events if event.get("trials")]):
        keys = ("mode",) if event["mode"] == "sequential" else ("mode", "clients_per_batch", "program")
        own = [one["step"] for one in event["trials"] if all(one[key] == event[key] for key in keys) and one["step"]]
        return workers[-1] / own[0] if own and workers else 0.0
    return 0.0


def _unlike(ran: Experiment, planned: Experiment) -> list[str]:
    before, now = (config.to_mapping(one) for one in (ran, planned))
    found = [name for name in ("model", "mentor") if before[name] != now[name]]
    for name in ("objective", "algorithm"):
        if before["phases"][0][name] != now["phases"][0][name]:
            found.append(name)
    if ran.phases[0].local.batch_size != planned.phases[0].local.batch_size:
        found.append("batch_size")
    return found
