"""FedAvg: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging: the mean of the clients' deltas, weighted by examples or uniform (`weighting`)."""

    fedavg_limit: ClassVar[str] = "always"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {}
