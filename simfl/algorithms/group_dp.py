"""FL-GROUP-DP: Marathe and Kanani 2022, Galli et al. 2023, as the baseline of PFL-DocVQA's Track 2 (Tito et al. 2024).

w  received model    G  a sampled group    S  privacy.clip    M  privacy.groups_per_client    sigma  noise multiplier

client   for each of M groups: Δ_G = LocalOpt(G, w) − w, clipped to S;   send (ΣΔ_G + N(0, (sigma S)²)) / M
server   w ← w + mean of the uploads, or a step of another server optimizer with it

The engine clips, adds noise and divides. Settings of the paper: 5 rounds of 2 of 10 clients, AdamW at 2e-4, batch 10,
S 0.5, M 50. The winner of the track trained LoRA of rank 16 in 30 rounds with M 45; its code, unlike the paper, has
FedAdam (1e-2, beta2 0.99) on the server, local rate 5e-3 and batch 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm


@dataclass(frozen=True)
class GroupDp(Algorithm):
    """Group-level privacy for groups within a client (providers): each group is trained, clipped and summed alone."""

    privacy_unit: ClassVar[str | None] = "group"
    example: ClassVar[Mapping[str, object]] = {
        "privacy": {"unit": "group", "clip": 5.0, "noise_multiplier": 0.01, "noise_seed": 0, "groups_per_client": 2},
        "weighting": "uniform",
        "personal_params": [],
    }
