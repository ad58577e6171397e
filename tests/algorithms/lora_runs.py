"""Small runs of algorithms for low-rank adapters, one round at a time, with the factors that clients trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from simfl import config, simulation
from simfl.client_state import FileClientStore
from simfl.contract.data import UnevenClients
from simfl.data.base import Dataset
from simfl.runs.folder import CLIENT_STATES
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.session.options import RunOptions
from simfl.stacking import select_namespace

ALPHA, RANK = 8.0, 4
LAYERS = ("layers.0.linear", "head")
SIZES = (3, 20, 5, 33, 9)  # examples of the clients

Factors = dict[str, tuple[np.ndarray, np.ndarray]]  # A and B by layer, float64


@dataclass(frozen=True)
class WithRanks(UnevenClients):
    """Clients with a column `rank`: 1, 2, 3, 4, 1."""

    def load(self, cache: Path) -> Dataset:
        """Build the data set."""
        found = super().load(cache)
        train = found.splits["train"]
        ranks = pa.array([client.as_py() % 4 + 1 for client in train.examples["client"]])
        splits = {**found.splits, "train": replace(train, examples=train.examples.append_column("rank", ranks))}
        return replace(found, splits=splits)


def experiment(
    algorithm: Mapping[str, object] | str, sizes: tuple[int, ...] = SIZES, **phase: object
) -> dict[str, object]:
    """Return an experiment with adapters on both layers of a perceptron."""
    own = {
        "objective": "classification",
        "algorithm": algorithm,
        "rounds": 3,
        "participation": 1.0,
        "local": {"optimizer": "sgd", "learning_rate": 0.3, "batch_size": 8},
    }
    adapters = {"kind": "lora", "targets": ["linear", "head"], "rank": RANK, "alpha": ALPHA, "dropout": 0.0}
    return {
        "name": "lora",
        "data": {"name": "simfl.contract.data:UnevenClients", "sizes": list(sizes)},
        "partition": {"by": "official"},
        "model": {"name": "mlp", "hidden_sizes": [16], "adapters": adapters},
        "phases": [own | phase],
        "evaluate": {"every": 0, "models": ["global", "local"]},  # so that clients store what they trained
        "checkpoint": {"rounds": 1, "seconds": 0},
        "execution": {"mode": "vectorized", "clients_per_batch": 4},
    }


def run(folder: Path, given: Mapping[str, object], **options: object) -> Run:
    """Run an experiment inline."""
    simulation.run(config.parse(given), RunOptions(folder, "inline", **options))  # type: ignore[arg-type]
    return Run(folder)


@dataclass(frozen=True)
class Round:
    """A round as an outsider sees it: the states of the server, and what each client had trained at its end."""

    before: Snapshot
    after: Snapshot
    clients: dict[int, Factors]
    trained: dict[int, Mapping[str, object]]  # all shared tensors of each client
    shares: dict[int, float]
    row: dict[str, object]

    @property
    def mean_products(self) -> dict[str, np.ndarray]:
        """Σ p_k B_k A_k by layer."""
        return {
            layer: np.sum(
                [p * self.clients[k][layer][1] @ self.clients[k][layer][0] for k, p in self.shares.items()], 0
            )
            for layer in LAYERS
        }

    def mean(self, layer: str, which: int, shares: Mapping[int, float] | None = None) -> np.ndarray:
        """Σ p_k A_k (0) or Σ p_k B_k (1) of a layer."""
        return np.asarray(np.sum([p * self.clients[k][layer][which] for k, p in (shares or self.shares).items()], 0))


def rounds_of(folder: Path, given: dict[str, object], count: int = 3) -> list[Round]:
    """Run an experiment, stopping after each round, and return the rounds."""
    found: list[Round] = []
    before = None
    for number in range(count + 1):
        left = iter([""] * (number and 1))
        own = run(folder, given, resume=number > 0, until=lambda left=left: next(left, "stopped"))
        after = own.snapshot()
        if before is not None:
            rows = [row for row in own.clients().to_pylist() if row["round"] == number]
            total = sum(row["weight"] for row in rows)
            shares = {row["client"]: row["weight"] / total for row in rows}
            trained = {k: weights_of(own, after, k) for k in shares}
            clients = {k: factors_of(weights) for k, weights in trained.items()}
            found.append(Round(before, after, clients, trained, shares, own.rounds().to_pylist()[-1]))
        before = after
    return found


def weights_of(own: Run, snapshot: Snapshot, client: int) -> Mapping[str, object]:
    """Return what a client trained in its last update, with the model's tensors that it did not train."""
    stored = FileClientStore(own.folder / CLIENT_STATES).get(snapshot.client_state(client))
    trained = dict(own.model().named_parameters()) | select_namespace(stored, "personal_params").get("weights", {})
    return trained | select_namespace(stored, "local")["weights"]


def factors_of(weights: Mapping[str, object]) -> Factors:
    """Return A and B by layer."""
    names = ((layer, f"{layer}.lora_A.default.weight", f"{layer}.lora_B.default.weight") for layer in LAYERS)
    return {layer: (_double(weights[down]), _double(weights[up])) for layer, down, up in names}


def effective(snapshot: Snapshot, start: Mapping[str, object], scaling: float = ALPHA / RANK) -> dict[str, np.ndarray]:
    """Return W + s B A of the global model by layer; `start` has the initial tensors."""
    weights = {**start, **snapshot.model}
    return {
        layer: _double(weights[f"{layer}.base_layer.weight"]) + scaling * up @ down
        for layer, (down, up) in factors_of(weights).items()
    }


def start_of(given: Mapping[str, object]) -> dict[str, object]:
    """Return the initial tensors of the model."""
    from simfl.protocol import Task

    module = config.parse(given).model.build(Task(42, 5, (12,)))
    return dict(module.named_parameters())


def _double(tensor: object) -> np.ndarray:
    return tensor.detach().double().numpy()  # type: ignore[attr-defined]
