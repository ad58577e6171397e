"""Robust aggregation: the coordinate-wise median (Yin et al. 2018) and Krum (Blanchard et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from simfl.algorithms.base import Algorithm
from simfl.constraints import PositiveInt
from simfl.protocol import AggregatedUpdates, Server, State, Weights


@dataclass(frozen=True)
class Median(Algorithm):
    """FedAvg with the coordinate-wise median of the deltas in place of their mean.

    The median of an even number is the mean of the middle two.
    """

    reduce: ClassVar[Mapping[str, str]] = {"weights": "gather"}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the median of each coordinate."""
        uploads = aggregated.gathered["weights"]
        medians = {name: _median(torch.stack([u[name] for u in uploads])) for name in uploads[0]}
        return medians, server.state


def _median(rows: torch.Tensor) -> torch.Tensor:
    ordered, n = rows.sort(0).values, len(rows)
    return 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])


@dataclass(frozen=True)
class Krum(Algorithm):
    """FedAvg with one delta in place of the mean: the delta closest to its n − f − 2 nearest neighbours.

    With `keep` above 1, the mean of that many closest deltas (multi-Krum). A round needs n ≥ 2f + 3 uploads, and
    multi-Krum also n ≥ f + 2 + keep (Damaskinos et al. 2019, AggregaThor).
    """

    attackers: int = 1  # f: how many uploads may be arbitrary
    keep: PositiveInt = 1  # deltas averaged
    reduce: ClassVar[Mapping[str, str]] = {"weights": "gather"}
    example: ClassVar[Mapping[str, object]] = {"phases.0.participation": 1.0}

    def least_uploads(self) -> int:
        """Return the larger of 2f + 3 and f + 2 + keep, below which no guarantee holds."""
        return max(2 * self.attackers + 3, self.attackers + 2 + self.keep)

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the mean of the deltas with the smallest distances to their neighbours."""
        uploads = aggregated.gathered["weights"]
        flat = torch.stack([torch.cat([t.flatten() for t in u.values()]) for u in uploads]).double()
        distances = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
        num_neighbours = len(uploads) - self.attackers - 2
        scores = distances.sort(1).values[:, 1 : num_neighbours + 1].sum(1)
        best = scores.argsort(stable=True)[: self.keep].tolist()
        chosen = [uploads[i] for i in sorted(best)]
        return {name: torch.stack([u[name] for u in chosen]).mean(0) for name in chosen[0]}, server.state
