"""Layers for several clients side by side: one frozen base, and stacked weights where clients differ.

A module that owns trained tensors computes, for activations [g·B, …], with weights [g, …]. A tensor that is not
stacked (its usual number of axes) is shared by all, and the layer computes as it always does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simfl.passing import current


def _linear(layer: Any, x: Tensor) -> Tensor:
    if layer.weight.dim() == 2:
        return functional.linear(x, layer.weight, layer.bias)
    groups = current().groups
    flat = x.reshape(groups, -1, x.shape[-1])
    if layer.bias is None:
        out = torch.bmm(flat, layer.weight.transpose(1, 2))
    else:
        out = torch.baddbmm(layer.bias[:, None], flat, layer.weight.transpose(1, 2))
    return out.reshape(*x.shape[:-1], -1)


def _embedding(layer: Any, index: Tensor) -> Tensor:
    if layer.weight.dim() == 2:
        return functional.embedding(index, layer.weight, layer.padding_idx)
    groups, rows, width = layer.weight.shape
    offset = torch.arange(groups, device=index.device) * rows
    flat = index.reshape(groups, -1) + offset[:, None]
    return functional.embedding(flat, layer.weight.reshape(groups * rows, width)).reshape(*index.shape, width)


def _per_group(weight: Tensor, x: Tensor) -> Tensor:
    """[g, D] laid out to multiply [g·B, …, D]."""
    return weight.repeat_interleave(x.shape[0] // weight.shape[0], 0).reshape(
        x.shape[0], *[1] * (x.dim() - 2), weight.shape[-1]
    )


def _layer_norm(layer: Any, x: Tensor) -> Tensor:
    if layer.weight.dim() == len(layer.normalized_shape):
        return functional.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)
    normal = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    scaled = normal * _per_group(layer.weight, x)
    return scaled if layer.bias is None else scaled + _per_group(layer.bias, x)


def _t5_layer_norm(layer: Any, x: Tensor) -> Tensor:
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    normal = (x * torch.rsqrt(variance + layer.variance_epsilon)).to(x.dtype)
    return normal * (layer.weight if layer.weight.dim() == 1 else _per_group(layer.weight, x).to(x.dtype))


GROUPED: dict[str, Callable[[Any, Tensor], Tensor]] = {  # by class name, so that no model library need be loaded
    "Linear": _linear,
    "Embedding": _embedding,
    "LayerNorm": _layer_norm,
    "T5LayerNorm": _t5_layer_norm,
}


def form_of(layer: nn.Module) -> Callable[[Any, Tensor], Tensor] | None:
    """The grouped form of a layer, if there is one."""
    return GROUPED.get(type(layer).__name__)


def ungroupable(module: nn.Module, trained: tuple[str, ...]) -> list[str]:
    """The trained tensors whose layer has no grouped form."""
    owners = {name: module.get_submodule(name.rpartition(".")[0]) for name in trained}
    return [name for name, owner in owners.items() if form_of(owner) is None]


@contextmanager
def grouped(module: nn.Module, trained: tuple[str, ...]) -> Iterator[None]:
    """Inside the block, the layers that own `trained` tensors compute in groups."""
    tied = {id(p) for name, p in module.named_parameters() if name in set(trained)}
    owners = [layer for layer in module.modules() if any(id(p) in tied for p in layer._parameters.values())]
    layers = [(layer, form) for layer in owners if (form := form_of(layer)) is not None]
    for layer, form in layers:
        layer.__dict__["forward"] = partial(form, layer)  # found before the class's own
    try:
        yield
    finally:
        for layer, _ in layers:
            del layer.__dict__["forward"]
