"""The small convolutional network of federated benchmarks (Reddi et al. 2021, FEMNIST; pfl-research, CIFAR10).

Two 3×3 convolutions, one pooling, one dense layer: 1,206,590 parameters on 28×28 grey images with 62 classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from torch import Tensor, nn

from simfl.constraints import Constraint, PositiveInt
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.base import Model, bf16_autocast, seeded, set_trainable, shape_and_classes, to_float
from simfl.models.dropout import install_keyed_dropout
from simfl.models.hashed_weights import HashRatio, check_hash_settings, hash_weights
from simfl.models.pooling import MeanPool, to_channels_last
from simfl.protocol import Outputs, Task

POOLS: dict[str, Callable[[], nn.Module]] = {"avg": MeanPool, "max": partial(nn.MaxPool2d, 2)}
ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}

HalfRate = Annotated[float, Constraint("a number of at least 0 and below 0.5", lambda p: 0 <= p < 0.5)]


@dataclass(frozen=True)
class Cnn(Model):
    """Two 3×3 convolutions, pooling, a dense layer and a linear head."""

    channels: tuple[PositiveInt, PositiveInt] = (32, 64)  # of the two convolutions
    hidden: PositiveInt = 128  # width of the dense layer
    pool: Literal["avg", "max"] = "avg"  # over 2×2 squares
    activation: Literal["gelu", "relu"] = "gelu"  # after every layer but the head
    dropout: HalfRate = 0.0  # after pooling, and twice that after the dense layer
    adapters: Adapter | None = None  # trained instead of the rest
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32
    hash: HashRatio | None = None  # γ: train in a hashed space of this share of the weights; null: not hashed

    def __post_init__(self) -> None:
        """Reject hashed weights together with adapters."""
        check_hash_settings(self.hash, self.adapters)

    def build(self, task: Task) -> nn.Module:
        """Build the module; raise ConfigError for a task without images."""
        shape, classes = shape_and_classes(task, "cnn")
        if len(shape) != 3:
            raise ConfigError(f"model: 'cnn' reads images [channels, height, width]; the data have shape {shape}")
        with seeded(task.seed):
            module = CnnNetwork(self, shape, classes)
            if self.hash is not None:
                hash_weights(module, self.hash, task.seed)
            if self.adapters is not None:
                self.adapters.attach(module)
        return set_trainable(self, install_keyed_dropout(module).eval())

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return everything, or the adapters if there are any."""
        return ("*",) if self.adapters is None else self.adapters.trainable_params(module)


class CnnNetwork(nn.Module):
    """The network; `features` are the dense layer's outputs [B, hidden]."""

    heads = ("head.*",)

    def __init__(self, settings: Cnn, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.shape, (first, second) = tuple(shape), settings.channels
        self.bf16 = settings.precision == "bf16"
        self.conv1 = nn.Conv2d(shape[0], first, 3)
        self.conv2 = nn.Conv2d(first, second, 3)
        self.activation = ACTIVATIONS[settings.activation]()
        self.pool = POOLS[settings.pool]()
        self.dropout1 = nn.Dropout(settings.dropout)
        self.dense = nn.Linear(second * ((shape[1] - 4) // 2) * ((shape[2] - 4) // 2), settings.hidden)
        self.dropout2 = nn.Dropout(2 * settings.dropout)
        self.head = nn.Linear(settings.hidden, classes)

    def blocks(self) -> list[str]:
        """Return the names of the layers below the head, first to last."""
        return ["conv1", "conv2", "dense"]

    def forward(self, x: Tensor) -> Outputs:
        """Classify `x` [B, C, H, W] or flat [B, C·H·W], floats or uint8 pixels (scaled to [0, 1])."""
        with bf16_autocast(x, self.bf16):
            h = self.activation(self.conv1(to_channels_last(to_float(x).reshape(len(x), *self.shape))))
            h = self.pool(self.activation(self.conv2(h)))
            h = self.activation(self.dense(self.dropout1(h).flatten(1)))
            logits = self.head(self.dropout2(h))
        return Outputs(logits.float(), h.float())
