"""Measure rounds of works of published size on one GPU, with each program: `python -m benchmarks.gpu`.

All runs share this process (`--backend inline`) and follow one another. A row is the median round after the first few,
without the last, which also scores the final model;
a round includes sampling, batches, training, ledger, sums and the server step. `start` is the time of the first two
rounds, which includes capture or compilation. MFU is the share of the card's bf16 peak that the products of the models
take, by the formulas of `benchmarks.flops`. `--plain` trains a plain T5 in PyTorch after the works (`plain_t5`), with
as many examples a step as the clients of a batch have together, and rows of VT5 get their ratio to it. Results go to
benchmarks/latest_gpu.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import flops
from benchmarks.gpu_works import WORKS
from benchmarks.systems import ENVIRONMENTS, ROOT
from simfl import simulation
from simfl.experiment import Experiment
from simfl.session.options import RunOptions

LATEST = Path(__file__).parent / "latest_gpu.json"
SKIPPED = 3  # rounds before the median
PLAIN_BATCHES = {"vt5_full": 8, "vt5_full_16": 32}  # examples of a step of all clients together


def measure(experiment: Experiment, rounds: int, backend: str, workers: int | str) -> dict[str, Any]:
    """Run an experiment and return its throughput, timings and peak memory.

    Raises:
        RuntimeError: The run ended before its last round.
    """
    experiment = replace(experiment, phases=(replace(experiment.phases[0], rounds=rounds),))
    gc.collect()  # reference cycles keep the programs of the previous work
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        simulation.run(experiment, RunOptions(Path(folder) / "run", backend=backend, workers=workers))
        total = time.perf_counter() - began
        lines = [json.loads(line) for line in (Path(folder) / "run" / "log.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "timings" in line]
    spent = [line["seconds"] for line in logged]
    if len(spent) < rounds:
        raise RuntimeError(f"{experiment.name}: stopped after {len(spent)} of {rounds} rounds")
    later = slice(min(SKIPPED, max(0, rounds - 2)), max(1, rounds - 1))  # the last round also scores the final model
    seconds = float(np.median(spent[later]))
    phase = experiment.phases[0]
    clients = experiment.partition.clients or 1
    examples_per_client = _num_examples(experiment) / clients
    rate = (phase.clients_per_round or 0) * examples_per_client / seconds
    parts = {name: float(np.median([line["timings"][name] for line in logged[later]])) for name in logged[0]["timings"]}
    return {
        "rounds_per_second": 1 / seconds,
        "clients_per_second": (phase.clients_per_round or 0) / seconds,
        "examples_per_second": rate,
        "mfu": flops.share(rate * phase.local.epochs * flops.of_example(experiment), torch.cuda.get_device_name()),
        "milliseconds": {name: 1000 * value for name, value in parts.items()},
        "start_seconds": sum(spent[: min(2, rounds)]),
        "total_seconds": total,
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def _num_examples(experiment: Experiment) -> int:
    count: int = getattr(experiment.data, "examples")  # noqa: B009  (the data of every work have it)
    return count


def measure_pfl(processes: int, rounds: int, python: Path) -> dict[str, Any]:
    """Run pfl-research on its CIFAR10 protocol with processes that share the GPU (`peers.pfl_gpu`)."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "row.json"
        command = [str(python), "-m", "benchmarks.peers.pfl_gpu", str(result), str(processes), str(rounds)]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
        row: dict[str, Any] = json.loads(result.read_text())
        return row


def measure_plain(batches: Sequence[int], steps: int = 12) -> list[dict[str, Any]]:
    """Run `benchmarks.plain_t5` in a process of its own, so that it finds the card's memory free."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.plain_t5", "--steps", str(steps), "--out", str(result)]
        subprocess.run([*command, "--batches", *map(str, batches)], check=True, cwd=ROOT)
        rows: list[dict[str, Any]] = json.loads(result.read_text())
        return rows


def add_ratios(rows: list[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> None:
    """Add to rows of VT5 their examples per second over those of the plain loop with as many examples a step."""
    rates = {row["batch"]: row["examples_per_second"] for row in plain}
    for row in rows:
        if row["work"] in PLAIN_BATCHES and PLAIN_BATCHES[row["work"]] in rates:
            row["ratio_to_plain"] = row["examples_per_second"] / rates[PLAIN_BATCHES[row["work"]]]
            print(f"{row['work']:16} {row['program']:9} {row['ratio_to_plain']:.2f} of plain PyTorch")


def as_line(row: dict[str, Any]) -> str:
    """Format a row for a terminal."""
    share = "" if row.get("mfu") is None else f"  MFU {100 * row['mfu']:4.1f} %"
    parts = " ".join(f"{name} {value:.2f}" for name, value in row["milliseconds"].items() if value > 0.05)
    return (
        f"{row['work']:16} {row['program']:9} {row['rounds_per_second']:8.2f} rounds/s"
        f" {row['clients_per_second']:9.1f} clients/s {row['examples_per_second']:9.0f} examples/s{share}"
        f"  start {row['start_seconds']:5.1f} s  total {row['total_seconds']:5.1f} s"
        f"  {row['peak_bytes'] / 2**30:6.2f} GiB  ms: {parts}"
    )


def main() -> None:
    """Measure all works, print the rows and write them to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="*", default=[n for n in WORKS if n != "million"], choices=list(WORKS))
    parser.add_argument("--programs", nargs="+", default=["graph", "compiled"], choices=["eager", "graph", "compiled"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--backend", default="inline", choices=["inline", "ray"])
    parser.add_argument("--workers", default="auto", help="workers of the ray backend")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--plain", action="store_true", help="also train a plain T5, for the ratio of VT5's rows to it")
    parser.add_argument(
        "--pfl-processes", nargs="*", type=int, default=[], help="processes of pfl-research, a row for each number"
    )
    parser.add_argument("--pfl-python", type=Path, default=ENVIRONMENTS / "pfl" / "bin" / "python")
    parser.add_argument("--out", type=Path, default=LATEST)
    given = parser.parse_args()
    rows = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(as_line(row), flush=True)
        given.out.write_text(json.dumps(rows, indent=1) + "\n")

    for work in given.works:
        for program in given.programs:
            experiment = WORKS[work]
            execution = replace(experiment.execution, program=program)
            experiment = replace(experiment, execution=execution, deterministic=given.deterministic)
            workers = given.workers if given.workers == "auto" else int(given.workers)
            try:
                found = measure(experiment, given.rounds, given.backend, workers)
            except Exception:
                traceback.print_exc(limit=-4)
                continue
            row = {
                "work": work,
                "program": program,
                "deterministic": given.deterministic,
                "backend": given.backend,
                **found,
            }
            row["gpu"], row["torch"] = torch.cuda.get_device_name(), torch.__version__
            add(row)
    for processes in given.pfl_processes:
        add(measure_pfl(processes, given.rounds, given.pfl_python))
    if given.plain:
        gc.collect()
        torch.cuda.empty_cache()
        plain = measure_plain(sorted({PLAIN_BATCHES[work] for work in given.works if work in PLAIN_BATCHES}))
        add_ratios(rows, plain)
        given.out.write_text(json.dumps([*rows, *plain], indent=1) + "\n")


if __name__ == "__main__":
    main()
