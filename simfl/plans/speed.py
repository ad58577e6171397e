"""How long a planned run would take, at the pace of one that was run: its local steps a second, evaluation included."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

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
    rounds = [event for event in map(json.loads, lines) if event["event"] == "round"]
    steps, seconds = (sum(row[key] for row in rounds) for key in ("local_steps", "seconds"))
    if not steps or not seconds:
        raise ConfigError(f"--speed: {folder}: no round with a local step is in its log")
    return Pace(steps / seconds, tuple(_unlike(ran, experiment)))


def _unlike(ran: Experiment, planned: Experiment) -> list[str]:
    before, now = (config.to_mapping(one) for one in (ran, planned))
    found = [name for name in ("model", "mentor") if before[name] != now[name]]
    for name in ("objective", "algorithm"):
        if before["phases"][0][name] != now["phases"][0][name]:
            found.append(name)
    if ran.phases[0].local.batch_size != planned.phases[0].local.batch_size:
        found.append("batch_size")
    return found
