"""Measure what autotuning chooses for works of published size: `python -m benchmarks.auto`.

For each work of `benchmarks.gpu_works`: every execution mode that was tried before the first round, with its predicted
and its measured rounds/s, and the rounds/s of a run that lets autotuning choose. Everything runs in this process
(`--backend inline`); a row is the median round after the first few.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_works import WORKS
from simfl import simulation
from simfl.experiment import Execution, Experiment
from simfl.session.options import RunOptions

LATEST = Path(__file__).parent / "latest_auto.json"
SKIPPED = 3  # rounds before the median
MANY = 100_000  # rounds of a run for which autotuning pays
SECONDS = 1.5  # predicted duration of the rounds of a row
Row = dict[str, Any]


def rounds_of(experiment: Experiment, execution: Execution, rounds: int, shared: Row) -> tuple[float, Row]:
    """Return seconds per round and the manifest of a long run that is stopped after some rounds."""
    experiment = replace(experiment, execution=execution, phases=(replace(experiment.phases[0], rounds=MANY),))
    reasons = iter([""] * rounds)  # to stop; the last one is not empty
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        simulation.run(
            experiment, RunOptions(out, backend="inline", shared=shared, until=lambda: next(reasons, "measured"))
        )
        events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        made: Row = json.loads((out / "manifest.json").read_text())
    seconds = [event["seconds"] for event in events if event["event"] == "round"]
    return median(seconds[min(SKIPPED, rounds - 1) :]), made


def work_of(name: str, most: int) -> Row:
    """Let a run choose a mode, then time the modes that it tried, in the order of their predicted speed."""
    experiment, shared = WORKS[name], Row()
    seconds, made = rounds_of(experiment, Execution(autotune="always"), SKIPPED + 12, shared)
    choice = made["choices"]["0"]
    mode = f"{choice['mode']}, {choice['clients_per_batch']} clients per batch, {choice['program']}"
    print(f"\n{name}: {mode}: {choice['why']}", flush=True)
    if "trials" not in choice:
        return {"work": name, "choice": choice, "auto": 1 / seconds}
    spent = f"{choice['seconds']:.1f} s, of which {choice['loading']:.1f} s for loading"
    print(f"  {len(choice['trials'])} modes of {choice['steps']} steps tried in {spent}")
    timed: list[Row] = []
    key = (choice["mode"], choice["clients_per_batch"], choice["program"])
    for trial in sorted(choice["trials"], key=lambda trial: (trial["round"] is None, trial["round"])):
        mode_key = (
            trial["mode"],
            trial["clients_per_batch"] if trial["mode"] == "vectorized" else choice["clients_per_batch"],
            trial["program"],
        )
        trial["rounds_per_second"] = None
        if trial["round"] and (len(timed) < most or trial["mode"] == "sequential"):
            count = 2 + max(1, min(40, int(SECONDS / trial["round"])))
            mode, clients_per_batch, program = mode_key
            forced = Execution(mode=mode, clients_per_batch=clients_per_batch, program=program)
            trial["rounds_per_second"] = 1 / rounds_of(experiment, forced, count, shared)[0]
            timed.append(trial)
        print(as_line(trial, chosen=mode_key == key), flush=True)
    print(f"  auto: {1 / seconds:.2f} rounds/s", flush=True)
    return {"work": name, "choice": choice, "auto": 1 / seconds}


def as_line(trial: Row, chosen: bool) -> str:
    """Format a trial for a terminal."""

    def shown(value: float | None, spec: str) -> str:
        return "-" if value is None else format(value, spec)

    step = None if trial["step"] is None else 1000 * trial["step"]
    pace = None if trial["round"] is None else 1 / trial["round"]
    memory = None if trial["memory"] is None else trial["memory"] / 2**30
    return (
        f"  {'*' if chosen else ' '} {trial['mode']:10} {trial['clients_per_batch']:5} {trial['program']:8}"
        f" {shown(step, '9.4f'):>9} ms/step  predicted {shown(pace, '8.2f'):>8} rounds/s"
        f"  measured {shown(trial['rounds_per_second'], '8.2f'):>8}  gap {shown(trial['gap'], '.1e'):>7}"
        f"  {shown(memory, '6.2f'):>6} GiB  {trial['why']}"
    )


def main() -> None:
    """Measure all works, print the rows and write them to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="+", default=["cifar", "femnist", "vilt", "t5_lora_dropout"], choices=WORKS)
    parser.add_argument(
        "--most", type=int, default=4, help="number of modes to time per work, in addition to sequential"
    )
    parser.add_argument("--out", type=Path, default=LATEST)
    given = parser.parse_args()
    rows = []
    for name in given.works:
        rows.append(work_of(name, given.most))
        rows[-1] |= {"torch": torch.__version__}
        rows[-1] |= {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
