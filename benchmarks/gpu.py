"""`python -m benchmarks.gpu`: rounds of works of published size on one GPU, each way of running a local step.

Everything runs in this process (`--backend inline`), one run after the other; a row is the median round after the
first few, with everything that a round is: sampling, batches, training, ledger, sums, the server's step. `start` is
what comes before the second round: capture or compilation with it. Results go to benchmarks/latest_gpu.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_works import WORKS
from benchmarks.systems import ENVIRONMENTS, ROOT
from simfl import simulation
from simfl.session.options import RunOptions
from simfl.experiment import Experiment

LATEST = Path(__file__).parent / "latest_gpu.json"
SKIPPED = 3  # rounds before the median


def measure(experiment: Experiment, rounds: int, backend: str, workers: int | str) -> dict[str, Any]:
    """Run it and say how fast it went."""
    experiment = replace(experiment, phases=(replace(experiment.phases[0], rounds=rounds),))
    gc.collect()  # of the work before: programs and what they were captured with lie in circles
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        simulation.run(experiment, RunOptions(Path(folder) / "run", backend=backend, workers=workers))
        total = time.perf_counter() - began
        lines = [json.loads(line) for line in (Path(folder) / "run" / "log.jsonl").read_text().splitlines()]
    heard = [line for line in lines if "timings" in line]
    spent = [line["seconds"] for line in heard]
    if len(spent) < rounds:
        raise RuntimeError(f"{experiment.name}: cut off after {len(spent)} of {rounds} rounds")
    later = slice(min(SKIPPED, rounds - 1), None)
    seconds = float(np.median(spent[later]))
    phase = experiment.phases[0]
    clients = experiment.partition.clients or 1
    sizes = _examples(experiment) / clients
    parts = {name: float(np.median([line["timings"][name] for line in heard[later]])) for name in heard[0]["timings"]}
    return {
        "rounds_per_second": 1 / seconds,
        "clients_per_second": (phase.clients_per_round or 0) / seconds,
        "examples_per_second": (phase.clients_per_round or 0) * sizes / seconds,
        "milliseconds": {name: 1000 * value for name, value in parts.items()},
        "start_seconds": sum(spent[: min(2, rounds)]),
        "total_seconds": total,
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def _examples(experiment: Experiment) -> int:
    count: int = getattr(experiment.data, "examples")  # noqa: B009  (every work's data has it)
    return count


def rival(processes: int, rounds: int, python: Path) -> dict[str, Any]:
    """pfl-research on its CIFAR10 protocol, by so many processes that share the card; see `peers.pfl_gpu`."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "row.json"
        command = [str(python), "-m", "benchmarks.peers.pfl_gpu", str(result), str(processes), str(rounds)]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
        row: dict[str, Any] = json.loads(result.read_text())
        return row


def as_line(row: dict[str, Any]) -> str:
    """A row for a terminal."""
    parts = " ".join(f"{name} {value:.2f}" for name, value in row["milliseconds"].items() if value > 0.05)
    return (
        f"{row['work']:16} {row['program']:9} {row['rounds_per_second']:8.2f} rounds/s"
        f" {row['clients_per_second']:9.1f} clients/s {row['examples_per_second']:9.0f} examples/s"
        f"  start {row['start_seconds']:5.1f} s  all {row['total_seconds']:5.1f} s"
        f"  {row['peak_bytes'] / 2**30:6.2f} GiB  ms: {parts}"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="*", default=[n for n in WORKS if n != "million"], choices=list(WORKS))
    parser.add_argument("--programs", nargs="+", default=["graph", "compiled"], choices=["eager", "graph", "compiled"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--backend", default="inline", choices=["inline", "ray"])
    parser.add_argument("--workers", default="auto", help="with ray")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--rivals", nargs="*", type=int, default=[], help="processes of pfl-research, one row each")
    parser.add_argument("--rival-python", type=Path, default=ENVIRONMENTS / "pfl" / "bin" / "python")
    parser.add_argument("--out", type=Path, default=LATEST)
    asked = parser.parse_args()
    rows = []

    def note(row: dict[str, Any]) -> None:
        rows.append(row)
        print(as_line(row), flush=True)
        asked.out.write_text(json.dumps(rows, indent=1) + "\n")

    for work in asked.works:
        for program in asked.programs:
            experiment = WORKS[work]
            cohort = replace(experiment.execution, program=program)
            experiment = replace(experiment, execution=execution, deterministic=asked.deterministic)
            workers = asked.workers if asked.workers == "auto" else int(asked.workers)
            try:
                found = measure(experiment, asked.rounds, asked.backend, workers)
            except Exception:
                traceback.print_exc(limit=-4)
                continue
            row = {
                "work": work,
                "program": program,
                "deterministic": asked.deterministic,
                "backend": asked.backend,
                **found,
            }
            row["gpu"], row["torch"] = torch.cuda.get_device_name(), torch.__version__
            note(row)
    for processes in asked.rivals:
        note(rival(processes, asked.rounds, asked.rival_python))


if __name__ == "__main__":
    main()
