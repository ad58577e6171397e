"""Weights trained in a hashed space (FedOCR, He et al. 2020, after HashedNets, Chen et al. 2015).

T    weights of a layer        c = 1/γ   how many of them share a real weight
R    real weights, ⌈T/c⌉       π         a permutation of 0 … T−1, from a seed that all clients share
V[i] = R[⌊π_i/c⌋]              dR_k = Σ_{⌊π_i/c⌋ = k} dV_i

Every tensor of two axes and more is hashed, those of one axis are not. A layer's tensor keeps its name and becomes R;
who reads the layer's attribute finds V. Gradients come back by undoing the permutation, a reshape and a sum, so no
order of additions is left to chance. The permutations are made from the seed on each machine and never travel.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from simfl.constraints import Limit
from simfl.models.call_context import ModelCall, current
from simfl.seeds import Name, rng

Ratio = Annotated[
    str,
    Limit("1/c with a whole number c of at least 1, such as 1/4", lambda text: bool(re.fullmatch(r"1/[1-9]\d*", text))),
]
OUTSIDE = current()  # no pass under way


@dataclass
class Expansion:
    """How real weights become the weights of one tensor."""

    shape: tuple[int, ...]
    share: int  # c
    seed: tuple[Name, ...]
    orders: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)  # π and its inverse, made when used

    @property
    def count(self) -> int:
        """T."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Real weights, ⌈T/c⌉."""
        return -(-self.count // self.share)

    def __call__(self, real: Tensor) -> Tensor:
        """[…, ⌈T/c⌉] to […, *shape]: each real weight c times (the last perhaps fewer), in the places of π."""
        lead = real.shape[:-1]
        spread = real[..., None].expand(*lead, self.size, self.share).reshape(*lead, -1)[..., : self.count]
        return _Permuted.apply(spread, *self._orders(real.device)).reshape(*lead, *self.shape)

    def first(self, weights: Tensor) -> Tensor:
        """One weight of each group, [⌈T/c⌉]: a start with which the expansion is distributed as `weights` are."""
        if weights.is_meta:
            return weights.new_empty(self.size)
        _, inverse = self._orders(weights.device)
        return weights.reshape(-1)[inverse[:: self.share]].clone()

    def _orders(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self.orders:
            if device.type == "meta":
                order = inverse = torch.empty(self.count, dtype=torch.int32, device=device)
            else:
                order = torch.from_numpy(rng("hash", *self.seed).permutation(self.count)).to(device)
                inverse = torch.empty_like(order)
                inverse[order] = torch.arange(self.count, device=device)
            self.orders[device] = order.to(torch.int32), inverse.to(torch.int32)
        return self.orders[device]


class _Permuted(torch.autograd.Function):
    """values[…, order], with a gradient that is a permutation too and not a sum over places."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return values.index_select(-1, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return _Permuted.apply(gradient, inverse, order), None, None


def attach(network: nn.Module, ratio: str, seed: int, smallest: int = 1) -> None:
    """Hash every tensor of at least two axes and `smallest` values in place; tied tensors stay tied.

    The real weights are drawn from the layer's own initial ones, so weights that were learnt before are lost.
    """
    share, tied = int(ratio.partition("/")[2]), dict[int, tuple[Expansion, nn.Parameter]]()
    for path, layer in list(network.named_modules()):
        own: dict[str, Expansion] = {}
        for name, parameter in layer._parameters.items():
            if parameter is None or parameter.dim() < 2 or parameter.numel() < smallest:
                continue
            if id(parameter) not in tied:
                expansion = Expansion(tuple(parameter.shape), share, (seed, f"{path}.{name}" if path else name))
                real = nn.Parameter(expansion.first(parameter.detach()), parameter.requires_grad)
                tied[id(parameter)] = expansion, real
            own[name], layer._parameters[name] = tied[id(parameter)]
        if own:
            _read_expanded(layer, own)


def _read_expanded(layer: nn.Module, expansions: dict[str, Expansion]) -> None:
    """From now on these attributes of the layer give expanded weights. Its class keeps its name, which others know."""
    kind = type(layer)
    views = {name: property(partial(_expanded, name=name)) for name in expansions}
    layer.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__, **views})
    layer.__dict__["expansions"] = expansions
    layer.__dict__["expanded"] = {}


def _expanded(layer: Any, name: str) -> Tensor:
    """The weights, expanded once in each pass of the model."""
    real, step = layer._parameters[name], current()
    if step is OUTSIDE:
        return layer.expansions[name](real)
    known: tuple[ModelCall, Tensor, bool, Tensor] | None = layer.expanded.get(name)
    if known is None or not (known[0] is step and known[1] is real and known[2] == torch.is_grad_enabled()):
        known = (step, real, torch.is_grad_enabled(), layer.expansions[name](real))
        layer.expanded[name] = known
    return known[3]
