"""SGD and Adam over stacked tensors by tensor operations alone, so that a step can be captured once and replayed.

Learning rates and who is still at work are tensors, [n] each. The steps are those of `torch.optim` up to rounding.

    w   weights        g   gradient        eta   learning rate        t   steps taken
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simfl.experiment import Local
from simfl.protocol import State, Weights
from simfl.training.clipping import clip
from simfl.weights import pack_small, unpack_small

SGD = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
ADAM = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {"sgd": SGD, "adam": ADAM, "adamw": ADAM | {"weight_decay": 0.01}}
COUNT = "step"  # of the moments: steps taken, as torch's optimizers name it


def steppable(local: Local) -> bool:
    """Whether the optimizer has this form with its settings."""
    optimizer = local.optimizer
    return optimizer.name in SETTINGS and not any(
        value for key, value in optimizer.settings.items() if key not in SETTINGS[optimizer.name]
    )


def fresh(local: Local, weights: Weights, n: int) -> State:
    """The moments before the first step: named groups of [n, …], and the count of steps, [n]."""
    settings = _settings(local)
    if local.optimizer.name == "sgd":
        names: tuple[str, ...] = ("momentum_buffer",) if settings["momentum"] else ()
    else:
        names = ("exp_avg", "exp_avg_sq")
    like = pack_small(weights)
    moments = {key: {name: torch.zeros_like(t) for name, t in like.items()} for key in names}
    device = next(iter(weights.values())).device
    return {**moments, COUNT: {COUNT: torch.zeros(n, device=device)}} if names else {}


@dataclass(frozen=True)
class TensorOptimizer:
    """One optimizer for `weights` and its `moments`, both stepped in place. `ragged`: some finish before others."""

    local: Local
    weights: Weights
    moments: State
    ragged: bool
    gated: bool = False  # clients skip steps

    @torch.no_grad()
    def step(self, gradients: Weights, active: Tensor, rates: Tensor) -> None:
        """Clip each client's gradient ([n, …]) and step the clients still at work, each at its own learning rate."""
        settings, clipped = _settings(self.local), clip(gradients, self.local)
        weights, gradients = pack_small(self.weights), pack_small({name: clipped[name] for name in self.weights})
        if self.ragged or self.gated:  # a gradient of nothing need not be a number
            gradients = {name: torch.where(_along(active, g), g, 0.0) for name, g in gradients.items()}
            rates = rates * active
        if self.moments:
            self.moments[COUNT][COUNT].add_(active.to(torch.float32))
        if self.local.optimizer.name == "sgd":
            first = self.moments[COUNT][COUNT] <= 1.0 if self.moments else active
            share = torch.where(first, 1.0, 1.0 - settings["dampening"])
            for name, w in weights.items():
                w.addcmul_(
                    self._of_sgd(name, w, gradients[name], active, share, settings), _along(rates, w), value=-1.0
                )
            self._unpack(weights)
            return
        beta1, beta2 = settings["betas"]
        t = self.moments[COUNT][COUNT].clamp_min(1.0)  # of clients that had no step yet, and have none now
        sizes, roots = rates / (1.0 - beta1**t), (1.0 - beta2**t).sqrt()
        for name, w in weights.items():
            g = self._decayed(w, gradients[name], rates, settings["weight_decay"])
            w.addcmul_(self._of_adam(name, w, g, active, roots, settings), _along(sizes, w), value=-1.0)
        self._unpack(weights)

    def _unpack(self, weights: Weights) -> None:
        """Write what was stepped as one where it belongs."""
        for name, new in unpack_small(weights, self.weights).items():
            if new is not self.weights[name]:
                self.weights[name].copy_(new)

    def _of_sgd(
        self, name: str, w: Tensor, g: Tensor, active: Tensor, share: Tensor, settings: Mapping[str, Any]
    ) -> Tensor:
        """What goes down along: g, or under momentum its running sum, to which `share` of g is added."""
        if settings["weight_decay"]:
            g = g + settings["weight_decay"] * w
        if not settings["momentum"]:
            return g
        buffer = self.moments["momentum_buffer"][name]
        self._keep(buffer, settings["momentum"] * buffer + _along(share, g) * g, active)
        return g + settings["momentum"] * buffer if settings["nesterov"] else buffer

    def _decayed(self, w: Tensor, g: Tensor, rates: Tensor, decay: float) -> Tensor:
        """The gradient with the decay of Adam in it; AdamW's (Loshchilov and Hutter 2019) is taken from w at once."""
        if decay and self.local.optimizer.name == "adamw":
            w.mul_(1.0 - _along(rates, w) * decay)
            return g
        return g + decay * w if decay else g

    def _of_adam(
        self, name: str, w: Tensor, g: Tensor, active: Tensor, roots: Tensor, settings: Mapping[str, Any]
    ) -> Tensor:
        """m / (√v + eps) of Kingma and Ba 2015, with v corrected for its bias by `roots`."""
        beta1, beta2 = settings["betas"]
        mean, square = self.moments["exp_avg"][name], self.moments["exp_avg_sq"][name]
        self._keep(mean, torch.lerp(mean, g, 1.0 - beta1), active)
        self._keep(square, (beta2 * square).addcmul(g, g, value=1.0 - beta2), active)
        return mean / (square.sqrt() / _along(roots, w) + settings["eps"])

    def _keep(self, moment: Tensor, new: Tensor, active: Tensor) -> None:
        """Replace a moment, but of clients that have finished if it is to be kept."""
        if self.gated or (self.ragged and self.local.keep_optimizer):
            new = torch.where(_along(active, new), new, moment)
        moment.copy_(new)


def states(moments: State, weights: Weights, n: int) -> list[State]:
    """Each client's moments for these weights, to be kept: {moment: {tensor: value}}."""
    moments = {key: group if key == COUNT else unpack_small(group, weights) for key, group in moments.items()}
    out: list[State] = []
    for k in range(n):
        own = {key: {m: t[k].clone() for m, t in group.items()} for key, group in moments.items() if key != COUNT}
        if own:
            names = next(iter(own.values()))
            own[COUNT] = {name: moments[COUNT][COUNT][k].clone() for name in names}
        out.append(own)
    return out


def loaded(local: Local, weights: Weights, kept: list[State]) -> State:
    """The moments of these clients as they kept them; fresh for those that kept none."""
    moments = fresh(local, weights, len(kept))
    if not any(kept):
        return moments
    apart = {key: group if key == COUNT else unpack_small(group, weights) for key, group in moments.items()}
    for k, state in enumerate(kept):
        for key, group in state.items():
            for name, value in group.items():
                target = apart[COUNT][COUNT] if key == COUNT else apart[key][name]
                target[k] = value.to(target.device)
    return {key: group if key == COUNT else pack_small(apart[key]) for key, group in moments.items()}


def _settings(local: Local) -> dict[str, Any]:
    return SETTINGS[local.optimizer.name] | dict(local.optimizer.settings)


def _along(values: Tensor, like: Tensor) -> Tensor:
    """[n] laid out to multiply [n, …]."""
    return values.reshape(-1, *[1] * (like.dim() - 1))
