"""Local optimizers: what a client steps with.

Any optimizer of `torch.optim` by its name in lower case; its constructor's arguments are the settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from simfl.errors import ConfigError, nearest

TORCH_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    cls.__name__.lower(): cls
    for cls in vars(torch.optim).values()
    if inspect.isclass(cls)
    and issubclass(cls, torch.optim.Optimizer)
    and cls.__name__ not in ("Optimizer", "SparseAdam", "LBFGS")
}

# Updates that treat every entry alike, so several clients' tensors can be stacked. The others (a norm, a factored
# moment, a matrix root) mix entries and are stepped client by client.
ELEMENTWISE = ("sgd", "adam", "adamw", "adamax", "nadam", "radam", "adagrad", "adadelta", "rmsprop", "rprop", "asgd")


@dataclass(frozen=True)
class LocalOptimizer:
    """An optimizer of torch.optim with its settings."""

    name: str = "sgd"
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in TORCH_OPTIMIZERS:
            raise ConfigError(f"optimizer: unknown {self.name!r}; {nearest(self.name, TORCH_OPTIMIZERS)}")
        allowed = self.allowed()
        for key in self.settings:
            if key not in allowed:
                raise ConfigError(f"optimizer.{key}: {self.name} has no such setting; {nearest(key, allowed)}")

    def allowed(self) -> list[str]:
        """The settings this optimizer takes, besides the learning rate."""
        engine = {"self", "params", "lr", "foreach", "fused", "differentiable", "capturable"}
        return [p for p in inspect.signature(TORCH_OPTIMIZERS[self.name]).parameters if p not in engine]

    @property
    def stackable(self) -> bool:
        """Whether one instance may step the stacked tensors of several clients."""
        return self.name in ELEMENTWISE

    def build(self, tensors: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """The torch optimizer over these leaf tensors."""
        constructor: Callable[..., torch.optim.Optimizer] = TORCH_OPTIMIZERS[self.name]
        return constructor(tensors, lr=learning_rate, **self.settings)
