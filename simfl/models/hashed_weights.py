"""Weights trained in a hashed space (FedOCR, He et al. 2020, after HashedNets, Chen et al. 2015).

T    weights of a layer        c = 1/γ   number of weights that share a real weight
R    real weights, ⌈T/c⌉       π         a permutation of 0 … T−1, from a seed that all clients share
V[i] = R[⌊π_i/c⌋]              dR_k = Σ_{⌊π_i/c⌋ = k} dV_i

Every tensor of two or more axes is hashed, those of one axis are not. A layer's tensor keeps its name and becomes R;
reading the layer's attribute gives V. Gradients are computed by inverting the permutation, a reshape and a sum, so the
order of additions is fixed. The permutations are drawn from the seed on each machine and never travel.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from simfl.constraints import Constraint
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.base import AutogradContext
from simfl.models.call_context import NO_CALL, ModelCall, current_call
from simfl.seeds import SeedName, rng

HashRatio = Annotated[
    str,
    Constraint(
        "1/c with a whole number c of at least 1, such as 1/4", lambda text: bool(re.fullmatch(r"1/[1-9]\d*", text))
    ),
]


@dataclass
class HashExpansion:
    """Map from the real weights of one tensor to its weights."""

    shape: tuple[int, ...]
    share: int  # c
    seed: tuple[SeedName, ...]
    orders: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)  # cache of π and its inverse

    @property
    def num_weights(self) -> int:
        """Number of weights, T."""
        return math.prod(self.shape)

    @property
    def num_real(self) -> int:
        """Number of real weights, ⌈T/c⌉."""
        return -(-self.num_weights // self.share)

    def __call__(self, real: Tensor) -> Tensor:
        """Expand […, ⌈T/c⌉] to […, *shape]: each real weight c times (the last perhaps fewer), permuted by π."""
        lead = real.shape[:-1]
        spread = real[..., None].expand(*lead, self.num_real, self.share).reshape(*lead, -1)[..., : self.num_weights]
        return _Permute.apply(spread, *self._orders(real.device)).reshape(*lead, *self.shape)

    def initial(self, weights: Tensor) -> Tensor:
        """Pick one weight of each group, [⌈T/c⌉], so that the expansion is distributed as `weights` are."""
        if weights.is_meta:
            return weights.new_empty(self.num_real)
        _, inverse = self._orders(weights.device)
        return weights.reshape(-1)[inverse[:: self.share]].clone()

    def _orders(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return π and its inverse on a device, int32."""
        if device not in self.orders:
            if device.type == "meta":
                order = inverse = torch.empty(self.num_weights, dtype=torch.int32, device=device)
            else:
                order = torch.from_numpy(rng("hash", *self.seed).permutation(self.num_weights)).to(device)
                inverse = torch.empty_like(order)
                inverse[order] = torch.arange(self.num_weights, device=device)
            self.orders[device] = order.to(torch.int32), inverse.to(torch.int32)
        return self.orders[device]


class _Permute(torch.autograd.Function):
    """values[…, order], whose gradient is a permutation too instead of a scatter with additions."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return values.index_select(-1, order)

    @staticmethod
    def setup_context(ctx: AutogradContext, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return _Permute.apply(gradient, inverse, order), None, None


def check_hash_settings(ratio: str | None, adapters: Adapter | None) -> None:
    """Raise ConfigError if a model is hashed and has adapters, which would leave the hashed weights frozen."""
    if ratio is not None and adapters is not None:
        raise ConfigError(f"hash: {ratio} given with adapters, which leave the hashed weights frozen; give one of them")


def hash_weights(network: nn.Module, ratio: str, seed: int, min_size: int = 1) -> None:
    """Hash every tensor with at least two axes and `min_size` values in place; tied tensors stay tied.

    Real weights are taken from the layer's initial ones, so weights loaded before are lost.
    """
    share, hashed = int(ratio.partition("/")[2]), dict[int, tuple[HashExpansion, nn.Parameter]]()
    for path, layer in list(network.named_modules()):
        expansions: dict[str, HashExpansion] = {}
        for name, parameter in layer._parameters.items():
            if parameter is None or parameter.dim() < 2 or parameter.numel() < min_size:
                continue
            if id(parameter) not in hashed:
                expansion = HashExpansion(tuple(parameter.shape), share, (seed, f"{path}.{name}" if path else name))
                real = nn.Parameter(expansion.initial(parameter.detach()), parameter.requires_grad)
                hashed[id(parameter)] = expansion, real
            expansions[name], layer._parameters[name] = hashed[id(parameter)]
        if expansions:
            _expand_on_read(layer, expansions)


def _expand_on_read(layer: nn.Module, expansions: dict[str, HashExpansion]) -> None:
    """Turn attributes of the layer into properties that give expanded weights.

    The layer's class is replaced by a subclass of the same name, since other code looks layers up by class name.
    """
    cls = type(layer)
    views = {name: property(partial(_expanded, name=name)) for name in expansions}
    layer.__class__ = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__, **views})
    layer.__dict__["expansions"] = expansions
    layer.__dict__["expanded"] = {}


def _expanded(layer: Any, name: str) -> Tensor:
    """Return the expanded weights, computed once in each model call."""
    real, call = layer._parameters[name], current_call()
    if call is NO_CALL:
        return layer.expansions[name](real)
    cached: tuple[ModelCall, Tensor, bool, Tensor] | None = layer.expanded.get(name)
    if cached is None or not (cached[0] is call and cached[1] is real and cached[2] == torch.is_grad_enabled()):
        cached = (call, real, torch.is_grad_enabled(), layer.expansions[name](real))
        layer.expanded[name] = cached
    return cached[3]
