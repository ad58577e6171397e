"""ASTER's rectifier: a network predicts control points along a word's edges, and a thin-plate spline straightens it.

Jaderberg et al. 2015 (spatial transformers), Shi et al. 2018. The sampler's corners are pixel centres
(`align_corners=True`), as in the training of the published weights.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from simfl.models.word_encoder import NormKind, norm_layer

INPUT_SIZE = (32, 64)  # height and width that the network reads
INITIAL_MARGIN = 0.01  # of the control points before training


class Rectifier(nn.Module):
    """A convolutional network and a spline; 1,854,760 parameters at full size and 20 points."""

    def __init__(self, channels: tuple[int, ...], dense: int, points: int, margin: float, kind: NormKind) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in zip((3, *channels), channels, strict=False):
            block = (nn.Conv2d(inputs, outputs, 3, 1, 1), norm_layer(kind, outputs), nn.ReLU())
            layers += [nn.Sequential(*block), nn.MaxPool2d(2)]
        self.convs = nn.Sequential(*layers[:-1])  # outputs 1 × 2
        self.dense = nn.Sequential(nn.Linear(2 * channels[-1], dense), norm_layer(kind, dense, dim=1), nn.ReLU())
        self.points = nn.Linear(dense, 2 * points)
        self.output = (32, 100)
        inverse, basis = spline_matrices(edge_points(points, margin), self.output)
        self.inverse = nn.Buffer(torch.from_numpy(inverse), persistent=False)
        self.places = nn.Buffer(torch.from_numpy(basis), persistent=False)
        self._init_weights(points)

    def _init_weights(self, points: int) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=(2.0 / (9 * layer.out_channels)) ** 0.5)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # all have a bias
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.001)
                nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.points.weight)
        with torch.no_grad():
            self.points.bias.copy_(torch.from_numpy(edge_points(points, INITIAL_MARGIN)).flatten())

    def forward(self, x: Tensor) -> Tensor:
        """Straighten pixels [B, 3, H, W] to [B, 3, 32, 100]."""
        small = functional.interpolate(x, INPUT_SIZE, mode="bilinear", align_corners=True)
        control = self.points(0.1 * self.dense(self.convs(small).flatten(1))).unflatten(1, (-1, 2))  # [B, points, 2]
        padded = functional.pad(control, (0, 0, 0, 3))
        grid = (self.places @ (self.inverse @ padded)).clamp(0.0, 1.0) * 2.0 - 1.0
        return functional.grid_sample(x, grid.unflatten(1, self.output), align_corners=True)


def edge_points(count: int, margin: float) -> np.ndarray:
    """Return points (x, y) in [0, 1], float32 [count, 2]: half along the upper edge, half along the lower."""
    x = np.linspace(margin, 1.0 - margin, count // 2)
    upper, lower = np.full_like(x, margin), np.full_like(x, 1.0 - margin)
    return np.concatenate([np.stack([x, upper], 1), np.stack([x, lower], 1)]).astype(np.float32)


def spline_matrices(points: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the two constant matrices, `inverse` and `basis`, of a thin-plate spline through `points` [n, 2].

    With c [n + 3, 2] the control points followed by three zeros, `basis` @ (`inverse` @ c) are the source coordinates
    of the H·W pixels of `shape`.
    """
    n = len(points)
    kernel = np.zeros((n + 3, n + 3))
    kernel[:n, :n] = _radial_basis(points, points)
    kernel[:n, n], kernel[n, :n] = 1.0, 1.0
    kernel[:n, n + 1 :], kernel[n + 1 :, :n] = points, points.T
    y, x = np.meshgrid(np.linspace(0, 1, shape[0]), np.linspace(0, 1, shape[1]), indexing="ij")
    pixels = np.stack([x.ravel(), y.ravel()], 1)
    basis = np.concatenate([_radial_basis(pixels, points), np.ones((len(pixels), 1)), pixels], 1)
    return np.linalg.inv(kernel).astype(np.float32), basis.astype(np.float32)


def _radial_basis(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return ½ r² log r² of all distances, 0 at 0."""
    square = ((a[:, None].astype(np.float64) - b[None]) ** 2).sum(-1)
    return 0.5 * square * np.log(np.where(square == 0, 1.0, square))
