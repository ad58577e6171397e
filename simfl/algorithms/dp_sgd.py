"""DP-SGD clients: Abadi et al. 2016, "Deep learning with differential privacy", within federated averaging.

    C  privacy.clip      B  local.batch_size      sigma  privacy.noise_multiplier      L  a Poisson sample at rate B / n

    local step   g = (Σ over L of the example's gradient, clipped to C + N(0, (sigma C)²)) / B,  then the optimizer's

What a client sends follows from noised gradients alone, so the server need not be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm


@dataclass(frozen=True)
class DpSgd(Algorithm):
    """Single examples are hidden: clients train with gradients clipped example by example and noised."""

    privacy_unit: ClassVar[str | None] = "record"
