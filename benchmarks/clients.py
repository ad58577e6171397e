"""Many clients, and clients that remember much: `python -m benchmarks.clients`.

`registered`: a million clients, a thousand of which train in each round. `remembering`: a thousand clients whose
control variates are 10 MB each, a hundred of which train in each round: after some, most have a state on the disk.
Each is a process of its own with two Ray workers; after each round: the driver's resident memory, what the folder of
client memory holds, seconds. `--rounds N` and `--clients N` make it smaller.
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
REGISTERED, A_ROUND = 1_000_000, 1_000
REMEMBERING, AT_ONCE, WIDTH = 1_000, 100, 1_580  # 1,580² values and a few: 10 MB


@dataclass
class Look:
    """A display that looks at this process and at the folder of client memory after each round."""

    memory: Path
    rows: list[dict[str, float]] = field(default_factory=list)

    def evaluated(self, row: dict[str, Any]) -> None:
        """The model is scored once before the first round."""
        if row["step"] == 0:
            self.look(0.0)

    def round_done(self, row: dict[str, Any]) -> None:
        """The end of a round."""
        self.look(row["seconds"])

    def look(self, seconds: float) -> None:
        """Note it."""
        resident = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1]) * PAGE
        sizes = [path.stat().st_size for path in self.memory.glob("*.safetensors")]
        self.rows.append({"rss": resident, "states": len(sizes), "disk": sum(sizes), "seconds": seconds})

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def registered(clients: int, rounds: int) -> Any:
    """FedAvg on one example a client, or a few."""
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
        phases=(Phase(objective=Classification(), local=local, rounds=rounds, clients_per_round=A_ROUND),),
        evaluate=Evaluate(every=0, limit=1),
    )


def remembering(clients: int, rounds: int) -> Any:
    """SCAFFOLD on four examples a client: the network has 2.5 million weights, and so has each client's memory."""
    from benchmarks.components import LogNormal
    from simfl.algorithms.scaffold import Scaffold
    from simfl.data.benchmarks.prototypes import Prototypes
    from simfl.experiment import Checkpoint, Evaluate, Experiment, Local, Phase
    from simfl.models.mlp import Mlp
    from simfl.objectives.classification import Classification
    from simfl.optimizers.local import LocalOptimizer

    local = Local(LocalOptimizer("sgd"), learning_rate=0.05, batch_size=4, steps=1)
    phase = Phase(
        objective=Classification(), algorithm=Scaffold(), local=local, rounds=rounds, clients_per_round=AT_ONCE
    )
    return Experiment(
        name="remembering",
        data=Prototypes(examples=4 * clients, classes=2, shape=(4,)),
        partition=LogNormal(clients=clients, sigma=0.0),
        model=Mlp(hidden_sizes=(WIDTH, WIDTH)),
        phases=(phase,),
        evaluate=Evaluate(every=0, limit=1),
        checkpoint=Checkpoint(rounds=1, seconds=0.0),
    )


SCALES = {"registered": (registered, REGISTERED, 10), "remembering": (remembering, REMEMBERING, 20)}


def one(scale: str, clients: int, rounds: int) -> list[dict[str, float]]:
    """What was seen before the first round and after each, in this process."""
    from simfl import simulation

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        look = Look(out / "client_states")
        simulation.run(SCALES[scale][0](clients, rounds), RunOptions(out, workers=2, display=look))
    return look.rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, each in a process of its own; show and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__.splitlines()[0])
    parser.add_argument("scales", nargs="*", default=[*SCALES], help="registered, remembering; by default both")
    parser.add_argument("--clients", type=int, help="fewer")
    parser.add_argument("--rounds", type=int, help="fewer")
    given = parser.parse_args(arguments)
    call = (
        "import json, sys; from benchmarks.clients import one;"
        " print(json.dumps(one(sys.argv[1], *map(int, sys.argv[2:]))))"
    )
    found = json.loads(LATEST.read_text()) if LATEST.exists() else {}
    for scale in given.scales:
        _, clients, rounds = SCALES[scale]
        clients, rounds = given.clients or clients, given.rounds or rounds
        command = [sys.executable, "-c", call, scale, str(clients), str(rounds)]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[scale] = {"clients": clients, "rows": json.loads(said.strip().splitlines()[-1])}
        for number, row in enumerate(found[scale]["rows"]):
            print(scale, number, {name: round(value, 2) for name, value in row.items()}, flush=True)
    LATEST.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
