"""pfl-research on one GPU: its own CIFAR10 protocol, by one or several processes that share the card.

`python -m benchmarks.peers.pfl_gpu RESULT PROCESSES ROUNDS`, in pfl's environment. 1,000 users of 50 images, 50 a
round, one epoch of batches of 10, SGD 0.1, the network with dropout of 1,626,442 parameters; all data lie on the card
and users are cached, as in pfl's benchmark. pfl gives each process a card of its own, for NCCL needs that; here they
share one, and sums are made by Gloo.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

USERS, IMAGES, SAMPLED, BATCH, SKIPPED = 1000, 50, 50, 10, 3  # rounds before the median


class Network(nn.Module):
    """The network of pfl's benchmark, with its loss as pfl wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
        )  # fmt: skip

    def loss(self, x: Tensor, label: Tensor) -> Tensor:
        """Of a batch, to be minimised."""
        return functional.cross_entropy(self.layers(x), label)

    def metrics(self, **batch: Tensor) -> dict[str, Any]:
        """Nothing that costs: nothing is scored."""
        return {"batches": Weighted(1, 1)}


class Clock(TrainingProcessCallback):
    """Looks at it when the first round begins and, when all that the card has to do is done, after each."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_begin(self, *, model: Any) -> Metrics:
        self._mark()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._mark()
        return False, Metrics()

    def _mark(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())


def dataset(device: torch.device) -> FederatedDataset:
    """Random pictures, which cost what others would; users are drawn with replacement, as pfl does."""
    drawn = torch.Generator().manual_seed(1)
    pictures = torch.randn(USERS, IMAGES, 3, 32, 32, generator=drawn).to(device)
    labels = torch.randint(10, (USERS, IMAGES), generator=drawn).to(device)

    @cache
    def make(user: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset({"x": pictures[user], "label": labels[user]}, user_id=str(user))

    def draw() -> int:
        return int(torch.randint(USERS, (), generator=drawn))

    return FederatedDataset(make, draw, user_id_to_weight=dict.fromkeys(range(USERS), IMAGES))


def serve(result: Path, rounds: int) -> None:
    """One process's share; the first writes what was measured."""
    began = time.perf_counter()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    network, clock, users = Network().to(device), Clock(), dataset(device)
    model = PyTorchModel(
        network, lambda parameters, lr: torch.optim.SGD(parameters, lr=lr), torch.optim.SGD(network.parameters(), 1.0)
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=SAMPLED,
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=BATCH),
        callbacks=[clock],
    )
    if os.environ["RANK"] == "0":
        spent = torch.tensor(clock.marks, dtype=torch.float64).diff()
        seconds = float(spent[SKIPPED:].median())
        row = {
            "work": "cifar",
            "program": f"pfl-research × {os.environ['WORLD_SIZE']}",
            "deterministic": "its own",
            "backend": "pfl 0.6.0",
            "rounds_per_second": 1 / seconds,
            "clients_per_second": SAMPLED / seconds,
            "examples_per_second": SAMPLED * IMAGES / seconds,
            "milliseconds": {},
            "start_seconds": float(spent[:2].sum()),
            "total_seconds": time.perf_counter() - began,
            "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,  # of one process
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
            "torch": torch.__version__,
        }
        result.write_text(json.dumps(row))


def main(result: str, processes: int, rounds: int) -> None:
    """Start the processes and wait for them."""
    shared = {"WORLD_SIZE": str(processes), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(processes)}
    shared |= {"TORCHELASTIC_RUN_ID": "here", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    command = [sys.executable, "-m", "benchmarks.peers.pfl_process", result, str(rounds)]
    crew = [subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank)}) for rank in range(processes)]
    ended = [process.wait() for process in crew]
    if any(ended):
        raise SystemExit(f"pfl's processes ended with {ended}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
