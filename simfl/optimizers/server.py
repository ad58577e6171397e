"""Server optimizers: a step with the mean of the clients' deltas as pseudo-gradient (Reddi et al. 2021; NOTES: Hsu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from simfl.protocol import State, Weights


@dataclass(frozen=True)
class ServerOptimizer:
    """State in, state out. `delta` points downhill (trained − received), so a step adds it."""

    learning_rate: float = 1.0  # eta_s

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """New weights and new state; `state` is empty before the first step."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sgd(ServerOptimizer):
    """w + eta·delta. With eta = 1 this is federated averaging (McMahan et al. 2017)."""

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """`state` stays empty."""
        return {name: w + self.learning_rate * delta[name] for name, w in weights.items()}, state
