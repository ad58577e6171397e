"""Convolutional encoders of word images [B, 3, 32, 100]: ASTER's ResNet, and ShuffleNetV2 (Ma et al. 2018).

Both output a row of vectors [B, S, D]: height shrinks 32 times, width 4 times. FedOCR does not specify ShuffleNet's
strides; here they follow ASTER's: both axes twice, then height alone.

Batch norm has running statistics and mixes examples, so clients are trained in `sequential` mode; group norm
(`norm: group`, the same parameters) also trains in `vectorized` mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

NormKind = Literal["batch", "group"]
MAX_NORM_GROUPS = 8  # each of 4 channels or more


def norm_layer(kind: NormKind, channels: int, dim: int = 2) -> nn.Module:
    """Build batch or group normalization; `dim` is the number of image axes."""
    if kind == "group":
        return nn.GroupNorm(math.gcd(min(MAX_NORM_GROUPS, max(channels // 4, 1)), channels), channels)
    return nn.BatchNorm2d(channels) if dim == 2 else nn.BatchNorm1d(channels)


class ResidualBlock(nn.Module):
    """A 1×1 convolution with the stride, a 3×3 convolution, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: tuple[int, int], kind: NormKind) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.bn1 = norm_layer(kind, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm_layer(kind, outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != (1, 1) or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, norm_layer(kind, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H/stride, W/stride]."""
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.downsample(x))


class ResNet(nn.Module):
    """ASTER's 45 layers at full size: 12,994,784 parameters."""

    def __init__(self, channels: Sequence[int], blocks: Sequence[int], kind: NormKind) -> None:
        super().__init__()
        first = nn.Conv2d(3, channels[0], 3, 1, 1, bias=False)
        self.layer0 = nn.Sequential(first, norm_layer(kind, channels[0]), nn.ReLU())
        strides = ((2, 2), (2, 2), (2, 1), (2, 1), (2, 1))
        for number, stride in enumerate(strides, start=1):
            inputs, outputs = channels[number - 1], channels[number]
            layers = [ResidualBlock(inputs, outputs, stride, kind)]
            layers += [ResidualBlock(outputs, outputs, (1, 1), kind) for _ in range(blocks[number - 1] - 1)]
            self.add_module(f"layer{number}", nn.Sequential(*layers))
        self.width = channels[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, 3, 32, W] to [B, W/4, D]."""
        for layer in self.children():
            x = layer(x)
        return x.squeeze(2).transpose(1, 2)


class ShuffleUnit(nn.Module):
    """1×1, depth-wise 3×3 and 1×1 convolutions of half of the channels, or of all with a stride; then a shuffle."""

    def __init__(self, inputs: int, outputs: int, stride: tuple[int, int], kind: NormKind) -> None:
        super().__init__()
        half, self.split = outputs // 2, stride == (1, 1)
        if not self.split:
            self.branch1 = nn.Sequential(
                nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), norm_layer(kind, inputs),
                nn.Conv2d(inputs, half, 1, bias=False), norm_layer(kind, half), nn.ReLU(),
            )  # fmt: skip
        self.branch2 = nn.Sequential(
            nn.Conv2d(half if self.split else inputs, half, 1, bias=False), norm_layer(kind, half), nn.ReLU(),
            nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False), norm_layer(kind, half),
            nn.Conv2d(half, half, 1, bias=False), norm_layer(kind, half), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H/stride, W/stride]."""
        first, second = x.chunk(2, 1) if self.split else (self.branch1(x), x)
        joined = torch.cat([first, self.branch2(second)], 1)
        return joined.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class ShuffleNet(nn.Module):
    """ShuffleNetV2's trunk: 5,344,996 parameters at double width."""

    def __init__(self, channels: Sequence[int], blocks: Sequence[int], kind: NormKind) -> None:
        super().__init__()
        first, last = channels[0], channels[-1]
        self.conv1 = nn.Sequential(nn.Conv2d(3, first, 3, 2, 1, bias=False), norm_layer(kind, first), nn.ReLU())
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for number, (inputs, outputs, count) in enumerate(zip(channels, channels[1:-1], blocks, strict=False), start=2):
            units = [ShuffleUnit(inputs, outputs, (2, 1), kind)]
            units += [ShuffleUnit(outputs, outputs, (1, 1), kind) for _ in range(count - 1)]
            self.add_module(f"stage{number}", nn.Sequential(*units))
        self.conv5 = nn.Sequential(nn.Conv2d(channels[-2], last, 1, bias=False), norm_layer(kind, last), nn.ReLU())
        self.width = last

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, 3, 32, W] to [B, W/4, D]."""
        for layer in self.children():
            x = layer(x)
        return x.squeeze(2).transpose(1, 2)


def init_convolutions(module: nn.Module) -> None:
    """Initialize convolutions by He's method over the outputs, as both papers' codes do."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
