"""FlexLoRA: Bai et al. 2024, "Federated fine-tuning of LLMs under heterogeneous tasks and client resources".

client   trains A_k and B_k of its rank r_k;   sends them
server   Σ p_k B_k A_k = U S Vᵀ        B ← U S,   A ← Vᵀ,   cut to the largest rank;   client k receives the first r_k

The singular values belong to B, so that A has orthonormal rows and directions of weight zero can still be learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from simfl.algorithms.low_rank import LowRank
from simfl.protocol import AggregatedUpdates, Server, State, Weights


@dataclass(frozen=True)
class FlexLora(LowRank):
    """The mean product, decomposed by SVD and cut to each client's rank: its best approximation of that rank.

    It is exact where the rank of the model's adapters is that of the mean product, at most the smaller side of a layer.
    """

    example: ClassVar[Mapping[str, object]] = {**LowRank.example, "algorithm.rank": {2: 0.6, 4: 0.4}}

    def products(self) -> Literal["", "logged", "needed"]:
        """Return that products are needed."""
        return "needed"

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the way from the factors to those of the decomposition."""
        delta = dict(self.mean_delta(aggregated))
        for pair in server.pairs:
            u, s, v = torch.linalg.svd(aggregated.products[pair.layer], full_matrices=False)
            for name, factor in ((pair.down, v.T), (pair.up, u * s)):
                old = server.weights[name]
                delta[name] = (
                    (_columns(factor, pair.rank, pair.down == name) - old.flatten(1)).reshape(old.shape).to(old)
                )
        return delta, server.state


def _columns(factor: torch.Tensor, rank: int, transpose: bool) -> torch.Tensor:
    """Return the first columns of a factor, with zeros where it has fewer than the rank."""
    kept = factor.new_zeros(len(factor), rank)
    kept[:, : factor.shape[1]] = factor[:, :rank]
    return kept.T if transpose else kept
