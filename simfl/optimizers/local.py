"""Local optimizers: the optimizers of clients.

They are those of `torch.optim`, by their name in lower case, and those that simfl adds. The arguments of the
constructor are the settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simfl.errors import ConfigError, nearest
from simfl.optimizers.foreach import OptimizerLike, build_foreach
from simfl.optimizers.shampoo import Shampoo

LOCAL_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    cls.__name__.lower(): cls
    for cls in vars(torch.optim).values()
    if inspect.isclass(cls)
    and issubclass(cls, torch.optim.Optimizer)
    and cls.__name__ not in ("Optimizer", "SparseAdam", "LBFGS")
} | {"shampoo": Shampoo}

# Optimizers that can step the stacked tensors of several clients: their updates are proportional to the learning rate,
# they treat every entry alike or know the axis of clients, and their state is moments and a step count.
STACKABLE = ("sgd", "adam", "adamw", "adamax", "radam", "adagrad", "adadelta", "rmsprop", "shampoo")


@dataclass(frozen=True)
class LocalOptimizer:
    """A local optimizer with its settings."""

    name: str = "sgd"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown optimizer or setting."""
        if self.name not in LOCAL_OPTIMIZERS:
            raise ConfigError(f"optimizer: unknown {self.name!r}; {nearest(self.name, LOCAL_OPTIMIZERS)}")
        allowed = self.allowed_settings()
        for key in self.settings:
            if key not in allowed:
                raise ConfigError(f"optimizer.{key}: {self.name} has no such setting; {nearest(key, allowed)}")

    def allowed_settings(self) -> list[str]:
        """Return the names of this optimizer's settings except the learning rate."""
        reserved = {"self", "params", "lr", "foreach", "fused", "differentiable", "capturable", "stacked"}
        return [p for p in inspect.signature(LOCAL_OPTIMIZERS[self.name]).parameters if p not in reserved]

    def setting(self, name: str) -> object:
        """Return a setting, or torch's default of it; None if the optimizer has no such setting."""
        parameters = inspect.signature(LOCAL_OPTIMIZERS[self.name]).parameters
        return self.settings.get(name, parameters[name].default if name in parameters else None)

    @property
    def stackable(self) -> bool:
        """Return whether one instance can step the stacked tensors of several clients."""
        return self.name in STACKABLE

    def total_rate(self, rates: np.ndarray) -> float:
        """Return the distance that steps at these rates cover along a constant gradient of 1 (FedNova's a times eta).

        It is exact for SGD, with momentum or without. Other optimizers count with the sum of rates.
        """
        if self.name != "sgd" or not self.settings.get("momentum"):
            return float(rates.sum())
        momentum, dampening = (float(self.settings.get(key, 0.0)) for key in ("momentum", "dampening"))
        kept = momentum ** np.arange(len(rates))
        velocity = kept + (1.0 - dampening) * (1.0 - kept) / (1.0 - momentum)
        steps = 1.0 + momentum * velocity if self.settings.get("nesterov") else velocity
        return float((rates * steps).sum())

    def build(
        self, tensors: Sequence[Tensor | dict[str, Any]], learning_rate: float, stacked: bool = False
    ) -> OptimizerLike:
        """Return an optimizer over these leaf tensors, or groups of them.

        Args:
            tensors: Leaf tensors or groups; without tensors, torch's class only checks the settings.
            learning_rate: The learning rate.
            stacked: Whether the first axis of every tensor is clients.

        Raises:
            ValueError: A setting is out of range.
        """
        optimizer = build_foreach(self.name, self.settings, tensors, learning_rate) if tensors else None
        if optimizer is not None:
            return optimizer
        constructor: Callable[..., torch.optim.Optimizer] = LOCAL_OPTIMIZERS[self.name]
        axis = {"stacked": stacked} if self.name == "shampoo" else {}
        return constructor(tensors, lr=learning_rate, **axis, **self.settings)
