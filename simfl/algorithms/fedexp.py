"""FedExP: Jhunjhunwala et al. 2023, "FedExP: speeding up federated averaging via extrapolation", Algorithm 1.

Δ_k      θ_k − w, the client's delta          Δ   mean of the Δ_k          M   clients of the round
eta_g    max(1, Σ_k ‖Δ_k‖² / (2·M·(‖Δ‖² + eps)))
server   w ← w + eta_g·Δ

The paper evaluates the mean of the last two global models. Here the last one is evaluated, as for every algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.constraints import NonNegativeFloat
from simfl.protocol import AggregatedUpdates, ClientUpdate, Parts, Server, State, Weights
from simfl.weights import squared_norm


@dataclass(frozen=True)
class FedExP(Algorithm):
    """FedAvg with a server step size that grows when the clients' deltas disagree.

    Clients upload one further number, the squared norm of their delta. The server step size is logged as the metric
    `server_step_size`. With a lossy codec the norms are those before encoding.
    """

    eps: NonNegativeFloat = 1e-3  # added to the squared norm of the mean delta; the larger, the closer to FedAvg

    reduce: ClassVar[Mapping[str, str]] = {"weights": "weighting", "squared_norm": "clients"}
    fedavg_limit: ClassVar[str] = "eps → ∞"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.eps": 1e9}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """Return Δ_k and ‖Δ_k‖²."""
        delta = {name: trained[name] - w for name, w in received["weights"].items()}
        return {"weights": delta, "squared_norm": {"squared_norm": squared_norm(delta)}}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return eta_g·Δ."""
        step_size = self._step_size(aggregated)
        return {name: step_size * d for name, d in aggregated.means["weights"].items()}, server.state

    def metrics(self, server: Server, aggregated: AggregatedUpdates) -> Mapping[str, float | Tensor]:
        """Return eta_g."""
        return {"server_step_size": self._step_size(aggregated)}

    def _step_size(self, aggregated: AggregatedUpdates) -> Tensor:
        mean_of_squares = aggregated.means["squared_norm"]["squared_norm"]
        square_of_mean = squared_norm(aggregated.means["weights"])
        return (mean_of_squares / (2.0 * (square_of_mean + self.eps))).clamp_min(1.0)
