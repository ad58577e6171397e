"""Measure the driver's own time in a round: CPU time of the main thread outside of client updates.

The run is an inline one. The time of client updates is taken out of the clock; plans and results are pickled and
unpickled in it, as Ray would.

    python benchmarks/driver.py --clients 10000 --rounds 6
    PYTHONPATH=/path/to/another/checkout python benchmarks/driver.py      # the same of another version
"""

from __future__ import annotations

import argparse
import json
import pickle
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from simfl import config, simulation
from simfl.runtime.inline import InlinePool
from simfl.runtime.worker import Worker
from simfl.session.callbacks import NullDisplay
from simfl.session.options import RunOptions


class Clock(NullDisplay):
    """CPU seconds of the main thread of each round, without those of client updates."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.trained = 0.0
        self.last = 0.0

    def round_done(self, row: dict[str, Any]) -> None:
        """End the clock of a round."""
        now = time.thread_time()
        self.rounds.append(now - self.last - self.trained)
        self.last, self.trained = time.thread_time(), 0.0


def experiment(clients: int, rounds: int) -> dict[str, Any]:
    """Return an experiment of many clients with two examples each."""
    phase = {
        "objective": "classification",
        "algorithm": "fedavg",
        "rounds": rounds,
        "clients_per_round": clients,
        "local": {"epochs": 1, "batch_size": 10, "optimizer": "sgd", "learning_rate": 0.05},
    }
    return {
        "name": "driver",
        "seed": 1,
        "data": {"name": "prototypes", "examples": 4 * clients, "classes": 2, "shape": [4]},
        "partition": {"by": "iid", "clients": 2 * clients},
        "model": {"name": "mlp", "hidden_sizes": [4]},
        "phases": [phase],
        "evaluate": {"every": 0, "limit": 1},
        "checkpoint": {"rounds": 10**6, "seconds": 10**6},
    }


def measure(clients: int, rounds: int, workers: int) -> Clock:
    """Run the experiment and return the clock."""
    clock, train = Clock(), Worker.train

    def timed_train(self: Worker, plan: Any, received: Any, next_round: Any = None) -> Any:
        sent = pickle.dumps(plan, 5)
        began = time.thread_time()
        content = pickle.dumps(train(self, pickle.loads(sent), received), 5)
        clock.trained += time.thread_time() - began
        return pickle.loads(content)

    init = InlinePool.__init__

    def with_workers(self: InlinePool, *given: Any) -> None:
        init(self, *given)
        self.num_workers = workers

    Worker.train, InlinePool.__init__ = timed_train, with_workers  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(out=Path(folder) / "run", backend="inline", display=clock)
        simulation.run(config.parse(experiment(clients, rounds)), options)
    return clock


def main() -> None:
    """Print the median of the rounds after the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10_000, help="clients of a round")
    parser.add_argument("--rounds", type=int, default=6, help="rounds, of which the first is not counted")
    parser.add_argument("--workers", type=int, default=2, help="number of workers for which rounds are divided")
    given = parser.parse_args()
    clock = measure(given.clients, given.rounds, given.workers)
    seconds = median(clock.rounds[1:])
    print(json.dumps({"clients": given.clients, "driver_ms": round(1000 * seconds, 1), "simfl": simulation.__file__}))


if __name__ == "__main__":
    main()
