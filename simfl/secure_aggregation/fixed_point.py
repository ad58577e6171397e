"""Fixed-point numbers modulo 2^b: real numbers in [−clip, clip] as integers in [−L, L], L = 2^(v−1) − 1.

The sum of K clients is between −K·L and K·L, which the modulus must tell apart: 2·K·L < 2^b.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from simfl.errors import ConfigError
from simfl.experiment import SecureAggregation
from simfl.keyed_random import uniform


@dataclass(frozen=True)
class FixedPoint:
    """A grid of integers modulo 2^bits.

    Attributes:
        clip: Largest absolute value.
        levels: L, by which it is represented.
        bits: b.
    """

    clip: float
    levels: int
    bits: int

    def encode(self, values: Tensor, keys: Tensor | None) -> Tensor:
        """Return values [n, d] as integers in [−L, L], int64; larger values are cut.

        Args:
            values: float64 [n, d].
            keys: One key of `simfl.keyed_random` per row, for stochastic rounding; None: round to the nearest.
        """
        found = torch.empty(values.shape, dtype=torch.int64)
        for k, row in enumerate(values):  # one row fits into a cache
            found[k] = self.round_(row.clamp(-self.clip, self.clip), None if keys is None else keys[k])
        return found

    def round_(self, values: Tensor, key: Tensor | None) -> Tensor:
        """Replace one row of values, within the clip, by its integers: whole numbers in float64 [d]; see `encode`."""
        scaled = values.mul_(self.levels / self.clip)
        if key is None:
            return scaled.round_()
        return scaled.add_(uniform(key[None], len(scaled))[0]).floor_()

    def wrap(self, integers: Tensor) -> Tensor:
        """Return integers modulo 2^bits, in [0, 2^bits)."""
        return integers & ((1 << self.bits) - 1)

    def centered(self, integers: Tensor) -> Tensor:
        """Return the representatives of integers modulo 2^bits in [−2^(bits−1), 2^(bits−1))."""
        half = 1 << (self.bits - 1)
        return self.wrap(integers + half) - half

    def decode(self, integers: Tensor) -> Tensor:
        """Return the real numbers that integers, or their sum, stand for, float64."""
        return self.centered(integers).to(torch.float64) * (self.clip / self.levels)


def check_modulus(settings: SecureAggregation, num_clients: int, max_weight: int) -> None:
    """Raise ConfigError if sums of this many clients, or of their weights, may exceed the modulus."""
    most = (1 << (settings.bits - 1)) - 1
    largest = num_clients * max(settings.levels, max_weight)
    if largest <= most:
        return
    needed = largest.bit_length() + 1
    if max_weight > settings.levels:
        raise ConfigError(
            f"secure_aggregation.bits: {settings.bits} hold sums up to {most:,}, but {num_clients} clients of up to"
            f" {max_weight:,} examples may add up to {largest:,}; allowed: bits: {needed} or more, weighting: uniform"
        )
    raise ConfigError(
        f"secure_aggregation.bits: {settings.bits} hold sums of at most {most // settings.levels} clients with"
        f" value_bits: {settings.value_bits} ({settings.levels:,} levels), but a round may have {num_clients};"
        f" allowed: bits: {needed} or more"
    )
