"""FedSA-LoRA: Guo et al. 2025, "Selective aggregation for low-rank adaptation in federated learning".

client   trains A and its own B_k;   sends A_k − A alone
server   A ← Ā

A holds what clients have in common, and B what is particular to each; clients are evaluated with their own B_k.
Figure 1 of the paper shows which factor is trained and which is sent, here and in FFA-LoRA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from simfl.algorithms.low_rank import UP, LowRank


@dataclass(frozen=True)
class FedSaLora(LowRank):
    """FedAvg of A, with B personal: half the bytes of FedIT. Evaluate the model `personal`.

    No product of all clients exists, so that there is no deviation to be logged.
    """

    personal_params: ClassVar[tuple[str, ...]] = (UP,)

    def products(self) -> Literal["", "logged", "needed"]:
        """Return that products are not used."""
        return ""
