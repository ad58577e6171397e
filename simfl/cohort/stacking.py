"""Items side by side: stacking, unstacking, mapping over the first axis, and the namespaces of a client's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from simfl.protocol import State, Weights


def stack(rows: list[Weights]) -> Weights:
    """[n, …] from n named tensors of equal names and shapes."""
    return {name: torch.stack([r[name] for r in rows]) for name in rows[0]} if rows else {}


def row(tensors: Weights, k: int) -> Weights:
    """Item k of stacked tensors."""
    return {name: t[k] for name, t in tensors.items()}


def mapped(function: Callable[..., Any], n: int) -> Callable[..., Any]:
    """`function` over the first axis of stacked arguments; for one item, without the cost of `vmap`."""
    if n > 1:
        return torch.func.vmap(function)
    return lambda *args: tree_map(lambda t: t[None], function(*tree_map(lambda t: t[0], args)))


def namespace(memory: State, name: str) -> State:
    """The groups of a client's memory under this name, without it: `algorithm:control` is `control` of `algorithm`."""
    return {key.partition(":")[2]: tensors for key, tensors in memory.items() if key.partition(":")[0] == name}
