"""Dropout as a stateless function of (seed, client, step, layer, position).

torch's own dropout draws from a generator, so its masks depend on what ran before and on how clients are stacked.
Ours hashes the position of each element within its client's activation together with the pass's key, and gives the
same mask one client at a time, under `vmap`, grouped along the batch, on the CPU and on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from simfl.passing import current, part

_HALF = 1 << 16


def keyed_bits(key: Tensor, layer: int, count: int, first: int = 0) -> Tensor:
    """16 random bits for each of `count` positions from `first` on: int16 [*key.shape, count]; `key` is int64.

    A 32-bit finaliser (xor-shift-multiply, Wellons' 'lowbias32') over a counter, keyed before and within; each word
    serves two positions. int32 arithmetic wraps, and shifts are made logical by a mask.
    """
    low, high = (key & 0xFFFFFFFF).to(torch.int32), (key >> 32).to(torch.int32)
    salt = (low * 0x3C6EF35F) ^ (layer * 0x632BE5AB & 0x7FFFFFFF)
    x = (
        torch.arange(first // 2, -(-(first + count) // 2), dtype=torch.int32, device=key.device)
        ^ (salt ^ ((salt >> 13) & 0x7FFFF))[..., None]
    )
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = x ^ high[..., None]
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -0x7B935975  # 0x846ca68b as a signed 32-bit number
    x = x ^ ((x >> 16) & 0xFFFF)
    return x.view(torch.int16)[..., first % 2 : first % 2 + count]


def keyed_keep(key: Tensor, layer: int, count: int, p: float) -> tuple[Tensor, float]:
    """Which of `count` positions stay if each is dropped with probability `p`, and the share expected to stay.

    `p` is taken in steps of 2⁻¹⁶, and the share is exact for the step taken.
    """
    dropped = round(p * _HALF)
    return keyed_bits(key, layer, count, part().before(count)) >= dropped - _HALF // 2, 1.0 - dropped / _HALF


def keyed_dropout(x: Tensor, p: float, layer: int) -> Tensor:
    """Drop elements of `x` with probability `p` under the current pass; identity where the pass has no key.

    With g groups, `x` is [g·B, …] and each group has its own key.
    """
    step = current()
    if step.key is None or p == 0.0:
        return x
    keep, share = keyed_keep(step.keys, layer, x.numel() // step.groups, p)
    return x * (keep.reshape(x.shape).to(x.dtype) / share)


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
