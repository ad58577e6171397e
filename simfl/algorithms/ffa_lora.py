"""FFA-LoRA: Sun et al. 2024, "Improving LoRA in privacy-preserving federated learning".

A stays at its random start, the same for all clients:

client   trains B;   sends B_k − B
server   B ← B̄,   so that B A = Σ p_k B_k A is exact

The update is linear in what is sent: noise on B is noise on B A, without the product of two noises. It is the method
for differential privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from simfl.algorithms.low_rank import DOWN, LowRank


@dataclass(frozen=True)
class FfaLora(LowRank):
    """FedAvg of B with A frozen: exact, half the bytes of FedIT, and sound under differential privacy.

    The deviation from the mean product is zero and not logged.
    """

    frozen_params: ClassVar[tuple[str, ...]] = (DOWN,)

    def products(self) -> Literal["", "logged", "needed"]:
        """Return that products are not used."""
        return ""
