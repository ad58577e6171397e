"""simfl itself as a timed process. `python -m benchmarks.engine WORK RESULT BACKEND WORKERS WAY`."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import write_result
from benchmarks.works import WORKS
from simfl import checkpoint, simulation
from simfl.driver import Silent
from simfl.snapshot import Snapshot


def main(work: str, result: str, backend: str, workers: int, way: Any) -> None:
    """Run a work and write what was measured."""
    experiment = WORKS[work]
    width: Any = "auto" if way == "batch" else experiment.cohort.width
    experiment = replace(experiment, cohort=replace(experiment.cohort, way=way, width=width))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        summary = simulation.run(experiment, out, backend=backend, workers=workers, display=Silent())
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        rounds = [line for line in lines if line["event"] == "round"]
        found = checkpoint.latest(out / "checkpoints")
    assert found is not None, summary
    snapshot = Snapshot.restore(found.tensors, found.facts)
    end = torch.cat([t.flatten() for t in snapshot.model.values()])
    write_result(Path(result), rounds[0]["time"] - rounds[0]["seconds"], [r["seconds"] for r in rounds], end, end)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
