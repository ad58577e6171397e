"""What was found when execution_modes of training were tried, for runs like it: names, seeds and learning rates are free.

It lies in the cache, so repeated runs and the later ones of a sweep are trained in one execution_mode, to the same bits, and
try once: of runs that begin at the same moment one does, and the others wait for what it finds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from simfl import __version__, config, files
from simfl.errors import SimflError
from simfl.experiment import Experiment

WHOLE = ("model", "mentor", "data", "partition", "privacy", "deterministic", "execution")  # of an experiment
FREE = ("learning_rate", "schedule")  # of a phase's `local`


def basis(experiment: Experiment, phase: int) -> dict[str, Any]:
    """What of an experiment decides how a phase is best trained, but for how many rounds that has to pay in."""
    given = config.to_mapping(experiment)
    own = {key: value for key, value in given["phases"][phase].items() if key != "rounds"}
    own["local"] = {key: value for key, value in own["local"].items() if key not in FREE}
    execution = {key: value for key, value in given["execution"].items() if key != "autotune"}
    whole = {name: given[name] for name in WHOLE} | {"execution": execution}
    return whole | {"phase": own, "scored": given["evaluate"]["models"]}


@dataclass(frozen=True)
class TuningCache:
    """A file of the cache."""

    path: Path

    @staticmethod
    def of(experiment: Experiment, phase: int, data: str, workers: int, kind: str, folder: Path) -> TuningCache:
        """`data`: the hash of the data set; `kind` is that of the workers' processors, `folder` the cache."""
        key = basis(experiment, phase) | {"rounds": experiment.phases[phase].rounds}
        key |= {"rows": data, "workers": workers, "kind": kind, "simfl": __version__, "torch": torch.__version__}
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return TuningCache(folder / "manners" / f"{name}.json")

    def read(self) -> dict[str, Any] | None:
        """What was found; None if nobody has tried, or the file is no longer whole."""
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(self.path.read_bytes())
            return found
        return None

    @contextmanager
    def turn(self, on_wait: Callable[[], object]) -> Iterator[None]:
        """Inside the block no other process tries for such a run; `on_wait` is called if one does, before the wait.

        Where the cache cannot be written to, nobody waits.
        """
        with ExitStack() as stack:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(files.in_turn(self.path.with_suffix(".lock"), on_wait))
            yield

    def write(self, found: dict[str, Any]) -> None:
        """Keep it, if the disk lets: a run does not depend on it."""
        with suppress(OSError, SimflError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write(self.path, lambda file: file.write(json.dumps(found, indent=1).encode()))
