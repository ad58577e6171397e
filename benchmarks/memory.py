"""Measure the memory of the driver by number of clients and of rounds: `python -m benchmarks.memory`.

One million examples of four features are divided among a thousand, a hundred thousand and a million clients. 50 clients
train in each of 100 rounds on two Ray workers. Every run is a separate process; the resident memory of the driver is
read before the first round, when the partition exists, and after each round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import PAGE
from simfl.session.options import RunOptions

LATEST = Path(__file__).parent / "memory.json"
CLIENTS, EXAMPLES, ROUNDS = (1_000, 100_000, 1_000_000), 1_000_000, 100


@dataclass
class MemoryRecorder:
    """A display that records the resident memory of this process."""

    bytes: list[int] = field(default_factory=list)  # before the first round and after each

    def evaluated(self, row: dict[str, Any]) -> None:
        """Record the memory before the first round, before which the model is evaluated once."""
        if row["step"] == 0:
            self.record()

    def round_done(self, row: dict[str, Any]) -> None:
        """Record the memory after a round."""
        self.record()

    def record(self) -> None:
        """Append the resident memory in bytes."""
        self.bytes.append(int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1]) * PAGE)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def measure(clients: int) -> list[int]:
    """Run with a number of clients in this process and return the resident bytes of the driver."""
    from benchmarks.components import LogNormal
    from simfl import simulation
    from simfl.data.benchmarks.prototypes import Prototypes
    from simfl.experiment import Evaluate, Experiment, Local, Phase
    from simfl.models.mlp import Mlp
    from simfl.objectives.classification import Classification
    from simfl.optimizers.local import LocalOptimizer

    local = Local(LocalOptimizer("sgd"), learning_rate=0.05, batch_size=10, epochs=1)
    experiment = Experiment(
        name="memory",
        data=Prototypes(examples=EXAMPLES, classes=2, shape=(4,)),
        partition=LogNormal(clients=clients),
        model=Mlp(hidden_sizes=(64,)),
        phases=(Phase(objective=Classification(), local=local, rounds=ROUNDS, clients_per_round=50),),
        evaluate=Evaluate(every=0, limit=1),
    )
    recorder = MemoryRecorder()
    with tempfile.TemporaryDirectory() as folder:
        simulation.run(experiment, RunOptions(Path(folder) / "run", workers=2, display=recorder))
    return recorder.bytes


def main() -> None:
    """Measure each number of clients in a separate process, and print and write the rows."""
    program = "import json, sys; from benchmarks.memory import measure; print(json.dumps(measure(int(sys.argv[1]))))"
    table = []
    for clients in CLIENTS:
        command = [sys.executable, "-c", program, str(clients)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(output.strip().splitlines()[-1])
        row = {"clients": clients, "before": found[0], "after_10_rounds": found[10], "after_100_rounds": found[-1]}
        table.append(row)
        print({name: value if name == "clients" else f"{value / 1e6:.0f} MB" for name, value in row.items()})
    LATEST.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
