"""FedNova: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization".

Δ_k   θ_k − w              a_k   how far the client's local steps go along a constant gradient, in units of eta:
p_k   weight in the mean         their number for plain SGD, more with momentum ρ: Σ_t (1 − ρ^t)/(1 − ρ)
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
    """Averages each client's mean step, then goes the mean number of steps: who steps more does not count for more.

    Momentum, dampening, Nesterov's and learning-rate schedules are part of a_k; of other optimizers a_k is the number
    of steps. Where all clients take equally many, it is FedAvg. Beside the update travels one number.
    """

    fedavg_limit: ClassVar[str] = "all take as many steps"
    reduce: ClassVar[Mapping[str, str]] = {"weights": "weighting", "steps": "weighting"}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        a = update.total_rate / update.learning_rate.clamp_min(1e-12)
        each = {name: (trained[name] - w) / a.clamp_min(1e-12) for name, w in received["weights"].items()}
        return {"weights": each, "steps": {"steps": a}}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        a = aggregated.means["steps"]["steps"]
        return {name: a * d for name, d in aggregated.means["weights"].items()}, server.state
