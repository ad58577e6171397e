"""Seconds per round of clients whose adapters have different ranks, and of clients of equal rank.

    python -m benchmarks.client_ranks [--clients 64] [--rounds 10] [--repeats 3] [--out FILE]

Two variants of `experiments/lora/base.yaml` with all clients in every round, in turns: equal rank at about the same
total rank; and different ranks, padded to the largest. The median of the rounds after the second counts, without
evaluation.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

import simfl
from simfl import config

EXPERIMENT = Path(__file__).parents[1] / "experiments/lora/base.yaml"
SHARES = {4: 0.5, 16: 0.3, 64: 0.2}
EQUAL = 20  # about the mean of the ranks
WARM_UP = 2  # rounds that load and capture


def main() -> None:
    """Measure, and print or write the seconds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8, help="local steps of a client")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    variants: dict[str, dict[str, object]] = {
        "equal": {"model.adapters.rank": EQUAL},
        "mixed": {"model.adapters.rank": max(SHARES), "algorithm": {"name": "fedit", "rank": SHARES}},
    }
    seconds: dict[str, list[list[float]]] = {name: [] for name in variants}
    for _ in range(args.repeats):
        for name, settings in variants.items():
            seconds[name].append(rounds_of({**settings, "local.steps": args.steps}, args.clients, args.rounds))
    medians = {name: median(one for run in runs for one in run) for name, runs in seconds.items()}
    found = {"medians": medians, "ratio": {n: s / medians["equal"] for n, s in medians.items()}, "rounds": seconds}
    text = json.dumps(found, indent=1)
    print(json.dumps({"medians": medians, "ratio": found["ratio"]}, indent=1))
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")


def rounds_of(settings: dict[str, object], clients: int, rounds: int) -> list[float]:
    """Return the seconds of each round after the first ones."""
    common = {
        "partition": {"by": "iid", "clients": clients},
        "evaluate.every": 0,
        "rounds": rounds,
        "execution.mode": "vectorized",
        "execution.clients_per_batch": 1 << (clients - 1).bit_length(),
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        given = [f"{path}={value!r}" for path, value in {**common, **settings}.items()]
        simfl.run(config.load(EXPERIMENT, given), out=out, backend="inline")
        lines = map(json.loads, (out / "log.jsonl").read_text(encoding="utf-8").splitlines())
        times = [line["time"] for line in lines if line["event"] == "round"]
    return np.diff(times)[WARM_UP - 1 : -1].tolist()  # the last round writes the end of the run


if __name__ == "__main__":
    main()
