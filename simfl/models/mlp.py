"""A multi-layer perceptron over flattened inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from simfl.constraints import Count
from simfl.errors import ConfigError
from simfl.models import hashed
from simfl.models.adapters_base import Adapter
from simfl.models.base import Dropout, Model, default_trained, mixed, seeded
from simfl.models.dropout import install
from simfl.models.hashed import Ratio
from simfl.protocol import Outputs, Task


@dataclass(frozen=True)
class Mlp(Model):
    """Fully connected layers with GELU."""

    hidden_sizes: tuple[Count, ...] = (128,)  # of the hidden layers
    dropout: Dropout = 0.0  # after each hidden layer
    layer_norm: bool = False  # before each GELU
    adapters: Adapter | None = None  # trained in place of the rest
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32
    hash: Ratio | None = None  # γ: trained in a hashed space of this share of the weights; null: not hashed

    def __post_init__(self) -> None:
        """Refuses to hash what adapters leave frozen."""
        if self.hash is not None and self.adapters is not None:
            raise ConfigError(f"hash: {self.hash} given with adapters, beside which nothing hashed is trained")

    def build(self, task: Task) -> nn.Module:
        """The module; ConfigError where the task lacks a shape or classes."""
        shape, classes = shape_and_classes(task, "mlp")
        with seeded(task.seed):
            module = MlpNetwork(self, math.prod(shape), classes)
            if self.hash is not None:
                hashed.attach(module, self.hash, task.seed)
            if self.adapters is not None:
                self.adapters.attach(module)
        return default_trained(self, install(module).eval())

    def trains(self, module: nn.Module) -> tuple[str, ...]:
        """The adapters, if there are any."""
        return ("*",) if self.adapters is None else self.adapters.trained(module)


class MlpLayer(nn.Module):
    """Linear, normalisation if wanted, GELU, dropout."""

    def __init__(self, inputs: int, width: int, dropout: float, layer_norm: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs] to [B, width]."""
        return self.dropout(nn.functional.gelu(self.norm(self.linear(x))))


class MlpNetwork(nn.Module):
    """Hidden layers, then a linear head; `features` are the last hidden layer's."""

    heads = ("head.*",)

    def __init__(self, settings: Mlp, inputs: int, classes: int) -> None:
        super().__init__()
        sizes = (inputs, *settings.hidden_sizes)
        self.hidden_sizes, self.bf16 = settings.hidden_sizes, settings.precision == "bf16"
        self.layers = nn.ModuleList(MlpLayer(a, b, settings.dropout, settings.layer_norm) for a, b in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)

    def blocks(self) -> list[str]:
        """Names of the hidden layers, first to last."""
        return [f"layers.{number}" for number in range(len(self.layers))]

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """After each hidden layer."""
        return list(zip(self.layers, self.hidden_sizes, strict=True))

    def forward(self, x: Tensor) -> Outputs:
        """`x` [B, ...], floats or uint8 images (scaled to [0, 1])."""
        h = as_float(x).flatten(1)
        with mixed(x, self.bf16):
            for layer in self.layers:
                h = layer(h)
            logits = self.head(h)
        return Outputs(logits.float(), h.float())


def as_float(x: Tensor) -> Tensor:
    """Bytes of images as floats in [0, 1]; floats as they are."""
    return x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x


def shape_and_classes(task: Task, model: str) -> tuple[tuple[int, ...], int]:
    """Of the task; ConfigError if the data give none, as with documents."""
    if task.shape is None or task.num_classes is None:
        raise ConfigError(f"model: {model!r} reads images or features with a label; the data have none")
    return task.shape, task.num_classes
