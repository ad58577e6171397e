"""`python -m benchmarks.auto`: what is chosen for works of published size, and what each manner really takes.

For each work of `benchmarks.gpu_works`: every manner that was tried before the first round, with the seconds that a
round was thought to take, and how fast rounds then are in the manner chosen, by `auto` and as if it had been written,
and in the others. Everything runs in this process (`--backend inline`); a row is the median round after the first few.
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
from simfl.session.options import RunOptions
from simfl.experiment import Execution, Experiment

LATEST = Path(__file__).parent / "latest_auto.json"
SKIPPED = 3  # rounds before the median
MANY = 100_000  # rounds of a run that is worth a probe
SECONDS = 1.5  # that the rounds of a row are thought to take
Row = dict[str, Any]


def rounds_of(experiment: Experiment, execution: Execution, rounds: int, shared: Row) -> tuple[float, Row]:
    """Seconds of a round, and the manifest of the run, which is one of many rounds and stopped after some."""
    experiment = replace(experiment, execution=execution, phases=(replace(experiment.phases[0], rounds=MANY),))
    words = iter([""] * rounds)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        simulation.run(experiment, RunOptions(out, backend="inline", shared=shared, until=lambda: next(words, "enough")))
        events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        made: Row = json.loads((out / "manifest.json").read_text())
    seconds = [event["seconds"] for event in events if event["event"] == "round"]
    return median(seconds[min(SKIPPED, rounds - 1) :]), made


def work_of(name: str, most: int) -> Row:
    """Choose, then time what was tried: the chosen manner first, the others as they were thought to be fast."""
    experiment, shared = WORKS[name], Row()
    seconds, made = rounds_of(experiment, Execution(autotune="always"), SKIPPED + 12, shared)
    choice = made["choices"]["0"]
    print(f"\n{name}: {choice['way']}, {choice['width']} wide, {choice['program']}: {choice['why']}", flush=True)
    if "trials" not in choice:
        return {"work": name, "choice": choice, "auto": 1 / seconds}
    spent = f"{choice['seconds']:.1f} s, of which {choice['loading']:.1f} s of loading"
    print(f"  {len(choice['trials'])} manners of {choice['steps']} steps tried in {spent}")
    timed: list[Row] = []
    key = (choice["mode"], choice["clients_per_batch"], choice["program"])
    for trial in sorted(choice["trials"], key=lambda trial: (trial["round"] is None, trial["round"])):
        manner = (
            trial["mode"],
            trial["clients_per_batch"] if trial["mode"] == "vectorized" else choice["clients_per_batch"],
            trial["program"],
        )
        trial["rounds_per_second"] = None
        if trial["round"] and (len(timed) < most or trial["mode"] == "sequential"):
            count = 2 + max(1, min(40, int(SECONDS / trial["round"])))
            mode, clients_per_batch, program = manner
            forced = Execution(mode=mode, clients_per_batch=clients_per_batch, program=program)
            trial["rounds_per_second"] = 1 / rounds_of(experiment, forced, count, shared)[0]
            timed.append(trial)
        print(as_line(trial, chosen=manner == key), flush=True)
    print(f"  auto: {1 / seconds:.2f} rounds/s", flush=True)
    return {"work": name, "choice": choice, "auto": 1 / seconds}


def as_line(trial: Row, chosen: bool) -> str:
    """A trial for a terminal."""

    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    step = None if trial["step"] is None else 1000 * trial["step"]
    pace = None if trial["round"] is None else 1 / trial["round"]
    memory = None if trial["memory"] is None else trial["memory"] / 2**30
    return (
        f"  {'*' if chosen else ' '} {trial['way']:5} {trial['width']:5} {trial['program']:8}"
        f" {shown(step, '9.4f'):>9} ms/step  thought {shown(pace, '8.2f'):>8} rounds/s"
        f"  measured {shown(trial['rounds_per_second'], '8.2f'):>8}  gap {shown(trial['gap'], '.1e'):>7}"
        f"  {shown(memory, '6.2f'):>6} GiB  {trial['why']}"
    )


def main() -> None:
    """Choose, time, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="+", default=["cifar", "femnist", "vilt", "t5_lora_dropout"], choices=WORKS)
    parser.add_argument("--most", type=int, default=4, help="manners timed of each work, besides loop")
    parser.add_argument("--out", type=Path, default=LATEST)
    asked = parser.parse_args()
    rows = []
    for name in asked.works:
        rows.append(work_of(name, asked.most))
        rows[-1] |= {"torch": torch.__version__}
        rows[-1] |= {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
        asked.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
