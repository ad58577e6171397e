"""The mean of the newest models: FedFa, Xu et al. 2024, "FedFa: A Fully Asynchronous Training Paradigm"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from simfl.errors import ConfigError
from simfl.optimizers.server import ServerOptimizer, apply_step
from simfl.protocol import State, Weights


@dataclass(frozen=True)
class SlidingWindow(ServerOptimizer):
    """Step to the mean of the last `size` models w + d, at the rate eta; before, the window holds the initial model.

    FedFa's form for parameters: asynchronous rounds with `buffer: 1` and `mix: models`, where w + d is the model that a
    client sent. (The paper waits until its queue is full; here the initial model fills it.)
    """

    by_tensor: ClassVar[bool] = True

    size: int = 5  # K: length of the queue

    def __post_init__(self) -> None:
        """Raise ConfigError for an empty window."""
        if self.size < 1:
            raise ConfigError(f"server.size: {self.size} given; allowed: at least 1")

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """Return w + eta·(mean of the window − w), and the state `models`, tensors [size, …] from old to new."""
        window = state.get("models") or {n: weights[n].expand(self.size, *weights[n].shape) for n in delta}
        models = {name: torch.cat([window[name][1:], (weights[name] + d)[None]]) for name, d in delta.items()}
        step = {name: self.learning_rate * (t.mean(0) - weights[name]) for name, t in models.items()}
        return apply_step(weights, step), {"models": models}
