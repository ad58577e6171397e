"""Dropout and stochastic depth as stateless functions of (seed, client, step, layer, position).

torch's dropout draws from a generator, so its masks depend on what ran before and on how clients are stacked. Keyed
dropout hashes the position of each element within its client's activation together with the key of the model call. The
mask is the same for one client at a time, under `vmap`, grouped along the batch, on the CPU and on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from simfl import keyed_random
from simfl.models.base import AutogradContext, Network, has_kernels, load_kernels
from simfl.models.call_context import current_batch_part, current_call

LEVELS = 1 << 16  # a dropout rate is rounded to a multiple of 1 / LEVELS


def keyed_bits(key: Tensor, layer: int, count: int, first: int = 0) -> Tensor:
    """Hash `count` positions, starting at `first`, to 16 random bits each.

    The hash is that of `simfl.keyed_random`, keyed before and within; each 32-bit word serves two positions.

    Args:
        key: int64, of any shape.
        layer: Number of the layer within its model.
        count: Number of positions.
        first: First position.

    Returns:
        int16 [*key.shape, count].
    """
    low, high = keyed_random.split_key(key)
    salt = (low * keyed_random.KEY_MULTIPLIER) ^ layer_salt(layer)
    salt = salt ^ keyed_random.logical_shift(salt, 13)
    x = torch.arange(first // 2, -(-(first + count) // 2), dtype=torch.int32, device=key.device) ^ salt[..., None]
    x = keyed_random.finalize(keyed_random.mix_second(keyed_random.mix_first(x) ^ high[..., None]))
    return _halves(x)[..., first % 2 : first % 2 + count]


def keyed_bits_at(key: Tensor, layer: int, positions: Tensor) -> Tensor:
    """Hash positions, int64 [n], to those of `keyed_bits`: int16 [*key.shape, n]."""
    low, high = keyed_random.split_key(key)
    salt = (low * keyed_random.KEY_MULTIPLIER) ^ layer_salt(layer)
    salt = salt ^ keyed_random.logical_shift(salt, 13)
    x = (positions >> 1).to(torch.int32) ^ salt[..., None]
    x = keyed_random.finalize(keyed_random.mix_second(keyed_random.mix_first(x) ^ high[..., None]))
    return torch.where((positions & 1).bool(), x >> 16, x).to(torch.int16)


def _halves(words: Tensor) -> Tensor:
    """Return the two 16-bit halves of 32-bit words, the low half first: int16 [..., 2 n] of int32 [..., n]."""
    if current_call().under_vmap and not _vmap_views_dtypes():
        return torch.stack((words, words >> 16), -1).to(torch.int16).flatten(-2)
    return words.view(torch.int16)


@cache
def _vmap_views_dtypes() -> bool:
    """Return whether `torch.func.vmap` has a rule for views of another dtype, as torch 2.13 has and 2.11 has not."""
    try:
        torch.func.vmap(lambda words: words.view(torch.int16))(torch.zeros(1, 2, dtype=torch.int32))
    except RuntimeError:
        return False
    return True


def layer_salt(layer: int) -> int:
    """Spread a layer's number over 31 bits."""
    return layer * 0x632BE5AB & 0x7FFFFFFF


def keyed_keep(key: Tensor, layer: int, count: int, p: float) -> tuple[Tensor, float]:
    """Choose which of `count` positions are kept if each is dropped with probability `p`.

    `p` is rounded to a multiple of 2⁻¹⁶.

    Returns:
        A mask, bool [*key.shape, count], and the expected share kept, exact for the rounded `p`.
    """
    dropped = round(p * LEVELS)
    kept = keyed_bits(key, layer, count, current_batch_part().offset(count)) >= dropped - LEVELS // 2
    return kept, 1.0 - dropped / LEVELS


def keyed_keep_at(
    key: Tensor, layer: int, shape: Sequence[int], whole: Sequence[int], p: float
) -> tuple[Tensor, float]:
    """Return `keyed_keep` of a part of an activation: the first values along each axis of one of shape `whole`."""
    dropped, stride = round(p * LEVELS), 1
    positions = torch.zeros((), dtype=torch.int64, device=key.device)
    for axis in range(len(shape) - 1, -1, -1):
        along = torch.arange(shape[axis], device=key.device) * stride
        positions = positions + along.reshape(-1, *[1] * (len(shape) - 1 - axis))
        stride *= whole[axis]
    first = current_batch_part().offset(stride)
    kept = keyed_bits_at(key, layer, positions.flatten() + first) >= dropped - LEVELS // 2
    return kept, 1.0 - dropped / LEVELS


def keep_scale(dropped: int) -> float:
    """Return the factor on kept values if `dropped` of LEVELS are dropped."""
    return 1.0 / (1.0 - dropped / LEVELS)


def keyed_dropout(x: Tensor, p: float, layer: int) -> Tensor:
    """Drop elements of `x` with probability `p`; return `x` itself if the current model call has no key.

    With g groups, `x` is [g·B, …] and each group has its own key.
    """
    call = current_call()
    if call.dropout_key is None or p == 0.0:
        return x
    shape = (x.shape[0] // call.num_groups, *x.shape[1:])
    whole = call.whole_shape(shape)
    if whole != shape:
        keep, share = keyed_keep_at(call.group_keys(x.device), layer, shape, whole, p)
        return x * (keep.reshape(x.shape).to(x.dtype) / share)
    count = x.numel() // call.num_groups
    if not call.under_vmap and x.is_floating_point() and has_kernels(x, "elementwise_kernels"):
        numbers = [layer_salt(layer), current_batch_part().offset(count), round(p * LEVELS)]
        dropped: Tensor = _FusedDropout.apply(x, call.group_keys(x.device).reshape(-1), numbers)
        return dropped
    keep, share = keyed_keep(call.group_keys(x.device), layer, count, p)
    return x * (keep.reshape(x.shape).to(x.dtype) / share)


class _FusedDropout(torch.autograd.Function):
    """Dropout in one GPU kernel, one operator to tracing and compiling; the gradient drops the same positions."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, keys: Tensor, numbers: list[int]) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.numbers = numbers
        out: Tensor = torch.ops.simfl.keyed_dropout(x.contiguous(), keys, numbers)
        return out

    @staticmethod
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor, None, None]:
        return torch.ops.simfl.keyed_dropout(gradient.contiguous(), *ctx.saved_tensors, ctx.numbers), None, None


@torch.library.custom_op("simfl::keyed_dropout", mutates_args=())
def _keyed_dropout(x: Tensor, keys: Tensor, numbers: list[int]) -> Tensor:
    """Drop elements of `x`, equal parts of which have a key each.

    `numbers` are the layer's salt, the positions before `x`, and the dropped share of LEVELS.
    """
    out, count, block = torch.empty_like(x), x.numel() // len(keys), 1024
    grid = (-(-count // block), len(keys))
    kernel = load_kernels("elementwise_kernels").dropout
    kernel[grid](x, keys, out, count, *numbers, keep_scale(numbers[2]), block, num_warps=4)
    return out


@_keyed_dropout.register_fake
def _(x: Tensor, keys: Tensor, numbers: list[int]) -> Tensor:
    return torch.empty_like(x)


class KeyedDropout(nn.Module):
    """Keyed replacement of `nn.Dropout`."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.dropout_layer = 0  # set by `install_keyed_dropout`

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of `x` in training mode."""
        return keyed_dropout(x, self.p, self.dropout_layer) if self.training else x

    def extra_repr(self) -> str:
        """Show the settings in the module's repr."""
        return f"p={self.p}, dropout_layer={self.dropout_layer}"


class KeyedDropPath(nn.Module):
    """Keyed stochastic depth (Huang et al. 2016): in training, an example loses its whole residual branch."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.dropout_layer = 0  # set by `install_keyed_dropout`

    def forward(self, x: Tensor) -> Tensor:
        """Set each example of `x` [g·B, …] to zero with probability `p`, and scale the others up."""
        call = current_call()
        if not self.training or self.p == 0.0 or call.dropout_key is None:
            return x
        keep, share = keyed_keep(call.group_keys(x.device), self.dropout_layer, x.shape[0] // call.num_groups, self.p)
        return x * (keep.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype) / share)

    def extra_repr(self) -> str:
        """Show the settings in the module's repr."""
        return f"p={self.p}"


def install_keyed_dropout(module: Network) -> Network:
    """Replace every `nn.Dropout` of `module` in place, number every layer, and return `module`.

    Functional dropout inside attention is handled by the attention function of `models.attention`.
    """
    for number, (name, child) in enumerate(list(module.named_modules()), start=1):
        parent, _, last_name = name.rpartition(".")
        if isinstance(child, nn.Dropout):
            child = KeyedDropout(child.p)
            setattr(module.get_submodule(parent), last_name, child)
        child.dropout_layer = number  # also read by keyed attention
    return module
