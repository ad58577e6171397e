"""Measure a sweep of many tiny runs against the same experiments in a loop: `python -m benchmarks.sweeps`.

loop    one Python process per worker; each calls `simfl.run` on its share of the experiments, one after another
sweep   `simfl sweep --workers N` on the same experiments, with Ray, its results table included

Both are timed from the start of the command to its end, alternately; the result is the ratio of the medians, with the
interpreter's start, imports and Ray in it. The final weights of all runs must be equal. Results go to
benchmarks/sweeps.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
EXPERIMENT = {
    "seed": 1,
    "data": {"name": "prototypes", "examples": 2000, "classes": 4, "shape": [16]},
    "partition": {"by": "iid", "clients": 20},
    "model": {"name": "mlp", "hidden_sizes": [16]},
    "phases": [
        {
            "objective": "classification",
            "rounds": 5,
            "participation": 0.5,
            "local": {"epochs": 1, "batch_size": 20, "optimizer": "sgd", "learning_rate": 0.05},
        }
    ],
    "evaluate": {"every": 5, "splits": ["test"]},
}
LOOP = """
import json
import sys
import simfl
for seed in map(int, sys.argv[3:]):
    simfl.run({**json.load(open(sys.argv[1])), "name": f"seed-{seed}", "seed": seed}, f"{sys.argv[2]}/seed-{seed}",
              backend="inline")
"""


def run_loop(folder: Path, runs: int, workers: int) -> None:
    """Run all experiments in as many processes as there are workers."""
    shares = [[str(seed) for seed in range(1 + k, runs + 1, workers)] for k in range(workers)]
    command = [sys.executable, "-c", LOOP, str(folder / "experiment.yaml"), str(folder / "loop")]
    processes = [subprocess.Popen([*command, *share], cwd=ROOT) for share in shares]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError("a process of the loop failed")


def run_sweep(folder: Path, runs: int, workers: int) -> None:
    """Run all experiments as a sweep."""
    command = [sys.executable, "-m", "simfl", "sweep", str(folder / "sweep.yaml"), "--out", str(folder / "sweep")]
    subprocess.run([*command, "--workers", str(workers)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def weights(folder: Path, runs: int) -> list[str]:
    """Return the hashes of the final weights."""
    return [
        json.loads((folder / f"seed-{seed}" / "summary.json").read_text())["weights_sha256"]
        for seed in range(1, runs + 1)
    ]


def measure(runs: int, workers: int) -> dict[str, float]:
    """Return the seconds of the loop and of the sweep, one after the other."""
    seconds = {}
    with tempfile.TemporaryDirectory(prefix="simfl-sweeps-") as name:
        folder = Path(name)
        (folder / "experiment.yaml").write_text(json.dumps(EXPERIMENT))
        seeds = list(range(1, runs + 1))
        (folder / "sweep.yaml").write_text(json.dumps({"experiment": "experiment.yaml", "seeds": seeds}))
        for system in (run_loop, run_sweep):
            began = time.perf_counter()
            system(folder, runs, workers)
            seconds[system.__name__.removeprefix("run_")] = time.perf_counter() - began
        if weights(folder / "loop", runs) != weights(folder / "sweep" / "runs", runs):
            raise RuntimeError("the runs of the sweep differ from those of the loop")
    return seconds


def main() -> None:
    """Measure, print each repetition, and write the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = []
    for _ in range(given.repeats):
        found.append(measure(given.runs, given.workers))
        print(f"loop {found[-1]['loop']:.1f} s, sweep {found[-1]['sweep']:.1f} s", flush=True)
    medians = {name: median(one[name] for one in found) for name in ("loop", "sweep")}
    share = medians["loop"] / medians["sweep"]
    print(f"{given.runs} runs, {given.workers} workers: {share:.0%} of the loop's throughput")
    content = {**vars(given), "seconds": found, "medians": medians, "share": share}
    (ROOT / "benchmarks" / "sweeps.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
