"""DP-FedAvg: McMahan et al. 2018, "Learning differentially private recurrent language models".

w  received model      S  privacy.clip      q·K  expected clients of a round      sigma  privacy.noise_multiplier

client   send Δ_k = w_k − w, clipped to S
server   w ← w + (ΣΔ_k + N(0, (sigma S)²)) / (q·K)

The paper samples each client independently (`poisson`), divides by the expected number (`denominator: fixed`) and
trusts its server (`noise: central`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm


@dataclass(frozen=True)
class DpFedAvg(Algorithm):
    """Client-level privacy: each delta is clipped, and the server or every client adds noise."""

    privacy_unit: ClassVar[str | None] = "client"
    example: ClassVar[Mapping[str, object]] = {
        "privacy": {"unit": "client", "clip": 5.0, "noise_multiplier": 0.01, "noise_seed": 0, "adjacency": "zero_out"},
        "weighting": "uniform",
    }
