"""Compare simfl, other simulators and a bare PyTorch loop on the same works: `make bench`.

Every figure comes from a separate process; the systems run in turn (A B C A B C). Rounds are compared pairwise with the
same round of the bare loop in the same turn; the bare loop has one process for each of two cores. `same_work`: the
final weights differ from those of the bare loop by at most a thousandth of the distance that these moved. Results go
to benchmarks/latest.json.
"""

from __future__ import annotations

import argparse
import json
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
from benchmarks.systems import REFERENCE, ROOT, SETUP, SYSTEMS, surroundings

LATEST = Path(__file__).parent / "latest.json"
WORKS = ("W1", "W2", "W3")
TOLERANCE = 1e-3  # of the distance that the weights moved


@dataclass
class Sample:
    """Measurements of one process."""

    result: Result
    startup: float  # seconds from the start of the process to the first local step
    total: float
    peak_rss: int


@dataclass
class Timed:
    """Measurements of one system on one work."""

    sampled: int = 0  # clients in a round
    samples: list[Sample] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Return the median of a field of the samples."""
        return float(np.median([getattr(sample, name) for sample in self.samples]))

    @property
    def rounds(self) -> np.ndarray:
        """Return the seconds of each round, one row per process."""
        return np.array([sample.result.seconds for sample in self.samples])


def measure(work: str, system: str, file: Path, folder: Path) -> Sample:
    """Run a system on a work in one process and return what was measured."""
    result, noted, log = folder / "result.npz", folder / "first", folder / "log"
    noted.unlink(missing_ok=True)
    with open(log, "wb") as out:
        began = time.time()
        command = SYSTEMS[system].command(work, file, result)
        process = subprocess.Popen(command, env=surroundings(noted), cwd=ROOT, stdout=out, stderr=out)
        peak, done = [0], threading.Event()
        sampler = threading.Thread(target=_sample_memory, args=(process.pid, peak, done))
        sampler.start()
        code = process.wait()
        total = time.time() - began
    done.set()
    sampler.join()
    if code:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        raise SystemExit(f"{system} on {work} exited with code {code}")
    return Sample(read_result(result), float(noted.read_text()) - began, total, peak[0])


def _sample_memory(pid: int, peak: list[int], done: threading.Event) -> None:
    """Record the peak resident memory of a process and its descendants, sampled twice per second."""
    while not done.wait(0.5):
        peak[0] = max(peak[0], resident_bytes(pid))


def compare(work: str, systems: list[str], turns: int, console: Console) -> dict[str, Timed]:
    """Time all systems on a work in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "work.npz"
        subprocess.run([sys.executable, "-m", "benchmarks.handover", work, str(file)], cwd=ROOT, check=True)
        with np.load(file) as found:
            sampled = int(np.bincount(found["updates"][:, 0])[0])
        timed = {system: Timed(sampled) for system in systems}
        for turn in range(turns):
            for system in systems:
                with console.status(f"{work}: turn {turn + 1} of {turns}, {system}"):
                    timed[system].samples.append(measure(work, system, file, folder))
    return timed


def rows(work: str, timed: dict[str, Timed]) -> list[dict[str, Any]]:
    """Return one row per system, as in `latest.json`."""
    reference, table = timed[REFERENCE], []
    for system, found in timed.items():
        per_round = float(np.median(found.rounds))
        errors = [distance(a.result, b.result) for a, b in zip(found.samples, reference.samples, strict=True)]
        table.append(
            {
                "work": work,
                "system": system,
                "seconds_per_round": per_round,
                "clients_per_second": found.sampled / per_round,
                "ratio_to_bare_loop": float(np.median(found.rounds / reference.rounds)),
                "startup_seconds": found.median("startup"),
                "total_seconds": found.median("total"),
                "peak_rss_bytes": int(found.median("peak_rss")),
                "same_work": max(errors) <= TOLERANCE,
            }
        )
    return table


COLUMNS = ("system", "s / round", "ratio", "CPU ratio", "clients / s", "first step, s", "total, s", "MB", "same work")


def show(table: list[dict[str, Any]], timed: dict[str, Timed], console: Console) -> None:
    """Print the rows of a work; on a shared machine, the ratio of processor times varies less than that of rounds."""
    shown = Table(title=f"{table[0]['work']}: medians; ratios to the bare loop on two cores")
    for title in COLUMNS:
        shown.add_column(title, justify="left" if title == "system" else "right")
    for row in table:
        cpu, reference_cpu = (
            np.median([s.result.cpu for s in timed[name].samples]) for name in (row["system"], REFERENCE)
        )
        shown.add_row(
            row["system"],
            f"{row['seconds_per_round']:.4f}",
            f"{row['ratio_to_bare_loop']:.2f}",
            f"{cpu / reference_cpu:.2f}" if reference_cpu else "",
            f"{row['clients_per_second']:.0f}",
            f"{row['startup_seconds']:.1f}",
            f"{row['total_seconds']:.1f}",
            f"{row['peak_rss_bytes'] / 1e6:.0f}",
            "yes" if row["same_work"] else "NO",
        )
    console.print(shown)


def installed_systems(requested: list[str] | None, console: Console) -> list[str]:
    """Return the systems to time, the reference first; report those that are not installed."""
    systems = [REFERENCE, *(name for name in requested or SYSTEMS if name != REFERENCE)]
    missing = [name for name in systems if not SYSTEMS[name].installed]
    if missing:
        console.print(f"not installed: {', '.join(missing)}. To install them: {SETUP}")
    return [name for name in systems if name not in missing]


def main() -> None:
    """Measure all works, print the rows and write them to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="+", default=WORKS, help="from W1 W2 W3; w1 w2 w3 are small versions")
    parser.add_argument(
        "--systems", nargs="+", choices=list(SYSTEMS), help="systems to measure with the bare loop; by default all"
    )
    parser.add_argument("--turns", type=int, default=2, help="processes per system")
    given = parser.parse_args()
    console = Console(width=max(110, Console().width))
    systems = installed_systems(given.systems, console)
    everything: list[dict[str, Any]] = []
    for work in given.works:
        timed = compare(work, systems, given.turns, console)
        table = rows(work, timed)
        show(table, timed, console)
        everything += table
    LATEST.write_text(json.dumps(everything, indent=1) + "\n")
    console.print(f"written to {LATEST.relative_to(ROOT)}")
    if not all(row["same_work"] for row in everything):
        raise SystemExit("a system did not do the same work as the bare loop: its figures are not comparable")


if __name__ == "__main__":
    main()
