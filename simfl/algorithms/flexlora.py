"""FlexLoRA: Bai et al. 2024, "Federated fine-tuning of LLMs under heterogeneous tasks and client resources".

client   trains A_k and B_k of its rank r_k;   sends them
server   Σ p_k B_k A_k = U S Vᵀ        B ← U S,   A ← Vᵀ,   cut to the largest rank;   client k receives the first r_k

The singular values belong to B, so that A has orthonormal rows and directions of weight zero can still be learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simfl.algorithms.low_rank import LowRank
from simfl.protocol import AggregatedUpdates, Server, State, Weights

OVERSAMPLED = 8  # random combinations beyond the rank, so that they are well conditioned
LARGE = 1024  # size of a matrix from which the GPU decomposes it


@dataclass(frozen=True)
class FlexLora(LowRank):
    """The mean product, decomposed by SVD and cut to each client's rank: its best approximation of that rank.

    It is exact where the rank of the model's adapters is that of the mean product, at most the smaller side of a layer.
    """

    assigns: ClassVar[bool] = True
    example: ClassVar[Mapping[str, object]] = {**LowRank.example, "algorithm.rank": {2: 0.6, 4: 0.4}}

    def products(self) -> Literal["", "logged", "needed"]:
        """Return that products are needed."""
        return "needed"

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the way from the factors to those of the decomposition."""
        delta = dict(self.mean_delta(aggregated))
        for pair in server.pairs:
            product = aggregated.products[pair.layer]
            right = right_singular(product, pair.rank, sum(aggregated.ranks))
            for name, factor in ((pair.down, right.T), (pair.up, product @ right)):
                old = server.weights[name]
                delta[name] = (factor.reshape(old.shape) - old.double()).to(old)
        return delta, server.state


def right_singular(product: Tensor, rank: int, most: int) -> Tensor:
    """Return the first right singular vectors [n, rank] of a product [m, n], then zeros where there are fewer.

    Args:
        product: A matrix in float64.
        rank: Number of vectors.
        most: Bound of the rank of the product, such as the sum of the ranks of its terms.

    Random combinations of its rows, as many as `most`, span all of them (Halko et al. 2011, Algorithm 4.1), and the
    vectors follow from a Gram matrix of that size: singular values below 1e-8 of the largest one may be mixed, so the
    error of product · V Vᵀ is of that size. Small decompositions are made on the CPU: on a GPU they are thousands of
    tiny kernels, which take minutes where several processes share it.
    """
    size, basis = min(most + OVERSAMPLED, *product.shape), None
    where = product.device if size > LARGE else torch.device("cpu")
    if size < product.shape[1]:
        mixing = torch.randn(len(product), size, dtype=product.dtype, generator=torch.Generator().manual_seed(0))
        basis = torch.linalg.qr((product.T @ mixing.to(product.device)).to(where)).Q.to(product.device)
    small = product if basis is None else product @ basis
    vectors = torch.linalg.eigh((small.T @ small).to(where)).eigenvectors.flip(1)[:, :rank].to(product.device)
    vectors = vectors if basis is None else basis @ vectors
    return torch.nn.functional.pad(vectors, (0, rank - vectors.shape[1]))
