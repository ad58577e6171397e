"""Measure training during evaluation (`evaluate.overlap`): `python -m benchmarks.overlap [WORK …]`.

    alone   a CNN of 1.2 M parameters, 1 of 1,000 clients per round, 8 epochs, 1,000 images scored after every round
    few     5 clients per round, 2 epochs, 1,000 images
    many    50 clients per round, 1 epoch, 3,000 images

Two Ray workers, without overlap and with it in turn, each run in a separate process. A row is the median round after
the first few; both must give the same tables and state. Results go to benchmarks/overlap.json, turn by turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.result import measured_on
from simfl.session.options import RunOptions

LATEST = Path(__file__).parent / "overlap.json"
CLIENTS = {"alone": 1, "few": 5, "many": 50}  # per round
EPOCHS = {"alone": 8, "few": 2, "many": 1}
SCORED = {"alone": 1000, "few": 1000, "many": 3000}  # images, after every round
ROUNDS = {"alone": 20, "few": 20, "many": 8}
SKIPPED = 3  # rounds before the median
WORKERS = 2
PROGRAM = "import sys; from benchmarks.overlap import child; child(sys.argv[1], sys.argv[2] == 'yes')"


def child(work: str, overlap: bool) -> None:
    """Run a work in this process and print its result as the last line."""
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
    later = rounds[SKIPPED:-1]  # the last round waits for its own scores
    found = {
        "seconds": [row["seconds"] for row in later],
        "waited": median(row["timings"]["evaluate"] for row in later),
        "busy": mean(mean(row["busy"]) / row["seconds"] for row in later),
        "result": [summary["state_sha256"], scores],
    }
    print(json.dumps(found))


def measure(work: str, overlap: bool) -> dict[str, Any]:
    """Run a work in a separate process and return its result.

    Raises:
        RuntimeError: The process failed; the message has the end of its output.
    """
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, work, "yes" if overlap else "no"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{work}, overlap {overlap}:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def row_of(work: str, pairs: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians over all rounds of a work, the ratio of each turn and the median ratio."""
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
    """Measure the works in turn, and print and write the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", default=list(CLIENTS), help=", ".join(CLIENTS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--more", action="store_true", help="keep earlier turns")
    given = parser.parse_args(arguments)
    found: dict[str, Any] = json.loads(LATEST.read_text()) if LATEST.exists() else {}
    for work in given.works:
        found[work] = found.get(work, []) if given.more else []
        for _ in range(given.turns):
            found[work].append([measure(work, False), measure(work, True)])
            LATEST.write_text(json.dumps(found) + "\n")
            print(json.dumps(row_of(work, found[work])), flush=True)


def table(found: dict[str, Any], _: str) -> str:
    """Format the table of RESULTS.md."""
    lines = [
        f"`python -m benchmarks.overlap`, {measured_on(LATEST)}, {os.cpu_count()} cores, shared with other processes,"
        f" {WORKERS} Ray workers.",
        "",
        "| clients / round | turns | rounds each | s / round | overlapped, s / round | ratio | ratio of each turn"
        " | wait for scores, s | overlapped, s | workers busy | overlapped | same bits |",
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
