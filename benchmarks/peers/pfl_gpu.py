"""Run the CIFAR10 protocol of pfl-research on one GPU, with one or several processes that share it.

`python -m benchmarks.peers.pfl_gpu RESULT PROCESSES ROUNDS` runs in the environment of pfl. 1,000 users have 50 images
each; 50 users train in a round, one epoch with batches of 10 and SGD 0.1; the network has dropout and 1,626,442
parameters. All data are on the GPU and users are cached, as in the benchmark of pfl. pfl gives each process its own GPU
because NCCL requires it; here, the processes share one GPU and sum through Gloo.
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
    """The network of the benchmark of pfl, with the loss and the metrics that pfl requires."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
        )  # fmt: skip

    def loss(self, x: Tensor, label: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(self.layers(x), label)

    def metrics(self, **batch: Tensor) -> dict[str, Any]:
        """Return a constant; nothing is evaluated."""
        return {"batches": Weighted(1, 1)}


class Clock(TrainingProcessCallback):
    """Times before the first round and after each, when the GPU has finished."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Record the start of the first round."""
        self._mark()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Record the end of a round."""
        self._mark()
        return False, Metrics()

    def _mark(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())


def dataset(device: torch.device) -> FederatedDataset:
    """Draw random images, which cost as much as real ones; users are sampled with replacement, as in pfl."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(USERS, IMAGES, 3, 32, 32, generator=generator).to(device)
    labels = torch.randint(10, (USERS, IMAGES), generator=generator).to(device)

    @cache
    def make(user: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset({"x": images[user], "label": labels[user]}, user_id=str(user))

    def draw() -> int:
        return int(torch.randint(USERS, (), generator=generator))

    return FederatedDataset(make, draw, user_id_to_weight=dict.fromkeys(range(USERS), IMAGES))


def serve(result: Path, rounds: int) -> None:
    """Run one of the processes; the first one writes the measurements."""
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
        row: dict[str, Any] = {
            "work": "cifar",
            "program": f"pfl-research × {os.environ['WORLD_SIZE']}",
            "deterministic": None,  # pfl has no such setting
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
    shared |= {"TORCHELASTIC_RUN_ID": "benchmark", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    command = [sys.executable, "-m", "benchmarks.peers.pfl_process", result, str(rounds)]
    started = [subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank)}) for rank in range(processes)]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"the processes of pfl exited with codes {codes}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
