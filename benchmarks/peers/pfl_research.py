"""Run a work with pfl-research: `python -m benchmarks.peers.pfl_research FILE RESULT`, or under torchrun.

It uses SimulatedBackend, FederatedAveraging and PyTorchModel.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.networks import OPTIMIZERS, loss
from benchmarks.plain import Work, flat, read
from benchmarks.result import Stopwatch, first_step, write_result


class Network(nn.Module):
    """A network with the loss and the metrics that pfl requires."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, **batch: Tensor) -> Tensor:
        """Return the loss of a batch."""
        first_step()
        return loss(self.network, batch)

    def metrics(self, **batch: Tensor) -> dict[str, Any]:
        """Return a constant; the works are not evaluated."""
        return {"batches": Weighted(1, 1)}


class Clock(TrainingProcessCallback):
    """Times before the first round and after each."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.watch = rounds, Stopwatch()

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Record the start of the first round."""
        self.watch.mark()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Record the end of a round."""
        self.watch.mark(last=central_iteration + 1 == self.rounds)
        return False, Metrics()


def dataset(work: Work) -> FederatedDataset:
    """Build one user per client update, which keeps the order of its batches; users come in the order of the rounds."""
    updates = [update for updates in work.rounds for update in updates]

    def make(user: int) -> PyTorchTensorDataset:
        rows = torch.cat(updates[user].steps)
        return PyTorchTensorDataset({name: column[rows] for name, column in work.rows.items()}, user_id=str(user))

    order = itertools.cycle(range(len(updates)))
    sizes = {user: int(update.weight) for user, update in enumerate(updates)}
    return FederatedDataset(make, lambda: next(order), user_id_to_weight=sizes)


def main(file: str, result: str) -> None:
    """Run the work in `file` and write its measurements to `result`."""
    torch.set_num_threads(1)
    work = read(Path(file))
    start, clock, users = flat(work.parameters), Clock(len(work.rounds)), dataset(work)
    model = PyTorchModel(
        Network(work.network),
        lambda parameters, lr: OPTIMIZERS[work.optimizer_name]([p for p in parameters if p.requires_grad], lr=lr),
        torch.optim.SGD(work.parameters, lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=len(work.rounds),
            evaluation_frequency=len(work.rounds) + 1,
            train_cohort_size=len(work.rounds[0]),
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.learning_rate, local_batch_size=work.batch_size
        ),
        callbacks=[clock],
    )
    if int(os.environ.get("RANK", "0")) == 0:
        write_result(Path(result), clock.watch, flat(work.parameters), start)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
