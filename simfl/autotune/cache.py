"""Autotuning results on the disk, shared by runs of experiments that differ only in names, seeds and learning rates.

Repeated runs and the later runs of a sweep use the same execution mode, so their results are bit-identical, and measure
once. Of runs that start at the same moment one measures and the others wait for its result.
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
from simfl.json_files import body_of, is_intact, seal

EXPERIMENT_KEYS = ("model", "mentor", "data", "partition", "privacy", "deterministic", "execution")
IGNORED_LOCAL_KEYS = ("learning_rate", "schedule")
FORMAT = 1  # version of the file of a result


def basis(experiment: Experiment, phase: int) -> dict[str, Any]:
    """Return the settings that decide which execution mode is fastest, except the number of rounds."""
    settings = config.to_mapping(experiment)
    own = {key: value for key, value in settings["phases"][phase].items() if key != "rounds"}
    own["local"] = {key: value for key, value in own["local"].items() if key not in IGNORED_LOCAL_KEYS}
    execution = {key: value for key, value in settings["execution"].items() if key != "autotune"}
    whole = {name: settings[name] for name in EXPERIMENT_KEYS} | {"execution": execution}
    return whole | {"phase": own, "scored": settings["evaluate"]["models"]}


@dataclass(frozen=True)
class TuningCache:
    """One cached result."""

    path: Path

    @staticmethod
    def of(experiment: Experiment, phase: int, data: str, workers: int, kind: str, folder: Path) -> TuningCache:
        """Locate the result of a phase.

        Args:
            experiment: The experiment.
            phase: The phase's index.
            data: The hash of the data set.
            workers: The number of workers.
            kind: The processor models of the workers.
            folder: The cache folder.
        """
        key = basis(experiment, phase) | {"rounds": experiment.phases[phase].rounds}
        key |= {"rows": data, "workers": workers, "kind": kind, "simfl": __version__, "torch": torch.__version__}
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return TuningCache(folder / "autotune" / f"{name}.json")

    def read(self) -> dict[str, Any] | None:
        """Read the result; None if there is none, or the file is damaged."""
        with suppress(OSError, ValueError):
            found = json.loads(self.path.read_bytes())
            if isinstance(found, dict) and is_intact(found):
                return body_of(found)
        return None

    @contextmanager
    def lock(self, on_wait: Callable[[], object]) -> Iterator[None]:
        """Hold the result's lock for the block; `on_wait` is called before waiting for another process.

        Without write access to the cache there is no lock.
        """
        with ExitStack() as stack:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(files.in_turn(self.path.with_suffix(".lock"), on_wait))
            yield

    def write(self, found: dict[str, Any]) -> None:
        """Write the result, if the disk permits it; a run does not depend on it."""
        with suppress(OSError, SimflError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(seal(found, FORMAT), indent=1)
            files.write(self.path, lambda file: file.write(text.encode()))
