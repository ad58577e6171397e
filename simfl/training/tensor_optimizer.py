"""SGD and Adam over stacked tensors by tensor operations alone, so that a step can be captured once and replayed.

Learning rates and the active clients are tensors, [n] each. The steps equal those of `torch.optim` up to rounding.

    w   weights        g   gradient        eta   learning rate        t   steps taken
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from simfl.experiment import Local
from simfl.protocol import State, Weights
from simfl.training.optimizer_step import clip
from simfl.weights import pack_small, unpack_small

Settings = Mapping[str, Any]
SGD: Settings = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
ADAM: Settings = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
SETTINGS: dict[str, Settings] = {"sgd": SGD, "adam": ADAM, "adamw": {**ADAM, "weight_decay": 0.01}}
COUNT = "step"  # the moment that counts the steps taken; torch's optimizers use the same name


def has_tensor_form(local: Local) -> bool:
    """Return whether the optimizer with its settings is implemented here."""
    optimizer = local.optimizer
    return optimizer.name in SETTINGS and not any(
        value for key, value in optimizer.settings.items() if key not in SETTINGS[optimizer.name]
    )


def init_moments(local: Local, weights: Weights, n: int) -> State:
    """Return the moments before the first step: named groups of [n, …], and the step count, [n]."""
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
    """One optimizer for `weights` and its `moments`, both stepped in place.

    Attributes:
        local: Settings of local training.
        weights: The tensors to step, [n, …].
        moments: See `init_moments`.
        ragged: Whether some clients finish before others.
        skips_steps: Whether clients skip steps and continue later.
    """

    local: Local
    weights: Weights
    moments: State
    ragged: bool
    skips_steps: bool = False

    @torch.no_grad()
    def step(self, gradients: Weights, active: Tensor, rates: Tensor) -> None:
        """Clip each client's gradient ([n, …]) and step the active clients, each at its own learning rate."""
        settings, clipped = _settings(self.local), clip(gradients, self.local)
        weights, gradients = pack_small(self.weights), pack_small({name: clipped[name] for name in self.weights})
        if self._has_kernel(weights, gradients):
            self._step_by_kernel(weights, gradients, active, rates, settings)
        else:
            self._step_by_operations(weights, gradients, active, rates, settings)
        for name, new in unpack_small(weights, self.weights).items():
            if new is not self.weights[name]:
                self.weights[name].copy_(new)

    def _has_kernel(self, weights: Weights, gradients: Weights) -> bool:
        """Return whether torch's fused kernel of Adam applies: on a GPU, except where a step is traced, to be fused."""
        if self.local.optimizer.name == "sgd":
            return False
        return all(
            w.is_cuda and not isinstance(w, FakeTensor) and gradients[name].dtype == w.dtype
            for name, w in weights.items()
        )

    def _step_by_kernel(
        self, weights: Weights, gradients: Weights, active: Tensor, rates: Tensor, settings: Settings
    ) -> None:
        """Step each client by a kernel that reads and writes every value once; it skips inactive clients."""
        counts = self.moments[COUNT][COUNT]
        counts.add_(active.to(torch.float32))
        beta1, beta2 = settings["betas"]
        step = torch._fused_adamw_ if self.local.optimizer.name == "adamw" else torch._fused_adam_
        idle = 1.0 - active.to(torch.float32)
        means, squares = self.moments["exp_avg"], self.moments["exp_avg_sq"]
        rates = rates.to(torch.float32)
        laid = {name: _laid_like(gradients[name], w) for name, w in weights.items()}
        for k in range(len(rates)):
            step(
                [w[k] for w in weights.values()], [laid[name][k] for name in weights],
                [means[name][k] for name in weights], [squares[name][k] for name in weights],
                [], [counts[k]] * len(weights), lr=rates[k], beta1=beta1, beta2=beta2,
                weight_decay=settings["weight_decay"], eps=settings["eps"], amsgrad=False, maximize=False,
                found_inf=idle[k],
            )  # fmt: skip

    def _step_by_operations(
        self, weights: Weights, gradients: Weights, active: Tensor, rates: Tensor, settings: Settings
    ) -> None:
        if self.ragged or self.skips_steps:  # the gradient of an empty batch may be NaN
            gradients = {name: torch.where(_along(active, g), g, 0.0) for name, g in gradients.items()}
            rates = rates * active
        if self.moments:
            self.moments[COUNT][COUNT].add_(active.to(torch.float32))
        if self.local.optimizer.name == "sgd":
            self._step_sgd(weights, gradients, active, rates, settings)
        else:
            self._step_adam(weights, gradients, active, rates, settings)

    def _step_sgd(
        self, weights: Weights, gradients: Weights, active: Tensor, rates: Tensor, settings: Settings
    ) -> None:
        first = self.moments[COUNT][COUNT] <= 1.0 if self.moments else active
        share = torch.where(first, 1.0, 1.0 - settings["dampening"])
        for name, w in weights.items():
            direction = self._sgd_direction(name, w, gradients[name], active, share)
            w.addcmul_(direction, _along(rates, w), value=-1.0)

    def _step_adam(
        self, weights: Weights, gradients: Weights, active: Tensor, rates: Tensor, settings: Settings
    ) -> None:
        beta1, beta2 = settings["betas"]
        t = self.moments[COUNT][COUNT].clamp_min(1.0)  # 0 for clients that have not stepped and do not step now
        sizes, roots = rates / (1.0 - beta1**t), (1.0 - beta2**t).sqrt()
        for name, w in weights.items():
            g = self._decay(w, gradients[name], rates, settings["weight_decay"])
            w.addcmul_(self._adam_direction(name, w, g, active, roots), _along(sizes, w), value=-1.0)

    def _sgd_direction(self, name: str, w: Tensor, g: Tensor, active: Tensor, share: Tensor) -> Tensor:
        """Return g, or with momentum its running sum, to which `share` of g is added."""
        settings = _settings(self.local)
        if settings["weight_decay"]:
            g = g + settings["weight_decay"] * w
        if not settings["momentum"]:
            return g
        buffer = self.moments["momentum_buffer"][name]
        self._set_moment(buffer, settings["momentum"] * buffer + _along(share, g) * g, active)
        return g + settings["momentum"] * buffer if settings["nesterov"] else buffer

    def _decay(self, w: Tensor, g: Tensor, rates: Tensor, decay: float) -> Tensor:
        """Add Adam's weight decay to the gradient; AdamW's (Loshchilov and Hutter 2019) shrinks w directly."""
        if decay and self.local.optimizer.name == "adamw":
            w.mul_(1.0 - _along(rates, w) * decay)
            return g
        return g + decay * w if decay else g

    def _adam_direction(self, name: str, w: Tensor, g: Tensor, active: Tensor, roots: Tensor) -> Tensor:
        """Return m / (√v + eps) of Kingma and Ba 2015, with the bias of v corrected by `roots`."""
        settings = _settings(self.local)
        beta1, beta2 = settings["betas"]
        mean, square = self.moments["exp_avg"][name], self.moments["exp_avg_sq"][name]
        self._set_moment(mean, torch.lerp(mean, g, 1.0 - beta1), active)
        self._set_moment(square, (beta2 * square).addcmul(g, g, value=1.0 - beta2), active)
        return mean / (square.sqrt() / _along(roots, w) + settings["eps"])

    def _set_moment(self, moment: Tensor, new: Tensor, active: Tensor) -> None:
        """Replace a moment, except of inactive clients whose moments are still needed."""
        if self.skips_steps or (self.ragged and self.local.keep_optimizer):
            new = torch.where(_along(active, new), new, moment)
        moment.copy_(new)


def save_moments(moments: State, weights: Weights, n: int) -> list[State]:
    """Return each client's moments for these weights, to be kept: {moment: {tensor: value}}."""
    moments = {key: group if key == COUNT else unpack_small(group, weights) for key, group in moments.items()}
    out: list[State] = []
    for k in range(n):
        own = {key: {m: t[k].clone() for m, t in group.items()} for key, group in moments.items() if key != COUNT}
        if own:
            names = next(iter(own.values()))
            own[COUNT] = {name: moments[COUNT][COUNT][k].clone() for name in names}
        out.append(own)
    return out


def load_moments(local: Local, weights: Weights, saved: list[State]) -> State:
    """Return the moments that these clients kept; initial ones for clients that kept none."""
    moments = init_moments(local, weights, len(saved))
    if not any(saved):
        return moments
    unpacked = {key: group if key == COUNT else unpack_small(group, weights) for key, group in moments.items()}
    for k, state in enumerate(saved):
        for key, group in state.items():
            for name, value in group.items():
                target = unpacked[COUNT][COUNT] if key == COUNT else unpacked[key][name]
                target[k] = value.to(target.device)
    return {key: group if key == COUNT else pack_small(unpacked[key]) for key, group in moments.items()}


def _settings(local: Local) -> Settings:
    return {**SETTINGS[local.optimizer.name], **local.optimizer.settings}


def _laid_like(gradient: Tensor, w: Tensor) -> Tensor:
    """Return the gradient in the memory layout of the weight, which a fused kernel demands."""
    return gradient if gradient.stride() == w.stride() else torch.empty_like(w).copy_(gradient)


def _along(values: Tensor, like: Tensor) -> Tensor:
    """Reshape [n] so that it multiplies [n, …]."""
    return values.reshape(-1, *[1] * (like.dim() - 1))
