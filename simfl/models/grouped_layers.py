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

from simfl.models import convolution, rms_norm
from simfl.models.call_context import current


def _linear(layer: Any, x: Tensor) -> Tensor:
    if layer.weight.dim() == 2 and (layer.bias is None or layer.bias.dim() == 1):
        return functional.linear(x, layer.weight, layer.bias)
    if layer.weight.dim() == 2:
        return _plus(functional.linear(x, layer.weight), layer.bias)
    flat = x.reshape(current().groups, -1, x.shape[-1])
    if layer.weight.numel() <= flat.numel():
        return _product(layer.bias, flat, layer.weight.transpose(1, 2), -2).reshape(*x.shape[:-1], -1)
    # the other way round the weight's gradient lies in memory as the weight does: a step along it takes a third
    out = _product(layer.bias, layer.weight, flat.transpose(1, 2), -1).transpose(1, 2)
    return out.reshape(*x.shape[:-1], -1)


def _product(bias: Tensor | None, left: Tensor, right: Tensor, axis: int) -> Tensor:
    """left · right of each group, plus the bias, which gets a new axis there."""
    return torch.bmm(left, right) if bias is None else torch.baddbmm(bias.unsqueeze(axis), left, right)


def _embedding(layer: Any, index: Tensor) -> Tensor:
    if layer.weight.dim() == 2:
        return functional.embedding(index, layer.weight, layer.padding_idx)
    groups, rows, width = layer.weight.shape
    offset = torch.arange(groups, device=index.device) * rows
    flat = index.reshape(groups, -1) + offset[:, None]
    return functional.embedding(flat, layer.weight.reshape(groups * rows, width)).reshape(*index.shape, width)


def _conv2d(layer: Any, x: Tensor) -> Tensor:
    shape = (layer.stride, layer.padding, layer.dilation)
    if layer.weight.dim() == 4:
        out = functional.conv2d(x, layer.weight, None, *shape, layer.groups)
    elif layer.groups == 1 and not isinstance(layer.padding, str) and convolution.available(x, layer.weight):
        stacked = layer.bias is None or layer.bias.dim() == 2
        out = convolution.convolve(x, layer.weight, layer.bias if stacked else None, *shape)
        return out if stacked else out + layer.bias[:, None, None]
    else:
        groups = current().groups
        beside = x.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)  # [B, g·C, H, W]
        out = functional.conv2d(beside, layer.weight.flatten(0, 1), None, *shape, groups * layer.groups)
        out = out.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1)
    if layer.bias is None:
        return out
    if layer.bias.dim() == 1:
        return out + layer.bias[:, None, None]
    return out + layer.bias.repeat_interleave(len(x) // len(layer.bias), 0)[:, :, None, None]


def _per_group(weight: Tensor, x: Tensor) -> Tensor:
    """[g, D] laid out to multiply [g·B, …, D]."""
    return weight.repeat_interleave(x.shape[0] // weight.shape[0], 0).reshape(
        x.shape[0], *[1] * (x.dim() - 2), weight.shape[-1]
    )


def _plus(x: Tensor, bias: Tensor) -> Tensor:
    return x + (bias if bias.dim() == 1 else _per_group(bias, x))


def _offset(layer: Any, x: Tensor) -> Tensor:
    if layer.weight.dim() == 3:
        return x + layer.weight
    return (x.unflatten(0, (len(layer.weight), -1)) + layer.weight).flatten(0, 1)


def _layer_norm(layer: Any, x: Tensor) -> Tensor:
    usual, stacked = len(layer.normalized_shape), layer.weight.dim() > len(layer.normalized_shape)
    if not stacked and (layer.bias is None or layer.bias.dim() == usual):
        return functional.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)
    if not stacked:
        return _plus(functional.layer_norm(x, layer.normalized_shape, layer.weight, eps=layer.eps), layer.bias)
    scaled = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps) * _per_group(layer.weight, x)
    return scaled if layer.bias is None else _plus(scaled, layer.bias)


def _rms_norm(layer: Any, x: Tensor) -> Tensor:
    weight = layer.weight if layer.weight.dim() == 1 else _per_group(layer.weight, x)
    return (rms_norm.normal(x, layer.variance_epsilon) * weight).to(rms_norm.kind(x, weight))


GROUPED: dict[str, Callable[[Any, Tensor], Tensor]] = {  # by class name, so that no model library need be loaded
    "Linear": _linear,
    "BoxLinear": _linear,
    "Conv2d": _conv2d,
    "Embedding": _embedding,
    "LayerNorm": _layer_norm,
    "RmsNorm": _rms_norm,
    "T5LayerNorm": _rms_norm,
    "Offset": _offset,
}


def form_of(layer: nn.Module) -> Callable[[Any, Tensor], Tensor] | None:
    """The grouped form of a layer, if there is one. Normalisation over a batch has none: padding would enter it."""
    return GROUPED.get(type(layer).__name__)


def ungroupable(module: nn.Module, trained: tuple[str, ...]) -> list[str]:
    """The trained tensors whose layer has no grouped form."""
    owners = {name: module.get_submodule(name.rpartition(".")[0]) for name in trained}
    return [name for name, owner in owners.items() if form_of(owner) is None]


Owners = list[tuple[nn.Module, Callable[[Any, Tensor], Tensor]]]  # layers, and their grouped forms


def owners(module: nn.Module, trained: tuple[str, ...]) -> Owners:
    """The layers that own `trained` tensors and have a grouped form."""
    wanted = set(trained)
    tied = {id(p) for name, p in module.named_parameters() if name in wanted}
    layers = [layer for layer in module.modules() if any(id(p) in tied for p in layer._parameters.values())]
    return [(layer, form) for layer in layers if (form := form_of(layer)) is not None]


@contextmanager
def grouped(owners: Owners) -> Iterator[None]:
    """Inside the block, these layers compute in groups."""
    for layer, form in owners:
        layer.__dict__["forward"] = partial(form, layer)  # found before the class's own
    try:
        yield
    finally:
        for layer, _ in owners:
            del layer.__dict__["forward"]
