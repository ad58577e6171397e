"""HetLoRA: Cho et al. 2024, "Heterogeneous LoRA for federated fine-tuning of on-device foundation models".

n_k   ‖B_k A_k‖ over all layers, Frobenius norm        A_k, B_k are zero beyond the rank r_k of their client
client   trains the first r_k rows of A and columns of B;   loss + λ ‖A_k[γ r_k:]‖ ‖B_k[γ r_k:]‖
server   A ← Σ n_k A_k / Σ n_k,   B ← Σ n_k B_k / Σ n_k;   client k receives the first r_k

Truncation, zero padding and weights by norms are the paper's Figure 2. It also lowers a client's rank to γ r_k when the
penalised norm has fallen. Here ranks are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.algorithms.low_rank import LowRank
from simfl.constraints import NonNegativeFloat, ProperFraction
from simfl.low_rank import is_down, rank_axis, up_name
from simfl.protocol import AggregatedUpdates, Batch, ClientUpdate, Loss, Outputs, Parts, State, Weights


@dataclass(frozen=True)
class HetLora(LowRank):
    """Adapters of different ranks, cut to each client's rank and weighted by the norm of what it has learned."""

    penalty: NonNegativeFloat = 0.0  # λ: of the last rows and columns of a client's adapters
    kept: ProperFraction = 0.99  # γ: share of a client's rank that is not penalised

    reduce: ClassVar[Mapping[str, str]] = {"weights": "clients", "scale": "clients"}
    example: ClassVar[Mapping[str, object]] = {**LowRank.example, "algorithm.rank": {2: 0.6, 4: 0.4}}

    def has_contributions(self) -> bool:
        """Return that the server weights uploads by their norms."""
        return True

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss with the penalty."""
        if not self.penalty:
            return super().loss(outputs, batch, trained, received, state, update)
        terms = [_tail(trained, name, update.rank, self.kept) for name in trained if is_down(name)]
        return Loss.from_outputs(outputs["student"], client_term=self.penalty * torch.stack(terms).sum())

    def contribution(self, sent: Parts, received: Parts, update: ClientUpdate) -> Parts:
        """Return n_k times the client's factors minus those of the server, and n_k."""
        known, terms = self.known_weights(sent, received, update), super().contribution(sent, received, update)
        squares = [squared_product_norm(known[name], known[up_name(name)]) for name in known if is_down(name)]
        scale = torch.stack(squares).sum().sqrt()
        return {"weights": {name: scale * d for name, d in terms["weights"].items()}, "scale": {"scale": scale}}

    def mean_delta(self, aggregated: AggregatedUpdates) -> Weights:
        """Return the mean weighted by n_k."""
        scale = aggregated.means["scale"]["scale"].clamp_min(1e-30)
        return {name: d / scale for name, d in aggregated.means["weights"].items()}


def squared_product_norm(down: Tensor, up: Tensor) -> Tensor:
    """Return ‖B A‖², from the Gram matrices of the factors."""
    down, up = down.flatten(1), up.flatten(1)
    return ((down @ down.T) * (up.T @ up)).sum().clamp_min(0.0)


def _tail(trained: Weights, name: str, rank: Tensor, kept: float) -> Tensor:
    """Return the product of the norms of A and B beyond a share of the rank."""
    norms = []
    for one in (name, up_name(name)):
        axis, tensor = rank_axis(one), trained[one]
        assert axis is not None
        size = tensor.shape[axis]
        first = (rank.clamp_max(size).to(tensor.dtype) * kept).floor()
        row = torch.arange(size, device=tensor.device)
        beyond = torch.where(row >= first, 1.0, 0.0).reshape([-1 if i == axis else 1 for i in range(tensor.dim())])
        norms.append(((tensor * beyond).square().sum() + 1e-24).sqrt())  # the gradient of a norm of zero is NaN
    return norms[0] * norms[1]
