"""FedNova: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization".

Δ_k      θ_k − w, the client's delta
a_k      length of the client's local steps along a constant gradient, in units of eta: their number for plain SGD,
         Σ_t (1 − rho^t)/(1 − rho) with momentum rho
p_k      weight of the client in the mean
server   w ← w + (Σ p_k·a_k)·Σ p_k·(Δ_k/a_k)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm
from simfl.protocol import AggregatedUpdates, ClientUpdate, Parts, Server, State, Weights


@dataclass(frozen=True)
class FedNova(Algorithm):
    """Averages normalized deltas, so that clients with more local steps do not count more.

    Momentum, dampening, Nesterov momentum and learning-rate schedules are part of a_k. For other optimizers a_k is the
    number of steps. If all clients take equally many steps, it is FedAvg. Clients upload one further number.
    """

    reduce: ClassVar[Mapping[str, str]] = {"weights": "weighting", "steps": "weighting"}
    fedavg_limit: ClassVar[str] = "all take as many steps"
    # powers of two, because it divides by both
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"local.steps": 4, "local.learning_rate": 0.125}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """Return Δ_k/a_k and a_k."""
        a = update.total_rate / update.learning_rate.clamp_min(1e-12)
        delta = {name: (trained[name] - w) / a.clamp_min(1e-12) for name, w in received["weights"].items()}
        return {"weights": delta, "steps": {"steps": a}}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the mean of Δ_k/a_k times the mean of a_k."""
        a = aggregated.means["steps"]["steps"]
        return {name: a * d for name, d in aggregated.means["weights"].items()}, server.state
