"""Stacked tensors: several clients' tensors along a first axis, and the namespaces of a client's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_map

from simfl.protocol import State, Weights


def to_device(device: torch.device, array: np.ndarray) -> Tensor:
    """Return an array as a tensor on a device, without waiting for work queued there."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def stack_rows(rows: list[Weights]) -> Weights:
    """Stack n groups of named tensors to [n, ...]; tensors of unequal first axes are padded with zeros."""
    return {name: _stack([r[name] for r in rows]) for name in rows[0]} if rows else {}


def _stack(tensors: list[Tensor]) -> Tensor:
    lengths = {t.shape[:1] for t in tensors}
    return torch.stack(tensors) if len(lengths) == 1 else pad_sequence(tensors, batch_first=True)


def take_row(tensors: Weights, k: int) -> Weights:
    """Return row k of stacked tensors."""
    return {name: t[k] for name, t in tensors.items()}


def take_row_like(tensors: Weights, k: int, like: Weights) -> Weights:
    """Return row k of stacked tensors, cut to the shapes of `like`, so without padding."""
    return {name: t[k][tuple(slice(size) for size in like[name].shape[:1])] for name, t in tensors.items()}


def map_rows(function: Callable[..., Any], n: int) -> Callable[..., Any]:
    """Return `function` mapped over the first axis [n] of its arguments; one row avoids the cost of `vmap`."""
    if n > 1:
        return torch.func.vmap(function)
    return lambda *args: tree_map(lambda t: t[None], function(*tree_map(lambda t: t[0], args)))


def select_namespace(state: State, name: str) -> State:
    """Return the groups of a client's state under a namespace: `algorithm:control` is `control` of `algorithm`."""
    return {key.partition(":")[2]: tensors for key, tensors in state.items() if key.partition(":")[0] == name}
