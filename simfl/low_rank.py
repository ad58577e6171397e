"""Low-rank pairs: the factors A and B of adapted layers, their products, and their truncation to a client's rank.

An adapted layer computes with W + scaling · B A. A client of rank k trains the first k rows of A and the first k
columns of B. In memory its factors have the full rank, with zeros beyond k: these have zero gradients, so that they
stay zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simfl.weights import Weights

RANK_AXES = {"lora_A": 0, "lora_embedding_A": 0, "lora_B": 1, "lora_embedding_B": 1}  # of a factor, by its table
FULL_RANK = 1 << 30  # rank of a client whose adapters have the full rank


@dataclass(frozen=True)
class LowRankPair:
    """Two trained factors of a layer whose product changes a frozen tensor: W + scaling · B A.

    `down` is the name of A, whose first axis is the rank; `up` that of B, whose second axis is the rank.

    Attributes:
        layer: Name of the layer.
        base: Name of W.
        down: Name of A, [r, in] or, for a convolution, [r, in, height, width].
        up: Name of B, [out, r] or [out, r, 1, 1].
        scaling: Factor of the product.
        rank: r.
        shape: Shape of W.
        transposed: Whether W is the transpose of the product, as in embeddings.
    """

    layer: str
    base: str
    down: str
    up: str
    scaling: float
    rank: int
    shape: tuple[int, ...]
    transposed: bool = False

    @property
    def names(self) -> tuple[str, str]:
        """Names of A and B."""
        return self.down, self.up

    @property
    def values_per_rank(self) -> int:
        """Numbers of A and B together for each rank."""
        return self.rows + self.columns

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return math.prod(self.shape) // self.rows

    @property
    def rows(self) -> int:
        """Rows of the product."""
        return math.prod(self.shape[1:]) if self.transposed else self.shape[0]

    def factors(self, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return A [r, columns] and B [rows, r] as matrices."""
        return weights[self.down].flatten(1), weights[self.up].flatten(1)

    def product(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return B A, float64 [rows, columns]: float32 products would be rounded to TF32 on some GPUs."""
        down, up = self.factors(weights)
        return up.double() @ down.double()

    def change(self, product: Tensor) -> Tensor:
        """Return the change of W for a product [rows, columns], in the shape of W."""
        scaled = self.scaling * product
        return (scaled.T if self.transposed else scaled).reshape(self.shape)


def rank_axis(name: str) -> int | None:
    """Return the axis of the rank in a tensor with this name; None for tensors that are no factor of a pair."""
    return next((RANK_AXES[part] for part in reversed(name.split(".")) if part in RANK_AXES), None)


def is_down(name: str) -> bool:
    """Return whether a tensor with this name is a factor A."""
    return rank_axis(name) == 0


def up_name(down: str) -> str:
    """Return the name of B for that of A."""
    head, _, tail = down.rpartition("A.")
    return f"{head}B.{tail}"


def truncated(name: str, tensor: Tensor, rank: Tensor) -> Tensor:
    """Return a tensor with zeros beyond a rank; tensors that are no factor stay as they are."""
    axis = rank_axis(name)
    if axis is None:
        return tensor
    kept = torch.arange(tensor.shape[axis], device=tensor.device) < rank
    return torch.where(kept.reshape([-1 if i == axis else 1 for i in range(tensor.dim())]), tensor, 0.0)


def mean_products(pairs: Sequence[LowRankPair], stacked: Mapping[str, Tensor], weights: Sequence[float]) -> Weights:
    """Return the weighted mean of the products of each pair, by layer, from factors stacked over K clients [K, ...].

    The sum over clients is one matrix product, of B stacked along its columns with A stacked along its rows.
    """
    shares = torch.tensor(weights, dtype=torch.float64)
    shares = shares / shares.sum()
    found: Weights = {}
    for pair in pairs:
        down, up = stacked[pair.down].double(), stacked[pair.up].double()
        rows = down.flatten(2).flatten(0, 1)  # [K r, columns]
        columns = (up.flatten(2) * shares.to(up.device)[:, None, None]).transpose(0, 1).flatten(1)  # [rows, K r]
        found[pair.layer] = columns @ rows
    return found
