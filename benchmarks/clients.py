"""Measure runs with many clients and with large client states: `python -m benchmarks.clients`.

`registered`: a million clients, of which a thousand train in each round. `stateful`: a thousand clients of SCAFFOLD
with control variates of 10 MB each, of which a hundred train in each round. Each run is a separate process with two Ray
workers. A row has the seconds of a round, the resident memory of the driver after it and the client states on disk.
`--rounds N` and `--clients N` make the runs smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import PAGE
from simfl.session.options import RunOptions

LATEST = Path(__file__).parent / "clients.json"
HIDDEN_SIZE = 1_580  # about 1,580² weights: 10 MB


@dataclass
class UsageRecorder:
    """A display that records the memory of this process and the folder of client states after each round."""

    states: Path
    rows: list[dict[str, float]] = field(default_factory=list)

    def evaluated(self, row: dict[str, Any]) -> None:
        """Record the usage before the first round, before which the model is evaluated once."""
        if row["step"] == 0:
            self.record(0.0)

    def round_done(self, row: dict[str, Any]) -> None:
        """Record the usage after a round."""
        self.record(row["seconds"])

    def record(self, seconds: float) -> None:
        """Append a row with the resident memory and the sizes of the client states."""
        resident = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1]) * PAGE
        sizes = [path.stat().st_size for path in self.states.glob("*.safetensors")]
        self.rows.append({"rss": resident, "states": len(sizes), "disk": sum(sizes), "seconds": seconds})

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def registered(clients: int, rounds: int) -> Any:
    """Return FedAvg with one or a few examples per client, 1,000 clients per round."""
    from benchmarks.components import LogNormal
    from simfl.data.benchmarks.prototypes import Prototypes
    from simfl.experiment import Evaluate, Experiment, Local, Phase
    from simfl.models.mlp import Mlp
    from simfl.objectives.classification import Classification
    from simfl.optimizers.local import LocalOptimizer

    local = Local(LocalOptimizer("sgd"), learning_rate=0.05, batch_size=10, epochs=1)
    return Experiment(
        name="registered",
        data=Prototypes(examples=clients, classes=2, shape=(4,)),
        partition=LogNormal(clients=clients),
        model=Mlp(hidden_sizes=(64,)),
        phases=(Phase(objective=Classification(), local=local, rounds=rounds, clients_per_round=1_000),),
        evaluate=Evaluate(every=0, limit=1),
    )


def stateful(clients: int, rounds: int) -> Any:
    """Return SCAFFOLD with four examples per client; the network and each client state have 2.5 million values."""
    from benchmarks.components import LogNormal
    from simfl.algorithms.scaffold import Scaffold
    from simfl.data.benchmarks.prototypes import Prototypes
    from simfl.experiment import Checkpoint, Evaluate, Experiment, Local, Phase
    from simfl.models.mlp import Mlp
    from simfl.objectives.classification import Classification
    from simfl.optimizers.local import LocalOptimizer

    local = Local(LocalOptimizer("sgd"), learning_rate=0.05, batch_size=4, steps=1)
    phase = Phase(objective=Classification(), algorithm=Scaffold(), local=local, rounds=rounds, clients_per_round=100)
    return Experiment(
        name="stateful",
        data=Prototypes(examples=4 * clients, classes=2, shape=(4,)),
        partition=LogNormal(clients=clients, sigma=0.0),
        model=Mlp(hidden_sizes=(HIDDEN_SIZE, HIDDEN_SIZE)),
        phases=(phase,),
        evaluate=Evaluate(every=0, limit=1),
        checkpoint=Checkpoint(rounds=1, seconds=0.0),
    )


SCALES = {"registered": (registered, 1_000_000, 10), "stateful": (stateful, 1_000, 32)}  # with clients and rounds


def measure(scale: str, clients: int, rounds: int) -> list[dict[str, float]]:
    """Run in this process and return the rows before the first round and after each."""
    from simfl import simulation

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        recorder = UsageRecorder(out / "client_states")
        simulation.run(SCALES[scale][0](clients, rounds), RunOptions(out, workers=2, display=recorder))
    return recorder.rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each scale in a separate process, and print and write the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__.splitlines()[0])
    parser.add_argument("scales", nargs="*", default=[*SCALES], help="registered or stateful; by default both")
    parser.add_argument("--clients", type=int, help="number of clients")
    parser.add_argument("--rounds", type=int, help="number of rounds")
    given = parser.parse_args(arguments)
    program = (
        "import json, sys; from benchmarks.clients import measure;"
        " print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))"
    )
    found = json.loads(LATEST.read_text()) if LATEST.exists() else {}
    for scale in given.scales:
        _, clients, rounds = SCALES[scale]
        clients, rounds = given.clients or clients, given.rounds or rounds
        command = [sys.executable, "-c", program, scale, str(clients), str(rounds)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[scale] = {"clients": clients, "rows": json.loads(output.strip().splitlines()[-1])}
        for number, row in enumerate(found[scale]["rows"]):
            print(scale, number, {name: round(value, 2) for name, value in row.items()}, flush=True)
    LATEST.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
