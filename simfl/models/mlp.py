"""A multi-layer perceptron over flattened inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.models.adapters import Adapter
from simfl.models.base import (
    DropoutRate,
    Model,
    bf16_autocast,
    seeded,
    set_trainable,
    shape_and_classes,
    to_float,
)
from simfl.models.dropout import install_keyed_dropout
from simfl.models.hashed_weights import HashRatio, check_hash_settings, hash_weights
from simfl.protocol import Outputs, Task


@dataclass(frozen=True)
class Mlp(Model):
    """Fully connected layers with GELU."""

    hidden_sizes: tuple[PositiveInt, ...] = (128,)  # widths of the hidden layers
    dropout: DropoutRate = 0.0  # after each hidden layer
    layer_norm: bool = False  # before each GELU
    adapters: Adapter | None = None  # trained instead of the rest
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32
    hash: HashRatio | None = None  # γ: train in a hashed space of this share of the weights; null: not hashed

    def __post_init__(self) -> None:
        """Reject hashed weights together with adapters."""
        check_hash_settings(self.hash, self.adapters)

    def build(self, task: Task) -> nn.Module:
        """Build the module; raise ConfigError if the task has no shape or no classes."""
        shape, classes = shape_and_classes(task, "mlp")
        with seeded(task.seed):
            module = MlpNetwork(self, math.prod(shape), classes)
            if self.hash is not None:
                hash_weights(module, self.hash, task.seed)
            if self.adapters is not None:
                self.adapters.attach(module)
        return set_trainable(self, install_keyed_dropout(module).eval())

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return everything, or the adapters if there are any."""
        return ("*",) if self.adapters is None else self.adapters.trainable_params(module)


class MlpLayer(nn.Module):
    """Linear, optional layer norm, GELU, dropout."""

    def __init__(self, inputs: int, width: int, dropout: float, layer_norm: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs] to [B, width]."""
        return self.dropout(nn.functional.gelu(self.norm(self.linear(x))))


class MlpNetwork(nn.Module):
    """Hidden layers and a linear head; `features` are the last hidden layer's outputs."""

    heads = ("head.*",)

    def __init__(self, settings: Mlp, inputs: int, classes: int) -> None:
        super().__init__()
        sizes = (inputs, *settings.hidden_sizes)
        self.hidden_sizes, self.bf16 = settings.hidden_sizes, settings.precision == "bf16"
        self.layers = nn.ModuleList(MlpLayer(a, b, settings.dropout, settings.layer_norm) for a, b in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)

    def blocks(self) -> list[str]:
        """Return the names of the hidden layers, first to last."""
        return [f"layers.{number}" for number in range(len(self.layers))]

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """Return the hidden layers, after which a bottleneck is added, and their widths."""
        return list(zip(self.layers, self.hidden_sizes, strict=True))

    def forward(self, x: Tensor) -> Outputs:
        """Classify `x` [B, ...], floats or uint8 pixels (scaled to [0, 1])."""
        h = to_float(x).flatten(1)
        with bf16_autocast(x, self.bf16):
            for layer in self.layers:
                h = layer(h)
            logits = self.head(h)
        return Outputs(logits.float(), h.float())
