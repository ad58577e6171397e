"""What it brings to train the next round while a model is scored: `python -m benchmarks.overlap [WORK …]`.

    alone   a CNN of 1.2 M parameters, 1 of 1,000 clients a round, 8 epochs, 1,000 pictures scored after every round
    few     5 clients a round, 2 epochs, 1,000 pictures
    many    50 clients a round, 1 epoch, 3,000 pictures

Two Ray workers; without overlap and with it, in turn, each run a process of its own. A row is the median round after
the first few; both must leave the same tables and state. Results go to benchmarks/overlap.json, turn by turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from simfl.session.options import RunOptions
from typing import Any

LATEST = Path(__file__).parent / "overlap.json"
CLIENTS = {"alone": 1, "few": 5, "many": 50}  # a round
EPOCHS = {"alone": 8, "few": 2, "many": 1}
SCORED = {"alone": 1000, "few": 1000, "many": 3000}  # pictures, after every round
ROUNDS = {"alone": 20, "few": 20, "many": 8}
SKIPPED = 3  # rounds before the median
WORKERS = 2
PROGRAM = "import sys; from benchmarks.overlap import child; child(sys.argv[1], sys.argv[2] == 'yes')"


def child(work: str, overlap: bool) -> None:
    """Run it in this process and print what came of it as the last line."""
    from benchmarks.works import cnn
    from simfl import simulation
    from simfl.experiment import Evaluate
    from simfl.runs import tables

    given = cnn(1000, CLIENTS[work], ROUNDS[work])
    phase = replace(given.phases[0], local=replace(given.phases[0].local, epochs=EPOCHS[work]))
    evaluate = Evaluate(overlap=overlap, limit=SCORED[work], samples=0)
    experiment = replace(given, phases=(phase,), evaluate=evaluate)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        summary = simulation.run(experiment, RunOptions(out, workers=WORKERS))
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        scores = tables.sha256(tables.read(out / "evaluations.parquet"))
    rounds = [line for line in lines if line["event"] == "round"]
    later = rounds[SKIPPED:-1]  # the last round waits for its own scores, too
    found = {
        "seconds": [row["seconds"] for row in later],
        "waited": median(row["timings"]["evaluate"] for row in later),
        "busy": mean(mean(row["busy"]) / row["seconds"] for row in later),
        "result": [summary["state_sha256"], scores],
    }
    print(json.dumps(found))


def measure(work: str, overlap: bool) -> dict[str, Any]:
    """A run in a process of its own; RuntimeError with what it said if it fails."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, work, "yes" if overlap else "no"]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode:
        raise RuntimeError(f"{work}, overlap {overlap}:\n{said.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(said.stdout.strip().splitlines()[-1])
    return found


def row_of(work: str, pairs: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """A work's figures: medians over all rounds, the ratio of each turn, and the median of these."""
    halves = list(zip(*pairs, strict=True))
    seconds = [median(s for run in half for s in run["seconds"]) for half in halves]
    each = [median(b["seconds"]) / median(a["seconds"]) for a, b in pairs]
    return {
        "work": work,
        "clients": CLIENTS[work],
        "turns": len(pairs),
        "rounds": ROUNDS[work],
        "seconds": seconds,
        "ratio": median(each),
        "each": each,
        "waited": [median(run["waited"] for run in half) for half in halves],
        "busy": [mean(run["busy"] for run in half) for half in halves],
        "same": len({json.dumps(run["result"]) for half in halves for run in half}) == 1,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in turn, show, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", default=list(CLIENTS), help=", ".join(CLIENTS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--more", action="store_true", help="keep the turns that were measured before")
    given = parser.parse_args(arguments)
    found: dict[str, Any] = json.loads(LATEST.read_text()) if LATEST.exists() else {}
    for work in given.works:
        found[work] = found.get(work, []) if given.more else []
        for _ in range(given.turns):
            found[work].append([measure(work, False), measure(work, True)])
            LATEST.write_text(json.dumps(found) + "\n")
            print(json.dumps(row_of(work, found[work])), flush=True)


def table(found: dict[str, Any], _: str) -> str:
    """RESULTS.md's table."""
    day = time.strftime("%Y-%m-%d", time.gmtime(LATEST.stat().st_mtime))
    lines = [
        f"`python -m benchmarks.overlap`, {day}, {os.cpu_count()} cores that others used too, {WORKERS} Ray workers.",
        "",
        "| clients a round | turns | rounds each | s / round | overlapped | ratio | each turn | waits for scores, s"
        " | overlapped | workers at work | overlapped | same bits |",
        "|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|---|",
    ]
    for row in (row_of(work, found[work]) for work in CLIENTS if work in found):
        cells = [str(row["clients"]), str(row["turns"]), str(row["rounds"]), *(f"{s:.3f}" for s in row["seconds"])]
        cells += [f"{row['ratio']:.2f}", ", ".join(f"{ratio:.2f}" for ratio in row["each"])]
        cells += [*(f"{s:.3f}" for s in row["waited"]), *(f"{share:.0%}" for share in row["busy"])]
        lines.append("| " + " | ".join([*cells, "yes" if row["same"] else "NO"]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
