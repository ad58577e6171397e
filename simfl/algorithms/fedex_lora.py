"""FedEx-LoRA: Singhal et al. 2025, "FedEx-LoRA: exact aggregation for federated and efficient fine-tuning of LLMs".

client   trains A and B;   sends A_k − A, B_k − B
server   A ← Ā,   B ← B̄,   W ← W + s (Σ p_k B_k A_k − B̄ Ā)

so that W + s B A = W₀ + s Σ p_k B_k A_k for the W₀ that the clients started from. The residual is
Σ p_k (B_k − B_j)(A_k − Ā) for any j: its rank is at most the sum of the ranks of all clients but one. It is sent as
factors of that rank with the next download.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from simfl.algorithms.low_rank import LowRank
from simfl.protocol import AggregatedUpdates, Server, Weights


@dataclass(frozen=True)
class FedExLora(LowRank):
    """FedIT with the residual of the products added to the frozen weights, so that the aggregate is exact.

    It is exact with the server optimizer `sgd` at rate 1; another one steps A and B away from their means.
    """

    changes_base: ClassVar[bool] = True

    def products(self) -> Literal["", "logged", "needed"]:
        """Return that products are needed."""
        return "needed"

    def base_change(self, server: Server, aggregated: AggregatedUpdates) -> Weights:
        """Return s (Σ p_k B_k A_k − B̄ Ā) of each pair."""
        return {pair.base: pair.change(self.residual(server, aggregated, pair)) for pair in server.pairs}

    def base_rank(self, ranks: Sequence[int]) -> int:
        """Return the largest rank of the residual."""
        return sum(ranks) - min(ranks)
