"""The two local optimizers of nearly every experiment, as `torch.optim` computes them, to the bit, without its classes.

Torch's own step spends longer on hooks and profiling than a small model on its gradient, and the first optimizer that a
process makes imports torch's compiler, for two seconds.

    w   weights        g   gradient        eta   learning rate
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

Groups = Sequence[Tensor | dict[str, Any]]


class Stepping(Protocol):
    """What the engine asks of an optimizer, as torch's answer it."""

    param_groups: list[dict[str, Any]]  # tensors and learning rate
    state: Any  # tensor -> moments by name

    def step(self) -> Any:
        """One step of every tensor that has a gradient."""


class PlainSgd:
    """SGD without momentum and decay."""

    def __init__(self, tensors: Groups, learning_rate: float) -> None:
        self.param_groups = _groups(tensors, learning_rate)
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """w − eta·g"""
        for group in self.param_groups:
            moved, gradients = _with_gradient(group)
            if moved:
                torch._foreach_add_(moved, gradients, alpha=-group["lr"])


class Adam:
    """Adam, and with `decoupled` AdamW; the settings are those of torch's classes."""

    def __init__(self, tensors: Groups, learning_rate: float, decoupled: bool, settings: Mapping[str, Any]) -> None:
        self.param_groups = _groups(tensors, learning_rate)
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        given = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01 if decoupled else 0.0, **settings}
        self.amsgrad = bool(given.pop("amsgrad", False))
        beta1, beta2 = given.pop("betas")
        self.settings = {"beta1": beta1, "beta2": beta2, "maximize": False, "decoupled_weight_decay": decoupled} | given

    @torch.no_grad()
    def step(self) -> None:
        """The step of Kingma and Ba 2015, or of Loshchilov and Hutter 2019."""
        for group in self.param_groups:
            moved, gradients = _with_gradient(group)
            states = [self._state(tensor) for tensor in moved]
            moments = {name: [state[name] for state in states] for name in self._names()}
            adam(
                moved,
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
            fresh = {name: torch.zeros_like(tensor) for name in self._names()}
            self.state[tensor] = {"step": torch.tensor(0.0), **fresh}
        return self.state[tensor]


def direct(name: str, settings: Mapping[str, Any], tensors: Groups, learning_rate: float) -> Stepping | None:
    """The optimizer of `torch.optim` by this name in its direct form, if it has one with these settings."""
    if name == "sgd" and not any(settings.values()):
        return PlainSgd(tensors, learning_rate)
    if name in ("adam", "adamw"):
        return Adam(tensors, learning_rate, name == "adamw", settings)
    return None


def _groups(tensors: Groups, learning_rate: float) -> list[dict[str, Any]]:
    groups = [given if isinstance(given, dict) else {"params": [given]} for given in tensors]
    return [{"lr": learning_rate, **group} for group in groups]


def _with_gradient(group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that have a gradient, and their gradients."""
    moved = [tensor for tensor in group["params"] if tensor.grad is not None]
    return moved, [tensor.grad for tensor in moved]
