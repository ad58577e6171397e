"""RBLA: Chen et al. 2024, "RBLA: rank-based LoRA aggregation for fine-tuning heterogeneous models in FLaaS".

client   trains the first r_k rows of A and columns of B;   sends them
server   row i of A (column i of B) ← Σ p_k A_k[i] / Σ p_k over the clients with r_k > i

Zeros of clients with smaller ranks do not dilute the rest. A row that no client of the round has keeps its value on the
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from simfl.algorithms.low_rank import LowRank, is_factor
from simfl.low_rank import truncated
from simfl.protocol import AggregatedUpdates, ClientUpdate, Parts, Weights


@dataclass(frozen=True)
class Rbla(LowRank):
    """Adapters of different ranks, with the mean of each row and column over the clients that have it."""

    reduce: ClassVar[Mapping[str, str]] = {"weights": "weighting", "rows": "weighting"}
    example: ClassVar[Mapping[str, object]] = {**LowRank.example, "algorithm.rank": {2: 0.6, 4: 0.4}}

    def has_contributions(self) -> bool:
        """Return that the server counts the clients of each row."""
        return True

    def contribution(self, sent: Parts, received: Parts, update: ClientUpdate) -> Parts:
        """Return the delta, which is zero beyond the client's rank, and 1 for each value that the client has."""
        rows = {
            name: truncated(name, torch.ones_like(d), update.rank)
            for name, d in sent["weights"].items()
            if is_factor(name)
        }
        return {**sent, "rows": rows}

    def mean_delta(self, aggregated: AggregatedUpdates) -> Weights:
        """Return the mean over the clients that have a row."""
        means, rows = aggregated.means["weights"], aggregated.means["rows"]
        return {name: d / rows[name].clamp_min(1e-12) if name in rows else d for name, d in means.items()}
