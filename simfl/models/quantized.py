"""Frozen linear layers with quantized weights, under adapters (QLoRA, Dettmers et al. 2023), by torch or bitsandbytes.

    int8    one byte a value; a scale for each output
    nf4     four bits a value at the quantiles of a normal distribution; a scale for each block of 64 values
    bnb_nf4 the same values by the kernels of bitsandbytes, an optional package, which dequantize in one operation

Weights are dequantized for each pass, in the dtype of the activations, and again in the backward pass, so that they are
never kept. Embeddings, norms, the layer of the logits and heads stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from simfl.errors import ConfigError
from simfl.models.base import AutogradContext

Kind = Literal["int8", "nf4", "bnb_nf4"]
BLOCK = 64  # values that share a scale
LEVELS = (  # QLoRA, appendix E
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class QuantizedLinear(nn.Linear):
    """A linear layer whose weight is stored quantized and never trained; `weight` dequantizes it."""

    def __init__(self, layer: nn.Linear, kind: Kind) -> None:
        """Quantize the weight of `layer`, whose bias is kept."""
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.kind = layer.in_features, layer.out_features, kind
        self.dtype = layer.weight.dtype
        codes, scales = _quantized(layer.weight.detach(), kind)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.bias = layer.bias
        self.train(layer.training)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The dequantized weight [out, in], a new tensor in the dtype of the layer."""
        return self.dequantized(self.dtype)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """Return the weight [out, in]."""
        codes, scales = self.get_buffer("codes"), self.get_buffer("scales")
        return _dequantized(codes, scales, (self.out_features, self.in_features), self.kind, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Return x Wᵀ + b; the gradient reaches x."""
        product: Tensor = _Product.apply(input, self)
        return product if self.bias is None else product + self.bias.to(product.dtype)

    def plain(self) -> nn.Linear:
        """Return a linear layer with the dequantized weight."""
        found = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        found.weight = nn.Parameter(self.weight, requires_grad=False)
        found.bias = self.bias
        return found.train(self.training)


class _Product(torch.autograd.Function):
    """x Wᵀ, which keeps the layer for the backward pass instead of the dequantized weight."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, layer: QuantizedLinear) -> Tensor:
        """Return x Wᵀ [..., out]."""
        ctx.layer = layer
        return functional.linear(x, layer.dequantized(x.dtype))

    @staticmethod
    def backward(ctx: AutogradContext, *gradients: Any) -> tuple[Tensor, None]:
        """Return the gradient of x."""
        (gradient,) = gradients
        return gradient @ ctx.layer.dequantized(gradient.dtype), None


def quantize_linears(module: nn.Module, kind: Kind, kept: Iterable[nn.Module | None]) -> int:
    """Replace the linear layers of a module by quantized ones, without `kept`; return their number.

    A weight that several layers share is kept.
    """
    owners: dict[int, int] = {}
    for layer in module.modules():
        for parameter in layer._parameters.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    excluded, replaced = {id(layer) for layer in kept}, 0
    for path, layer in list(module.named_modules()):
        if type(layer) is nn.Linear and id(layer) not in excluded and owners[id(layer.weight)] == 1:
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, QuantizedLinear(layer, kind))
            replaced += 1
    return replaced


def dequantize_linears(module: nn.Module) -> None:
    """Replace the quantized layers of a module by linear layers of the same names and values."""
    for path, layer in list(module.named_modules()):
        if isinstance(layer, QuantizedLinear):
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, layer.plain())


def _quantized(weight: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return codes and scales of a weight [out, in]."""
    values = weight.float()
    if kind == "int8":
        scales = values.abs().amax(1, keepdim=True) / 127
        return (values / _nonzero(scales)).round().to(torch.int8), scales
    flat = functional.pad(values.flatten(), (0, -values.numel() % BLOCK)).reshape(-1, BLOCK)
    scales = flat.abs().amax(1, keepdim=True)
    if kind == "bnb_nf4" and not weight.is_meta:
        codes, state = _bitsandbytes().quantize_4bit(flat, blocksize=BLOCK, quant_type="nf4", compress_statistics=False)
        return codes.flatten(), state.absmax.reshape(-1, 1)
    levels = torch.tensor(LEVELS, device=weight.device)
    middles = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(flat / _nonzero(scales), middles).to(torch.uint8).flatten()
    return codes[0::2] | codes[1::2] << 4, scales


def check_kind(kind: Kind) -> None:
    """Raise ConfigError if a kind needs a package that is not installed."""
    if kind == "bnb_nf4":
        _bitsandbytes()


def _bitsandbytes() -> Any:
    """Return the functions of bitsandbytes. Raise ConfigError without the package."""
    try:
        from bitsandbytes import functional as kernels
    except ImportError as error:
        given = "model.base: bnb_nf4 needs the package bitsandbytes"
        raise ConfigError(f"{given}; pip install 'simfl[bitsandbytes]', or base: nf4 without it") from error
    return kernels


def _nonzero(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, torch.ones_like(scales), scales)


def _dequantized(codes: Tensor, scales: Tensor, shape: tuple[int, int], kind: Kind, dtype: torch.dtype) -> Tensor:
    """Return the weight of codes and scales, computed in float32."""
    if kind == "int8":
        return (codes.float() * scales).to(dtype)
    size = shape[0] * shape[1]
    if kind == "bnb_nf4":
        blocks = torch.Size((scales.numel(), BLOCK))  # rows of whole blocks: others are read wrongly on CPUs (0.50.2)
        kernels = _bitsandbytes()
        state = kernels.QuantState(scales.flatten(), blocks, blocksize=BLOCK, quant_type="nf4", dtype=dtype)
        whole: Tensor = kernels.dequantize_4bit(codes.reshape(-1, 1), state)
        return whole.flatten()[:size].reshape(shape)
    levels = torch.tensor(LEVELS, device=codes.device)
    pairs = torch.stack((codes & 15, codes >> 4), 1).flatten()
    values = levels[pairs.int()].reshape(-1, BLOCK) * scales
    return values.flatten()[:size].reshape(shape).to(dtype)
