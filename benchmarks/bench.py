"""`make bench`: seconds per round of simfl and of a bare PyTorch loop, in one run, ABAB, as medians and ratios.

Every figure comes from a process of its own, started in turn: A B C A B C. Rounds are compared pairwise, each with the
bare loop's same round in the same turn. The reference is the bare loop with one process for each of two cores. `--full`
times W1, W2 and W3 instead of their small forms (see `benchmarks.works`). Results go to benchmarks/latest.json too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.processes import resident_bytes
from benchmarks.result import Result, distance, read_result

LATEST = Path(__file__).parent / "latest.json"
TOLERANCE = 1e-3  # of the way that the weights went
REFERENCE = "bare, 2 processes"
SYSTEMS: dict[str, tuple[str, ...]] = {  # module, then its arguments after WORK and RESULT
    REFERENCE: ("benchmarks.bare", "2"),
    "bare, 1 process": ("benchmarks.bare", "1"),
    "inline loop": ("benchmarks.engine", "inline", "1", "loop"),
    "inline batch": ("benchmarks.engine", "inline", "1", "batch"),
    "ray, 2 workers": ("benchmarks.engine", "ray", "2", "auto"),
}


@dataclass
class Sample:
    """One process."""

    result: Result
    startup: float  # seconds from the start of the process to the first round
    total: float
    peak_rss: int


@dataclass
class Timed:
    """All processes of one system on one work."""

    samples: list[Sample] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Of a field of the samples."""
        return float(np.median([getattr(sample, name) for sample in self.samples]))

    @property
    def rounds(self) -> np.ndarray:
        """Seconds of each round, one row a process."""
        return np.array([sample.result.seconds for sample in self.samples])


def measure(work: str, system: str, folder: Path) -> Sample:
    """Start one process and wait for it."""
    module, *rest = SYSTEMS[system]
    target = folder / "result.npz"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.time()
    process = subprocess.Popen([sys.executable, "-m", module, work, str(target), *rest], env=environment)
    peak, done = [0], threading.Event()
    watch = threading.Thread(target=_watch, args=(process.pid, peak, done))
    watch.start()
    code = process.wait()
    total = time.time() - began
    done.set()
    watch.join()
    if code:
        raise SystemExit(f"{system} on {work} ended with code {code}")
    result = read_result(target)
    return Sample(result, result.first_round - began, total, peak[0])


def _watch(pid: int, peak: list[int], done: threading.Event) -> None:
    """Keep the largest resident memory of a process and all its descendants, looked at twice a second."""
    while not done.wait(0.5):
        peak[0] = max(peak[0], resident_bytes(pid))


def compare(work: str, systems: list[str], turns: int, console: Console) -> dict[str, Timed]:
    """Time all systems in turn."""
    timed = {system: Timed() for system in systems}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            for system in systems:
                with console.status(f"{work}: turn {turn + 1} of {turns}, {system}"):
                    timed[system].samples.append(measure(work, system, Path(folder)))
    return timed


def rows(work: str, timed: dict[str, Timed]) -> list[dict[str, Any]]:
    """One row a system, as `latest.json` holds them."""
    from benchmarks.works import WORKS

    reference, sampled = timed[REFERENCE], WORKS[work].phases[0].clients_per_round or 0
    table = []
    for system, found in timed.items():
        per_round = float(np.median(found.rounds))
        off = [distance(a.result, b.result) for a, b in zip(found.samples, reference.samples, strict=True)]
        table.append(
            {
                "work": work,
                "system": system,
                "seconds_per_round": per_round,
                "clients_per_second": sampled / per_round,
                "ratio_to_bare_loop": float(np.median(found.rounds / reference.rounds)),
                "startup_seconds": found.median("startup"),
                "total_seconds": found.median("total"),
                "peak_rss_bytes": int(found.median("peak_rss")),
                "same_work": max(off) <= TOLERANCE,
            }
        )
    return table


COLUMNS = (
    "system",
    "s / round",
    "ratio",
    "CPU ratio",
    "clients / s",
    "first step, s",
    "all, s",
    "memory, MB",
    "same work",
)


def show(table: list[dict[str, Any]], timed: dict[str, Timed], console: Console) -> None:
    """The rows of a work as a table; the ratio of processor times is the steadier one where the machine is shared."""
    view = Table(title=f"{table[0]['work']}: medians; ratios to the bare loop on two cores")
    for title in COLUMNS:
        view.add_column(title, justify="left" if title == "system" else "right")
    for row in table:
        cpu = np.median([s.result.cpu for s in timed[row["system"]].samples])
        cpu /= np.median([s.result.cpu for s in timed[REFERENCE].samples])
        view.add_row(
            row["system"], f"{row['seconds_per_round']:.4f}", f"{row['ratio_to_bare_loop']:.2f}", f"{cpu:.2f}",
            f"{row['clients_per_second']:.0f}", f"{row['startup_seconds']:.1f}", f"{row['total_seconds']:.1f}",
            f"{row['peak_rss_bytes'] / 1e6:.0f}", "yes" if row["same_work"] else "NO",
        )  # fmt: skip
    console.print(view)


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="W1, W2 and W3 as they are; some ten minutes a turn")
    parser.add_argument("--works", nargs="+", help="only these, of w1 w2 W1 W2 W3")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS), help="only these")
    parser.add_argument("--turns", type=int, default=2, help="processes of each system")
    asked = parser.parse_args()
    console = Console(width=max(110, Console().width))
    systems = [REFERENCE, *(s for s in asked.systems if s != REFERENCE)]
    everything: list[dict[str, Any]] = []
    for work in asked.works or (["W1", "W2", "W3"] if asked.full else ["w1", "w2"]):
        timed = compare(work, systems, asked.turns, console)
        table = rows(work, timed)
        show(table, timed, console)
        everything += table
    LATEST.write_text(json.dumps(everything, indent=1) + "\n")
    console.print(f"written to {LATEST}")
    if not all(row["same_work"] for row in everything):
        raise SystemExit("some system did other work than the bare loop: its figures do not count")


if __name__ == "__main__":
    main()
