"""Items side by side: stacking, unstacking, mapping over the first axis, and the namespaces of a client's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_map

from simfl.protocol import State, Weights


def sent_to(device: torch.device, array: np.ndarray) -> Tensor:
    """An array on a device, without waiting for what that has to do."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def stack(rows: list[Weights]) -> Weights:
    """[n, …] from n named tensors of equal names and shapes; a first axis that differs is padded with zeros."""
    return {name: _stacked([r[name] for r in rows]) for name in rows[0]} if rows else {}


def _stacked(tensors: list[Tensor]) -> Tensor:
    lengths = {t.shape[:1] for t in tensors}
    return torch.stack(tensors) if len(lengths) == 1 else pad_sequence(tensors, batch_first=True)


def row(tensors: Weights, k: int) -> Weights:
    """Item k of stacked tensors."""
    return {name: t[k] for name, t in tensors.items()}


def row_like(tensors: Weights, k: int, like: Weights) -> Weights:
    """Item k of stacked tensors, without the padding that `like` had not."""
    return {name: t[k][tuple(slice(size) for size in like[name].shape[:1])] for name, t in tensors.items()}


def mapped(function: Callable[..., Any], n: int) -> Callable[..., Any]:
    """`function` over the first axis of stacked arguments; for one item, without the cost of `vmap`."""
    if n > 1:
        return torch.func.vmap(function)
    return lambda *args: tree_map(lambda t: t[None], function(*tree_map(lambda t: t[0], args)))


def namespace(memory: State, name: str) -> State:
    """The groups of a client's memory under this name, without it: `algorithm:control` is `control` of `algorithm`."""
    return {key.partition(":")[2]: tensors for key, tensors in memory.items() if key.partition(":")[0] == name}
