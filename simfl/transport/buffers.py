"""Averaging of buffers: clients send the change of each, and the server adds the mean change.

Floating-point: b ← b + mean(b_k − b). Where b is not finite, as the first minimum of an observer, 0 stands for it.
Integers advance by the mean change, rounded to the nearest integer: a counter counts what a client does on average.
Booleans become true where b + mean(b_k − b) is positive: where any client's is true.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simfl.weights import Weights


def buffer_change(own: Weights, received: Weights) -> Weights:
    """Return what clients send: the change of their tensors [n, …] since the received ones; float32 of integers."""
    return {name: _change(own[name], t) for name, t in received.items()}


def advanced_buffers(before: Weights, mean_change: Weights) -> Weights:
    """Return the averaged buffers after a round."""
    assert before.keys() == mean_change.keys(), f"names differ: {sorted(before.keys() ^ mean_change.keys())}"
    return {name: _advanced(t, mean_change[name]) for name, t in before.items()}


def _change(own: Tensor, received: Tensor) -> Tensor:
    if received.is_floating_point() or received.is_complex():
        return own - _base(received)
    return (own.to(torch.int64) - received.to(torch.int64)).to(torch.float32)


def _advanced(before: Tensor, change: Tensor) -> Tensor:
    if before.is_floating_point() or before.is_complex():
        return (_base(before) + change).to(before.dtype)
    if before.dtype == torch.bool:
        return before.to(torch.float32) + change > 0
    return before + change.round().to(before.dtype)


def _base(tensor: Tensor) -> Tensor:
    """Return the tensor with 0 for what is not finite."""
    return torch.where(torch.isfinite(tensor), tensor, torch.zeros_like(tensor))
