"""Dropout as a stateless function of (seed, client, step, layer, position).

torch's own dropout draws from a generator, so its masks depend on what ran before and on how clients are stacked.
Ours hashes the position of each element within its client's activation together with the pass's key, and gives the
same mask one client at a time, under `vmap`, grouped along the batch, on the CPU and on a GPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from simfl import keyed_random as chance
from simfl.models.call_context import current, part

HALF = 1 << 16


def keyed_bits(key: Tensor, layer: int, count: int, first: int = 0) -> Tensor:
    """16 random bits for each of `count` positions from `first` on: int16 [*key.shape, count]; `key` is int64.

    The hash of `simfl.chance`, keyed before and within; each word serves two positions.
    """
    low, high = chance.words(key)
    salt = (low * chance.SPREAD) ^ mark(layer)
    salt = salt ^ chance.shifted(salt, 13)
    x = torch.arange(first // 2, -(-(first + count) // 2), dtype=torch.int32, device=key.device) ^ salt[..., None]
    x = chance.last(chance.second(chance.first(x) ^ high[..., None]))
    return x.view(torch.int16)[..., first % 2 : first % 2 + count]


def mark(layer: int) -> int:
    """A layer's number spread over 31 bits."""
    return layer * 0x632BE5AB & 0x7FFFFFFF


def keyed_keep(key: Tensor, layer: int, count: int, p: float) -> tuple[Tensor, float]:
    """Which of `count` positions stay if each is dropped with probability `p`, and the share expected to stay.

    `p` is taken in steps of 2⁻¹⁶, and the share is exact for the step taken.
    """
    dropped = round(p * HALF)
    return keyed_bits(key, layer, count, part().before(count)) >= dropped - HALF // 2, 1.0 - dropped / HALF


def keyed_dropout(x: Tensor, p: float, layer: int) -> Tensor:
    """Drop elements of `x` with probability `p` under the current pass; identity where the pass has no key.

    With g groups, `x` is [g·B, …] and each group has its own key.
    """
    step = current()
    if step.key is None or p == 0.0:
        return x
    count = x.numel() // step.groups
    if x.is_cuda and not step.stacked and x.is_floating_point() and _kernel() is not None:
        numbers = [mark(layer), part().before(count), round(p * HALF)]
        dropped: Tensor = _Dropout.apply(x, step.keys.reshape(-1), numbers)
        return dropped
    keep, share = keyed_keep(step.keys, layer, count, p)
    return x * (keep.reshape(x.shape).to(x.dtype) / share)


class _Dropout(torch.autograd.Function):
    """On a GPU as one kernel, which tracing and compiling see as one operator; the gradient drops the same places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, numbers: list[int]) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.numbers = numbers
        out: Tensor = torch.ops.simfl.keyed_dropout(x.contiguous(), keys, numbers)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return torch.ops.simfl.keyed_dropout(slope.contiguous(), *ctx.saved_tensors, ctx.numbers), None, None


@torch.library.custom_op("simfl::keyed_dropout", mutates_args=())
def _keyed_dropout(x: Tensor, keys: Tensor, numbers: list[int]) -> Tensor:
    """Of `x`, equal parts of which have a key each. `numbers`: the layer's mark, places before `x`, share dropped."""
    out, count, block = torch.empty_like(x), x.numel() // len(keys), 1024
    grid = (-(-count // block), len(keys))
    _kernel().forward[grid](x, keys, out, count, *numbers, lift(numbers[2]), block, num_warps=4)
    return out


def lift(dropped: int) -> float:
    """What is kept is multiplied by, if so many of HALF are dropped."""
    return 1.0 / (1.0 - dropped / HALF)


@_keyed_dropout.register_fake
def _(x: Tensor, keys: Tensor, numbers: list[int]) -> Tensor:
    return torch.empty_like(x)


@cache
def _kernel() -> Any:
    """The kernel, where there is Triton."""
    try:
        from simfl.models import dropout_kernel
    except ImportError:
        return None
    return dropout_kernel


class KeyedDropout(nn.Module):
    """Takes the place of `nn.Dropout`. `layer` is its number within the model."""

    def __init__(self, p: float, layer: int = 0) -> None:
        super().__init__()
        self.p, self.layer = p, layer

    def forward(self, x: Tensor) -> Tensor:
        """`x` with dropout in training mode."""
        return keyed_dropout(x, self.p, self.layer) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}, layer={self.layer}"


def install(module: nn.Module) -> nn.Module:
    """Replace every dropout of `module` in place and number every layer that drops; returns `module`.

    Functional dropout inside attention is served by the attention function of `models.attention`.
    """
    for number, (name, child) in enumerate(list(module.named_modules()), start=1):
        if isinstance(child, nn.Dropout):
            parent = module.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], KeyedDropout(child.p, number))
        elif isinstance(child, KeyedDropout):
            child.layer = number
        else:
            child.dropout_layer = number  # read by keyed attention
    return module
