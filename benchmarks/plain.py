"""A work without simfl, read from the file of `benchmarks.handover`, and the local training that all systems share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.networks import NETWORKS, OPTIMIZERS, Rows, loss
from benchmarks.result import first_step


@dataclass(frozen=True)
class PlannedUpdate:
    """Update of one client in one round: its weight, and the rows of each local step."""

    client: int
    weight: float
    steps: list[Tensor]


@dataclass(frozen=True)
class Work:
    """A network, its data, its training settings and the client updates of every round."""

    optimizer_name: str
    learning_rate: float
    batch_size: int
    num_clients: int
    network: nn.Module
    rows: Rows
    rounds: list[list[PlannedUpdate]]

    @cached_property
    def parameters(self) -> list[Tensor]:
        """Return the trained parameters."""
        return [p for p in self.network.parameters() if p.requires_grad]

    def optimizer(self) -> torch.optim.Optimizer:
        """Build an optimizer; every client update has its own."""
        return OPTIMIZERS[self.optimizer_name](self.parameters, lr=self.learning_rate)

    def loss(self, rows: Tensor) -> Tensor:
        """Return the mean loss of a batch, given its rows."""
        return loss(self.network, {name: column[rows] for name, column in self.rows.items()})

    def train(self, update: PlannedUpdate, start: list[Tensor]) -> None:
        """Set the parameters to `start` and train them."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, start)
        optimizer = self.optimizer()
        for rows in update.steps:
            first_step()
            optimizer.zero_grad()
            self.loss(rows).backward()
            optimizer.step()

    def start(self) -> list[Tensor]:
        """Return copies of the trained parameters."""
        return [p.detach().clone() for p in self.parameters]


def flat(tensors: list[Tensor]) -> Tensor:
    """Concatenate all values to one vector."""
    return torch.cat([t.detach().flatten() for t in tensors])


def read(path: Path) -> Work:
    """Read the work in a file."""
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    name, optimizer, rate, batch_size, clients = arrays["facts"].tolist()
    network = NETWORKS[name]()
    starts = [arrays[key] for key in sorted(key for key in arrays if key.startswith("start:"))]
    with torch.no_grad():
        for index, (p, start) in enumerate(zip(network.parameters(), starts, strict=True)):
            p.requires_grad_(bool(arrays[f"trained:{index:03}"])).copy_(torch.from_numpy(start))
    rows = {key.removeprefix("row:"): torch.from_numpy(a) for key, a in arrays.items() if key.startswith("row:")}
    rounds: list[list[PlannedUpdate]] = []
    end = 0
    for number, client, weight, count in arrays["updates"].tolist():
        if number == len(rounds):
            rounds.append([])
        table, end = arrays["steps"][end : end + count], end + count
        rounds[-1].append(PlannedUpdate(client, float(weight), [torch.from_numpy(step[step >= 0]) for step in table]))
    return Work(optimizer, float(rate), int(batch_size), int(clients), network.train(), rows, rounds)
