"""Duration of a planned run at the speed of an earlier run: its local steps per second, evaluation included.

For a run that was stopped in its first round, the speed is the one that autotuning measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simfl import config
from simfl.errors import ConfigError, RunError
from simfl.experiment import Experiment
from simfl.json_files import JsonLines
from simfl.runs.folder import LOG, RUN, JsonObject, require_run
from simfl.runs.manifest import read_experiment


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speed of an earlier run."""

    steps_per_second: float
    differences: tuple[str, ...] = ()  # settings that affect the cost of a step and differ in the planned run

    def hours(self, steps: float) -> float:
        """Return the hours that a number of local steps takes."""
        return steps / self.steps_per_second / 3600.0


def measured_speed(folder: Path, experiment: Experiment) -> MeasuredSpeed:
    """Return the speed of the run in `folder`; ConfigError if it is no run or has no finished round."""
    try:
        require_run(folder)
        read_experiment(folder)  # verifies the file
        events = list(JsonLines(folder / LOG).lines())
    except RunError as error:
        raise ConfigError(f"--speed: {error}") from None
    ran = config.load(folder / RUN)
    rounds = [event for event in events if event["event"] == "round"]
    steps, seconds = (sum(row[key] for row in rounds) for key in ("local_steps", "seconds"))
    speed = steps / seconds if steps and seconds else _autotuned_speed(events)
    if not speed:
        raise ConfigError(f"--speed: {folder}: its log has no round with local steps")
    return MeasuredSpeed(speed, tuple(_differences(ran, experiment)))


def _autotuned_speed(events: Sequence[JsonObject]) -> float:
    """Return the local steps per second of all workers in the last chosen execution mode; 0 without trials."""
    workers = [event["workers"] for event in events if event["event"] == "started"]
    for event in reversed([event for event in events if event.get("trials")]):
        keys = ("mode",) if event["mode"] == "sequential" else ("mode", "clients_per_batch", "program")
        own = [one["step"] for one in event["trials"] if all(one[key] == event[key] for key in keys) and one["step"]]
        return workers[-1] / own[0] if own and workers else 0.0
    return 0.0


def _differences(ran: Experiment, planned: Experiment) -> list[str]:
    before, now = (config.to_mapping(one) for one in (ran, planned))
    found = [name for name in ("model", "mentor") if before[name] != now[name]]
    for name in ("objective", "algorithm"):
        if before["phases"][0][name] != now["phases"][0][name]:
            found.append(name)
    if ran.phases[0].local.batch_size != planned.phases[0].local.batch_size:
        found.append("batch_size")
    return found
