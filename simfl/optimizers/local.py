"""Local optimizers: what a client steps with.

Any optimizer of `torch.optim` by its name in lower case, and what simfl adds; the constructor's arguments are the
settings.
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
from simfl.optimizers.direct import Stepping, direct
from simfl.optimizers.shampoo import Shampoo

LOCAL_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    cls.__name__.lower(): cls
    for cls in vars(torch.optim).values()
    if inspect.isclass(cls)
    and issubclass(cls, torch.optim.Optimizer)
    and cls.__name__ not in ("Optimizer", "SparseAdam", "LBFGS")
} | {"shampoo": Shampoo}

# Updates proportional to the rate that treat every entry alike, or know of an axis of clients, with no state but
# moments and a count of steps: several clients' tensors can be stacked. Others (a factored moment) go one by one.
STACKABLE = ("sgd", "adam", "adamw", "adamax", "radam", "adagrad", "adadelta", "rmsprop", "shampoo")


@dataclass(frozen=True)
class LocalOptimizer:
    """An optimizer of torch.optim with its settings."""

    name: str = "sgd"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in LOCAL_OPTIMIZERS:
            raise ConfigError(f"optimizer: unknown {self.name!r}; {nearest(self.name, LOCAL_OPTIMIZERS)}")
        allowed = self.allowed()
        for key in self.settings:
            if key not in allowed:
                raise ConfigError(f"optimizer.{key}: {self.name} has no such setting; {nearest(key, allowed)}")

    def allowed(self) -> list[str]:
        """The settings this optimizer takes, besides the learning rate."""
        engine = {"self", "params", "lr", "foreach", "fused", "differentiable", "capturable", "stacked"}
        return [p for p in inspect.signature(LOCAL_OPTIMIZERS[self.name]).parameters if p not in engine]

    @property
    def stackable(self) -> bool:
        """Whether one instance may step the stacked tensors of several clients."""
        return self.name in STACKABLE

    def length(self, rates: np.ndarray) -> float:
        """How far steps at these rates go along a constant gradient of 1: of SGD exactly (FedNova's a times eta).

        Other optimizers are taken to step by their rate.
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
    ) -> Stepping:
        """The optimizer over these leaf tensors, or groups of them; `stacked`: their first axis is clients.

        Torch's own class checks the settings, as it does without tensors: ValueError if one is out of range.
        """
        optimizer = direct(self.name, self.settings, tensors, learning_rate) if tensors else None
        if optimizer is not None:
            return optimizer
        constructor: Callable[..., torch.optim.Optimizer] = LOCAL_OPTIMIZERS[self.name]
        axis = {"stacked": stacked} if self.name == "shampoo" else {}
        return constructor(tensors, lr=learning_rate, **axis, **self.settings)
