"""SGD and Adam without torch's optimizer classes, bit-identical to `torch.optim`.

For a small model, the hooks and profiling of torch's own `step` take longer than its gradient, and the first optimizer
of a process imports torch's compiler, which takes two seconds.

    w   weights        g   gradient        eta   learning rate
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

Groups = Sequence[Tensor | dict[str, Any]]


class OptimizerLike(Protocol):
    """The part of torch's optimizer interface that the engine uses."""

    param_groups: list[dict[str, Any]]  # tensors and learning rate
    state: Any  # tensor -> moments by name

    def step(self) -> Any:
        """Step every tensor that has a gradient."""


class PlainSgd:
    """SGD without momentum and weight decay."""

    def __init__(self, tensors: Groups, learning_rate: float) -> None:
        """Create an optimizer over these leaf tensors, or groups of them."""
        self.param_groups = _groups(tensors, learning_rate)
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Step w ← w − eta·g."""
        for group in self.param_groups:
            tensors, gradients = _with_gradient(group)
            if tensors:
                torch._foreach_add_(tensors, gradients, alpha=-group["lr"])


class Adam:
    """Adam, or AdamW with `decoupled` weight decay; settings as in torch's classes."""

    def __init__(self, tensors: Groups, learning_rate: float, decoupled: bool, settings: Mapping[str, Any]) -> None:
        """Create an optimizer over these leaf tensors, or groups of them."""
        self.param_groups = _groups(tensors, learning_rate)
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        given = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01 if decoupled else 0.0, **settings}
        self.amsgrad = bool(given.pop("amsgrad", False))
        beta1, beta2 = given.pop("betas")
        self.settings = {"beta1": beta1, "beta2": beta2, "maximize": False, "decoupled_weight_decay": decoupled} | given

    @torch.no_grad()
    def step(self) -> None:
        """Step as Kingma and Ba 2015, or Loshchilov and Hutter 2019 with decoupled weight decay."""
        for group in self.param_groups:
            tensors, gradients = _with_gradient(group)
            states = [self._state(tensor) for tensor in tensors]
            moments = {name: [state[name] for state in states] for name in self._names()}
            adam(
                tensors,
                gradients,
                moments["exp_avg"],
                moments["exp_avg_sq"],
                moments.get("max_exp_avg_sq", []),
                [state["step"] for state in states],
                amsgrad=self.amsgrad,
                lr=group["lr"],
                **self.settings,
            )

    def _names(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if self.amsgrad else ("exp_avg", "exp_avg_sq")

    def _state(self, tensor: Tensor) -> dict[str, Tensor]:
        if tensor not in self.state:
            moments = {name: torch.zeros_like(tensor) for name in self._names()}
            self.state[tensor] = {"step": torch.tensor(0.0), **moments}
        return self.state[tensor]


def build_foreach(
    name: str, settings: Mapping[str, Any], tensors: Groups, learning_rate: float
) -> OptimizerLike | None:
    """Return the optimizer of `torch.optim` by this name in the form of this module, or None if it has none."""
    if name == "sgd" and not any(settings.values()):
        return PlainSgd(tensors, learning_rate)
    if name in ("adam", "adamw"):
        return Adam(tensors, learning_rate, name == "adamw", settings)
    return None


def _groups(tensors: Groups, learning_rate: float) -> list[dict[str, Any]]:
    groups = [given if isinstance(given, dict) else {"params": [given]} for given in tensors]
    return [{"lr": learning_rate, **group} for group in groups]


def _with_gradient(group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that have a gradient, and their gradients."""
    tensors = [tensor for tensor in group["params"] if tensor.grad is not None]
    return tensors, [tensor.grad for tensor in tensors]
