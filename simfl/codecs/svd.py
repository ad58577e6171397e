"""Low rank: the largest singular values of each matrix that hold enough of its energy (FedKD, Wu et al. 2022, eq. 8-9).

energy(t) = T_start + (T_end − T_start)·t          t: progress of the phase, 0 in its first round, 1 in its last
rank      = the least r with σ_1² + … + σ_r² ≥ energy(t)·Σσ²

The payload of a matrix [p, q] is its rank (int32), then U [p, r], σ [r] and V [q, r] in float32; or −1 and the matrix,
if that is shorter. A tensor of more axes is a matrix of its first axis and the rest; vectors are sent in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.codecs.base import Codec, MessageContext
from simfl.codecs.payload import as_bytes, as_values
from simfl.constraints import Fraction

WHOLE = -1  # in place of a rank
ROUNDING = 1e-12  # fraction of the energy below the precision of float32 singular values


@dataclass(frozen=True)
class Svd(Codec):
    """The singular values that hold this fraction of a matrix's energy: error √(1 − energy) of its norm."""

    energy: Fraction = 0.95  # T_start: fraction of Σσ² that is kept in the first round
    final_energy: Fraction = 0.98  # T_end: the same in the last round of the phase; linear in between

    variable_size: ClassVar[bool] = True
    idempotent: ClassVar[bool] = False  # the factors of a decoded product differ in their last bits

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Sequence[Tensor]:
        """Return the factors, matrix by matrix, so that the bytes do not depend on how many clients are stacked."""
        if not _is_matrix(shape):
            return as_bytes(values).unbind()
        matrices = values.reshape(len(values), shape[0], -1)
        return [self._factors(one, context.progress) for one, context in zip(matrices, contexts, strict=True)]

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return U·diag(σ)·Vᵀ, or the values that were sent unfactored."""
        if not _is_matrix(shape):
            return as_values(torch.stack(list(packed)), torch.float32)
        rows, columns = shape[0], math.prod(shape[1:])
        return torch.stack([_product(one, rows, columns).reshape(-1) for one in packed])

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Return the maximum: 4 bytes a value and 4 for the rank."""
        return 4 * math.prod(shape) + (4 if _is_matrix(shape) else 0)

    def error_bound(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return √(1 − energy) of the norm plus the rounding of float32 factors; 0 for a vector."""
        if not _is_matrix(shape):
            return values.new_zeros(len(values))
        energies = [self._energy(context.progress) for context in contexts]
        return torch.tensor([(1 - e) ** 0.5 + 1e-4 for e in energies], device=values.device) * values.norm(dim=1)

    def rank(self, singular: Tensor, progress: float) -> int:
        """Return how many of these singular values, in descending order, are sent at this progress of the phase."""
        energy = self._energy(progress)
        held = singular.to(torch.float64).square().cumsum(0)
        return int((held < held[-1] * (energy - ROUNDING)).sum()) + 1 if float(held[-1]) > 0.0 else 0

    def _energy(self, progress: float) -> float:
        return self.energy + (self.final_energy - self.energy) * progress

    def _factors(self, matrix: Tensor, progress: float) -> Tensor:
        rows, columns = matrix.shape
        u, singular, v = torch.linalg.svd(matrix, full_matrices=False)
        rank = self.rank(singular, progress)
        if rank * (rows + columns + 1) >= rows * columns:
            rank, parts = WHOLE, [matrix]
        else:
            parts = [u[:, :rank], singular[:rank], v[:rank].T]
        body = torch.cat([part.reshape(-1) for part in parts])
        header = torch.tensor([[rank]], dtype=torch.int32, device=matrix.device)
        return torch.cat([as_bytes(header)[0], as_bytes(body[None])[0]])


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) >= 2 and shape[0] > 1 and math.prod(shape[1:]) > 1


def _product(payload: Tensor, rows: int, columns: int) -> Tensor:
    rank = int(as_values(payload[None, :4], torch.int32))
    body = as_values(payload[None, 4:], torch.float32)[0]
    if rank == WHOLE:
        return body.reshape(rows, columns)
    u, singular, v = body.split([rows * rank, rank, columns * rank])
    return (u.reshape(rows, rank) * singular) @ v.reshape(columns, rank).T
