"""DP-SGD clients: Abadi et al. 2016, "Deep learning with differential privacy", within federated averaging.

C  privacy.clip      B  local.batch_size      sigma  privacy.noise_multiplier      L  a Poisson sample at rate B / n

local step   g = (Σ over L of the example's gradient, clipped to C + N(0, (sigma C)²)) / B,  then the optimizer's step

Uploads depend on noisy gradients alone, so the server need not be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm


@dataclass(frozen=True)
class DpSgd(Algorithm):
    """Example-level privacy: clients clip the gradient of each example and add noise to their sum."""

    privacy_unit: ClassVar[str | None] = "record"
    example: ClassVar[Mapping[str, object]] = {
        "privacy": {"unit": "record", "clip": 1.0, "noise_multiplier": 0.1, "noise_seed": 0},
        "weighting": "uniform",
        "personal_params": [],
    }
