"""The driver's memory over registered clients and over rounds: `python -m benchmarks.memory`.

One million examples of four features in all, dealt to a thousand, a hundred thousand and a million clients, 50 of which
train in each of 100 rounds on two Ray workers. Every run is a process of its own; what is read is the driver's resident
memory, when the partition is made and the first round is about to begin, and after each round.
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

from simfl.session.options import RunOptions
from benchmarks.processes import PAGE

LATEST = Path(__file__).parent / "memory.json"
CLIENTS, EXAMPLES, ROUNDS = (1_000, 100_000, 1_000_000), 1_000_000, 100


@dataclass
class Scale:
    """A display that looks at this process's resident memory."""

    bytes: list[int] = field(default_factory=list)  # before the first round, and after each

    def evaluated(self, row: dict[str, Any]) -> None:
        """The model is scored once before the first round."""
        if row["step"] == 0:
            self.weigh()

    def round_done(self, row: dict[str, Any]) -> None:
        """The end of a round."""
        self.weigh()

    def weigh(self) -> None:
        """Read it."""
        self.bytes.append(int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1]) * PAGE)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def one(clients: int) -> list[int]:
    """The driver's resident bytes with so many clients, in this process."""
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
    scale = Scale()
    with tempfile.TemporaryDirectory() as folder:
        simulation.run(experiment, RunOptions(Path(folder) / "run", workers=2, display=scale))
    return scale.bytes


def main() -> None:
    """Measure all, each in a process of its own; show and write."""
    one_call = "import json, sys; from benchmarks.memory import one; print(json.dumps(one(int(sys.argv[1]))))"
    table = []
    for clients in CLIENTS:
        command = [sys.executable, "-c", one_call, str(clients)]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(said.strip().splitlines()[-1])
        row = {"clients": clients, "before": found[0], "after_10_rounds": found[10], "after_100_rounds": found[-1]}
        table.append(row)
        print({name: value if name == "clients" else f"{value / 1e6:.0f} MB" for name, value in row.items()})
    LATEST.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
