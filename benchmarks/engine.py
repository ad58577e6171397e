"""Run a work with simfl in a timed process: `python -m benchmarks.engine WORK RESULT BACKEND WORKERS [MODE]`."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.result import Stopwatch, write_result
from simfl.runtime.ray import cluster
from simfl.session.options import RunOptions


class Timer:
    """A display that records the time before the first round and after each."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.watch = rounds, Stopwatch()

    def evaluated(self, row: dict[str, Any]) -> None:
        """Record the start of the first round, before which the model is evaluated once."""
        if row["step"] == 0:
            self.watch.mark()

    def round_done(self, row: dict[str, Any]) -> None:
        """Record the end of a round."""
        self.watch.mark(last=row["step"] == self.rounds)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def main(work: str, result: str, backend: str, workers: int, mode: Any = "auto") -> None:
    """Run a work and write its measurements; as in `simfl run`, Ray starts before anything else is imported."""
    with cluster.start_early(backend, None), tempfile.TemporaryDirectory() as folder:
        import torch

        from benchmarks.works import WORKS
        from simfl import simulation
        from simfl.runs import checkpoint
        from simfl.runs.snapshot import Snapshot

        experiment = WORKS[work]
        experiment = replace(experiment, execution=replace(experiment.execution, mode=mode))
        timer = Timer(experiment.phases[0].rounds)
        out = Path(folder) / "run"
        summary = simulation.run(experiment, RunOptions(out, backend=backend, workers=workers, display=timer))
        found = checkpoint.latest(out / "checkpoints")
        assert found is not None, summary
        snapshot = Snapshot.restore(found)
        end = torch.cat([t.flatten() for t in snapshot.model.values()])
        write_result(Path(result), timer.watch, end, end)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
