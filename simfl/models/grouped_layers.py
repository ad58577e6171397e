"""Layers that compute for several clients at once: one frozen base, and stacked weights where clients differ.

A layer that owns trained tensors maps activations [g·B, …] with weights [g, …], g being the number of clients. A tensor
that is not stacked (it has its usual number of axes) is shared by all, and the layer computes as usual.
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
from simfl.models.base import AutogradContext
from simfl.models.call_context import current_call

GroupedForward = Callable[[Any, Tensor], Tensor]  # of a layer, and its input
GroupedLayers = list[tuple[nn.Module, GroupedForward]]


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    if layer.weight.dim() == 2 and (layer.bias is None or layer.bias.dim() == 1):
        return functional.linear(x, layer.weight, layer.bias)
    if layer.weight.dim() == 2:
        return _add_bias(functional.linear(x, layer.weight), layer.bias)
    if len(layer.weight) == 1 and x.is_cuda:  # one client: a product of matrices, which is tuned better than a stack's
        bias = None if layer.bias is None else layer.bias.reshape(-1)
        return functional.linear(x, layer.weight.flatten(0, 1), bias)
    flat = x.reshape(current_call().num_groups, -1, x.shape[-1])
    if x.is_cuda:
        return grouped_product(flat, layer.weight, layer.bias).reshape(*x.shape[:-1], -1)
    if layer.weight.numel() <= flat.numel():
        return _product(layer.bias, flat, layer.weight.transpose(1, 2), -2).reshape(*x.shape[:-1], -1)
    # transposed, the weight's gradient has the memory layout of the weight: an optimizer step takes a third of the time
    out = _product(layer.bias, layer.weight, flat.transpose(1, 2), -1).transpose(1, 2)
    return out.reshape(*x.shape[:-1], -1)


def grouped_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x [g, M, K] by the weights [g, N, K] of each client, transposed, and add the bias [g, N].

    The gradient of a weight has the weight's memory layout, which a fused optimizer demands; that of `torch.bmm` is
    transposed.
    """
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    out: Tensor = _GroupedProduct.apply(x, weight, bias)
    return out


class _GroupedProduct(torch.autograd.Function):
    """Products of matrices, one for each client."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(bias, x, weight.mT, -2)

    @staticmethod
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), needs = ctx.saved_tensors, ctx.needs_input_grad
        gradient = gradient.to(weight.dtype)
        dx = torch.bmm(gradient, weight) if needs[0] else None
        dw = torch.bmm(gradient.mT, x) if needs[1] else None
        return dx, dw, gradient.sum(1) if needs[2] else None


def _product(bias: Tensor | None, left: Tensor, right: Tensor, axis: int) -> Tensor:
    """Multiply left · right in each group, and add the bias, which gets a new axis at `axis`."""
    return torch.bmm(left, right) if bias is None else torch.baddbmm(bias.unsqueeze(axis), left, right)


def _embedding(layer: nn.Embedding, index: Tensor) -> Tensor:
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
    elif layer.groups == 1 and not isinstance(layer.padding, str) and convolution.can_fuse(x, layer.weight):
        stacked = layer.bias is None or layer.bias.dim() == 2
        out = convolution.convolve(x, layer.weight, layer.bias if stacked else None, *shape)
        return out if stacked else out + layer.bias[:, None, None]
    else:
        groups = current_call().num_groups
        channels = x.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)  # [B, g·C, H, W]
        out = functional.conv2d(channels, layer.weight.flatten(0, 1), None, *shape, groups * layer.groups)
        out = out.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1)
    if layer.bias is None:
        return out
    if layer.bias.dim() == 1:
        return out + layer.bias[:, None, None]
    return out + layer.bias.repeat_interleave(len(x) // len(layer.bias), 0)[:, :, None, None]


def _per_example(weight: Tensor, x: Tensor) -> Tensor:
    """Repeat [g, D] for the examples of each client, shaped to multiply `x` [g·B, …, D]."""
    return weight.repeat_interleave(x.shape[0] // weight.shape[0], 0).reshape(
        x.shape[0], *[1] * (x.dim() - 2), weight.shape[-1]
    )


def _add_bias(x: Tensor, bias: Tensor) -> Tensor:
    return x + (bias if bias.dim() == 1 else _per_example(bias, x))


def _patch_token(layer: Any, x: Tensor) -> Tensor:
    if layer.weight.dim() == 3:
        return x + layer.weight
    return (x.unflatten(0, (len(layer.weight), -1)) + layer.weight).flatten(0, 1)


def _layer_norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    axes = list(layer.normalized_shape)
    stacked = layer.weight.dim() > len(axes)
    if not stacked and (layer.bias is None or layer.bias.dim() == len(axes)):
        return functional.layer_norm(x, axes, layer.weight, layer.bias, layer.eps)
    if not stacked:
        return _add_bias(functional.layer_norm(x, axes, layer.weight, eps=layer.eps), layer.bias)
    scaled = functional.layer_norm(x, axes, eps=layer.eps) * _per_example(layer.weight, x)
    return scaled if layer.bias is None else _add_bias(scaled, layer.bias)


def _rms_norm(layer: rms_norm.T5Norm, x: Tensor) -> Tensor:
    if rms_norm.can_fuse(x, layer.weight):
        return rms_norm.fused_norm(x, layer.weight, layer.variance_epsilon)
    weight = layer.weight if layer.weight.dim() == 1 else _per_example(layer.weight, x)
    return (rms_norm.normalize(x, layer.variance_epsilon) * weight).to(rms_norm.output_dtype(x, weight))


LIBRARIES = (
    "torch",
    "transformers",
    "simfl",
)  # whose classes have the names below; a user's class may mean another layer
GROUPED: dict[str, GroupedForward] = {  # by class name, so that no model library needs to be imported
    "Linear": _linear,
    "BoxLinear": _linear,
    "Conv2d": _conv2d,
    "Embedding": _embedding,
    "LayerNorm": _layer_norm,
    "PatchToken": _patch_token,
    "RmsNorm": _rms_norm,
    "T5LayerNorm": _rms_norm,
}


def grouped_form(layer: nn.Module) -> GroupedForward | None:
    """Return the grouped forward of a layer, if there is one.

    Batch norm has none: padding would enter its mean. Neither has a layer that computes its weight from other
    parameters, as `torch.nn.utils.weight_norm` does.
    """
    kind = type(layer)
    is_plain = kind.__module__.partition(".")[0] in LIBRARIES and layer._parameters.keys() <= {"weight", "bias"}
    return GROUPED.get(kind.__name__) if is_plain else None


def ungrouped_params(module: nn.Module, trained: tuple[str, ...]) -> list[str]:
    """Return the names of trained tensors whose layer has no grouped form."""
    owners = {name: module.get_submodule(name.rpartition(".")[0]) for name in trained}
    return [name for name, owner in owners.items() if grouped_form(owner) is None]


def why_sequential(module: nn.Module, trained: tuple[str, ...]) -> str:
    """Return why a model that trains these tensors trains one client at a time; empty if it need not.

    The attribute `sequential_only` of a module is such a reason. `grouped_only` is one where a trained layer has no
    grouped form: shapes inside of the module depend on values, which `torch.func.vmap` refuses.
    """
    found: str = getattr(module, "sequential_only", "") or ""
    only: str = getattr(module, "grouped_only", "")
    return found or (only if only and ungrouped_params(module, trained) else "")


def grouped_layers(module: nn.Module, trained: tuple[str, ...]) -> GroupedLayers:
    """Return the layers that own `trained` tensors, with their grouped forms; layers without a form are left out."""
    names = set(trained)
    tensors = {id(p) for name, p in module.named_parameters() if name in names}  # includes tied tensors' other owners
    layers = [layer for layer in module.modules() if any(id(p) in tensors for p in layer._parameters.values())]
    return [(layer, form) for layer in layers if (form := grouped_form(layer)) is not None]


@contextmanager
def grouped_forward(layers: GroupedLayers) -> Iterator[None]:
    """Replace the forward of these layers by their grouped form inside the block."""
    before = [(layer, layer.__dict__["forward"]) for layer, _ in layers if "forward" in layer.__dict__]
    for layer, form in layers:
        layer.__dict__["forward"] = partial(form, layer)  # takes precedence over the method of the class
    try:
        yield
    finally:
        for layer, _ in layers:
            del layer.__dict__["forward"]
        for layer, forward in before:  # of a model that is a single layer
            layer.__dict__["forward"] = forward
