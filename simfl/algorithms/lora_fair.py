"""LoRA-FAIR: Bian et al. 2025, "LoRA-FAIR: federated LoRA fine-tuning with aggregation and initialization refinement".

client   trains A and B;   sends A_k − A, B_k − B
server   A ← Ā,   B ← B̄ + ΔB        ΔB = argmin ‖Σ p_k B_k A_k − (B̄ + ΔB) Ā‖² + λ ‖ΔB‖²

Figure 1 of the paper shows the correction on the server. The paper measures the first term by cosine similarity and
minimises by SGD. With squared distances the minimum has a closed form: ΔB = R Āᵀ (Ā Āᵀ + λ I)⁻¹ for the residual
R = Σ p_k B_k A_k − B̄ Ā.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from simfl.algorithms.low_rank import LowRank
from simfl.constraints import PositiveFloat
from simfl.protocol import AggregatedUpdates, Server, State, Weights


@dataclass(frozen=True)
class LoraFair(LowRank):
    """FedIT with B corrected on the server, so that B A comes close to the mean product without further bytes."""

    penalty: PositiveFloat = 0.01  # λ: pull of B to the mean of the clients

    def products(self) -> Literal["", "logged", "needed"]:
        """Return that products are needed."""
        return "needed"

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the mean delta with the correction of B."""
        delta = dict(self.mean_delta(aggregated))
        for pair in server.pairs:
            down = pair.factors(self.next_factors(server, aggregated, pair))[0].double()
            residual = self.residual(server, aggregated, pair)
            gram = down @ down.T + self.penalty * torch.eye(len(down), dtype=down.dtype, device=down.device)
            correction = torch.linalg.solve(gram, down @ residual.T).T
            delta[pair.up] = delta[pair.up] + correction.reshape(delta[pair.up].shape).to(delta[pair.up].dtype)
        return delta, server.state
