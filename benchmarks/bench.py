"""`make bench`: simfl, its rivals and a bare PyTorch loop doing the same works side by side; medians and ratios.

Every figure comes from a process of its own, started in turn: A B C A B C. Rounds are compared pairwise, each with the
bare loop's same round in the same turn; the bare loop has one process for each of two cores. `same_work` says that the
final weights are the bare loop's, to a thousandth of the way that these went. Results go to benchmarks/latest.json.
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
TOLERANCE = 1e-3  # of the way that the weights went


@dataclass
class Sample:
    """One process."""

    result: Result
    startup: float  # seconds from the start of the process to the first local step
    total: float
    peak_rss: int


@dataclass
class Timed:
    """All processes of one system on one work."""

    sampled: int = 0  # clients in a round
    samples: list[Sample] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Of a field of the samples."""
        return float(np.median([getattr(sample, name) for sample in self.samples]))

    @property
    def rounds(self) -> np.ndarray:
        """Seconds of each round, one row a process."""
        return np.array([sample.result.seconds for sample in self.samples])


def measure(work: str, system: str, file: Path, folder: Path) -> Sample:
    """Start one process and wait for it."""
    result, noted, log = folder / "result.npz", folder / "first", folder / "log"
    noted.unlink(missing_ok=True)
    with open(log, "wb") as out:
        began = time.time()
        command = SYSTEMS[system].command(work, file, result)
        process = subprocess.Popen(command, env=surroundings(noted), cwd=ROOT, stdout=out, stderr=out)
        peak, done = [0], threading.Event()
        watch = threading.Thread(target=_watch, args=(process.pid, peak, done))
        watch.start()
        code = process.wait()
        total = time.time() - began
    done.set()
    watch.join()
    if code:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        raise SystemExit(f"{system} on {work} ended with code {code}")
    return Sample(read_result(result), float(noted.read_text()) - began, total, peak[0])


def _watch(pid: int, peak: list[int], done: threading.Event) -> None:
    """Keep the largest resident memory of a process and all its descendants, looked at twice a second."""
    while not done.wait(0.5):
        peak[0] = max(peak[0], resident_bytes(pid))


def compare(work: str, systems: list[str], turns: int, console: Console) -> dict[str, Timed]:
    """Time all systems in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "work.npz"
        subprocess.run([sys.executable, "-m", "benchmarks.handover", work, str(file)], cwd=ROOT, check=True)
        with np.load(file) as found:
            sampled = int(np.bincount(found["visits"][:, 0])[0])
        timed = {system: Timed(sampled) for system in systems}
        for turn in range(turns):
            for system in systems:
                with console.status(f"{work}: turn {turn + 1} of {turns}, {system}"):
                    timed[system].samples.append(measure(work, system, file, folder))
    return timed


def rows(work: str, timed: dict[str, Timed]) -> list[dict[str, Any]]:
    """One row a system, as `latest.json` holds them."""
    reference, table = timed[REFERENCE], []
    for system, found in timed.items():
        per_round = float(np.median(found.rounds))
        off = [distance(a.result, b.result) for a, b in zip(found.samples, reference.samples, strict=True)]
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
                "same_work": max(off) <= TOLERANCE,
            }
        )
    return table


COLUMNS = ("system", "s / round", "ratio", "CPU ratio", "clients / s", "first step, s", "all, s", "MB", "same work")


def show(table: list[dict[str, Any]], timed: dict[str, Timed], console: Console) -> None:
    """The rows of a work as a table; the ratio of processor times is the steadier one where the machine is shared."""
    view = Table(title=f"{table[0]['work']}: medians; ratios to the bare loop on two cores")
    for title in COLUMNS:
        view.add_column(title, justify="left" if title == "system" else "right")
    for row in table:
        cpu, usual = (np.median([s.result.cpu for s in timed[name].samples]) for name in (row["system"], REFERENCE))
        view.add_row(
            row["system"],
            f"{row['seconds_per_round']:.4f}",
            f"{row['ratio_to_bare_loop']:.2f}",
            f"{cpu / usual:.2f}" if usual else "",
            f"{row['clients_per_second']:.0f}",
            f"{row['startup_seconds']:.1f}",
            f"{row['total_seconds']:.1f}",
            f"{row['peak_rss_bytes'] / 1e6:.0f}",
            "yes" if row["same_work"] else "NO",
        )
    console.print(view)


def chosen(asked: list[str] | None, console: Console) -> list[str]:
    """The systems to time, the reference first; those that are not installed are left out, loudly."""
    systems = [REFERENCE, *(name for name in asked or SYSTEMS if name != REFERENCE)]
    missing = [name for name in systems if not SYSTEMS[name].installed]
    if missing:
        console.print(f"not installed, left out: {', '.join(missing)}. To install them: {SETUP}")
    return [name for name in systems if name not in missing]


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="+", default=WORKS, help="of W1 W2 W3; w1 w2 w3 are small forms of them")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), help="only these, and the bare loop")
    parser.add_argument("--turns", type=int, default=2, help="processes of each system")
    asked = parser.parse_args()
    console = Console(clients_per_batch=max(110, Console().clients_per_batch))
    systems = chosen(asked.systems, console)
    everything: list[dict[str, Any]] = []
    for work in asked.works:
        timed = compare(work, systems, asked.turns, console)
        table = rows(work, timed)
        show(table, timed, console)
        everything += table
    LATEST.write_text(json.dumps(everything, indent=1) + "\n")
    console.print(f"written to {LATEST.relative_to(ROOT)}")
    if not all(row["same_work"] for row in everything):
        raise SystemExit("some system did other work than the bare loop: its figures do not count")


if __name__ == "__main__":
    main()
