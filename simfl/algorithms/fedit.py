"""FedIT: Zhang et al. 2024, "Towards building the federated GPT: federated instruction tuning".

client   trains A and B;   sends A_k − A, B_k − B
server   A ← Ā,   B ← B̄        (means of the factors, which are not those of their products)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.low_rank import LowRank


@dataclass(frozen=True)
class FedIT(LowRank):
    """FedAvg of the factors of low-rank adapters, with its deviation from the mean product logged.

    Clients of smaller rank count as zeros beyond their rank.
    """

    fedavg_limit: ClassVar[str] = "equal ranks"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {}
