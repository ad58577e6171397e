"""A work without simfl: read from the file of `benchmarks.handover`, and the one client visit that all rivals share."""

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
class Visit:
    """One client in one round: its weight, and the rows of each of its local steps."""

    client: int
    weight: float
    steps: list[Tensor]


@dataclass(frozen=True)
class Work:
    """What is trained, on what, from where, by whom."""

    optimizer_name: str
    learning_rate: float
    batch_size: int
    num_clients: int
    network: nn.Module
    rows: Rows
    rounds: list[list[Visit]]

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained."""
        return [p for p in self.network.parameters() if p.requires_grad]

    def optimizer(self) -> torch.optim.Optimizer:
        """A new one, as every visit has."""
        return OPTIMIZERS[self.optimizer_name](self.parameters, lr=self.learning_rate)

    def loss(self, rows: Tensor) -> Tensor:
        """Of a batch."""
        return loss(self.network, {name: column[rows] for name, column in self.rows.items()})

    def train(self, visit: Visit, start: list[Tensor]) -> None:
        """Train the network's parameters from `start` on."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, start)
        optimizer = self.optimizer()
        for rows in visit.steps:
            first_step()
            optimizer.zero_grad()
            self.loss(rows).backward()
            optimizer.step()

    def start(self) -> list[Tensor]:
        """Copies of what is trained, as it is now."""
        return [p.detach().clone() for p in self.parameters]


def flat(tensors: list[Tensor] | list[nn.Parameter]) -> Tensor:
    """All values one after the other."""
    return torch.cat([t.detach().flatten() for t in tensors])


def read(path: Path) -> Work:
    """The work in a file."""
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    name, optimizer, rate, batch_size, clients = arrays["facts"].tolist()
    network = NETWORKS[name]()
    starts = [arrays[key] for key in sorted(key for key in arrays if key.startswith("start:"))]
    with torch.no_grad():
        for place, (p, start) in enumerate(zip(network.parameters(), starts, strict=True)):
            p.requires_grad_(bool(arrays[f"trained:{place:03}"])).copy_(torch.from_numpy(start))
    rows = {key.removeprefix("row:"): torch.from_numpy(a) for key, a in arrays.items() if key.startswith("row:")}
    rounds: list[list[Visit]] = []
    end = 0
    for number, client, weight, count in arrays["visits"].tolist():
        if number == len(rounds):
            rounds.append([])
        table, end = arrays["steps"][end : end + count], end + count
        rounds[-1].append(Visit(client, float(weight), [torch.from_numpy(step[step >= 0]) for step in table]))
    return Work(optimizer, float(rate), int(batch_size), int(clients), network.train(), rows, rounds)
