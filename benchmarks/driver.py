"""Measure the driver's own time in a round: CPU time of the main thread outside of client updates, and its split.

The run is an inline one. The time of client updates is taken out of the clock; plans and results are pickled and
unpickled in it, as Ray would. Rows are written at the end of the run, which is not part of a round.

    python benchmarks/driver.py --clients 10000 --rounds 6
    PYTHONPATH=/path/to/another/checkout python benchmarks/driver.py      # the same of another version
"""

from __future__ import annotations

import argparse
import json
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from simfl import config, simulation
from simfl.aggregation.round import RoundAggregator
from simfl.rounds import RoundPlan
from simfl.runs.record import Record
from simfl.runtime.inline import InlinePool
from simfl.runtime.worker import Worker
from simfl.session.callbacks import Callbacks, NullDisplay
from simfl.session.options import RunOptions

PARTS = {  # part of a round -> the functions that it consists of
    "plan": ((simulation, "plan_round"), (RoundPlan, "cohorts")),
    "sum": ((RoundAggregator, "take"),),
    "apply": ((simulation, "apply_round"),),
    "record": ((Record, "add"), (Record, "log_clients"), (Callbacks, "round_done")),
}


class Clock(NullDisplay):
    """CPU seconds of the main thread of each round, without those of client updates."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.split: dict[str, list[float]] = {name: [] for name in (*PARTS, "pickle")}
        self.trained = 0.0
        self.last = 0.0

    def round_done(self, row: dict[str, Any]) -> None:
        """End the clock of a round."""
        now = time.thread_time()
        self.rounds.append(now - self.last - self.trained)
        self.last, self.trained = time.thread_time(), 0.0

    def time_parts(self) -> None:
        """Count the seconds of the functions of each part of a round."""
        for part, functions in PARTS.items():
            for owner, name in functions:
                if hasattr(owner, name):  # other versions may lack it
                    setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            began = time.thread_time()
            found = function(*given, **named)
            self.split[part].append(time.thread_time() - began)
            return found

        return call


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
    clock.time_parts()

    def timed_train(self: Worker, plan: Any, received: Any, next_round: Any = None) -> Any:
        start = time.thread_time()
        sent = pickle.dumps(plan, 5)
        began = time.thread_time()
        content = pickle.dumps(train(self, pickle.loads(sent), received), 5)
        ended = time.thread_time()
        clock.trained += ended - began
        result = pickle.loads(content)
        clock.split["pickle"].append(began - start + time.thread_time() - ended)
        return result

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
    facts = {"clients": given.clients, "driver_ms": round(1000 * seconds, 1)}
    split = {f"{name}_ms": round(1000 * sum(found) / given.rounds, 1) for name, found in clock.split.items()}
    print(json.dumps({**facts, **split, "simfl": simulation.__file__}))


if __name__ == "__main__":
    main()
