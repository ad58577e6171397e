"""Dropout as a stateless function of (seed, client, step, layer, position).

torch's own dropout draws from a generator, so its masks depend on what ran before and on how clients are stacked.
Ours hashes the position of each element within its client's activation together with the pass's key, and gives the
same mask one client at a time, under `vmap`, grouped along the batch, on the CPU and on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from simfl.passing import current

_LOW = 0x7FFFFFFF


def _mix(x: Tensor) -> Tensor:
    """A 32-bit finaliser (xor-shift-multiply, Wellons' 'lowbias32'); int32 wraps, shifts are made logical."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -0x7B935975  # 0x846ca68b as a signed 32-bit number
    return x ^ ((x >> 16) & 0xFFFF)


def keyed_uniform(key: Tensor, layer: int, count: int) -> Tensor:
    """31-bit hashes of positions 0 … count−1 under `key` (int64, any shape): int32 [*key.shape, count]."""
    low, high = (key & 0xFFFFFFFF).to(torch.int32), (key >> 32).to(torch.int32)
    position = torch.arange(count, dtype=torch.int32, device=key.device)
    salt = _mix(low ^ (layer * 0x632BE5AB & _LOW))[..., None]
    return _mix(_mix(position ^ salt) + high[..., None]) & _LOW


def keyed_dropout(x: Tensor, p: float, layer: int) -> Tensor:
    """Drop elements of `x` with probability `p` under the current pass; identity where the pass has no key.

    With g groups, `x` is [g·B, …] and each group has its own key.
    """
    step = current()
    if step.key is None or p == 0.0:
        return x
    keys = step.key.reshape(step.groups) if step.groups > 1 else step.key.reshape(())
    keep = keyed_uniform(keys, layer, x.numel() // step.groups) >= int(p * (_LOW + 1))
    return x * (keep.reshape(x.shape).to(x.dtype) / (1.0 - p))


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
