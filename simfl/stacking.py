"""Stacked tensors: several clients' tensors along a first axis, and the namespaces of a client's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import MappingKey, register_pytree_node, tree_map

from simfl.protocol import Parts, State, Weights


class StackedParts(dict[str, Weights]):
    """Downloads of n clients that received different versions of the model, [n, …].

    Clients that received the same share ordinary `Parts`, without a first axis.
    """


def _children(parts: StackedParts) -> tuple[list[Weights], tuple[str, ...]]:
    return list(parts.values()), tuple(parts)


register_pytree_node(
    StackedParts,
    _children,
    lambda values, names: StackedParts(zip(names, values, strict=True)),
    flatten_with_keys_fn=lambda parts: ([(MappingKey(name), own) for name, own in parts.items()], tuple(parts)),
    serialized_type_name="simfl.stacking.StackedParts",
)


def stack_parts(rows: list[Parts]) -> Parts:
    """Stack the downloads of n clients to [n, …]; if all are one object, return it without a first axis."""
    if all(row is rows[0] for row in rows):
        return rows[0]
    return StackedParts({part: stack_rows([row[part] for row in rows]) for part in rows[0]})


def parts_axis(parts: Parts) -> int | None:
    """Return the first axis of downloads, to be mapped over clients; None if all clients share them."""
    return 0 if isinstance(parts, StackedParts) else None


def parts_of(parts: Parts, k: int) -> Parts:
    """Return what client k received."""
    return {part: take_row(own, k) for part, own in parts.items()} if isinstance(parts, StackedParts) else parts


def to_device(device: torch.device, array: np.ndarray) -> Tensor:
    """Return an array as a tensor on a device, without waiting for work queued there."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def on_host(tensors: Weights) -> Weights:
    """Return tensors in the memory of the CPU; those of a GPU are copied together, through pinned memory."""
    own = {name: t.detach() for name, t in tensors.items()}
    found = {name: torch.empty_like(t, device="cpu", pin_memory=True) for name, t in own.items() if t.is_cuda}
    for name, copied in found.items():
        copied.copy_(own[name], non_blocking=True)
    if found:
        torch.cuda.synchronize()
    return {name: found[name] if name in found else t.cpu() for name, t in own.items()}


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


def map_received(function: Callable[..., Any], received: Parts, n: int) -> Callable[..., Any]:
    """Return `function(received, …)` of one client, mapped over n clients, as a function of its other arguments."""
    if n == 1:
        own = parts_of(received, 0)
        return map_rows(lambda *args: function(own, *args), n)
    if not isinstance(received, StackedParts):
        return map_rows(lambda *args: function(received, *args), n)
    return lambda *args: map_rows(function, n)(received, *args)


def select_namespace(state: State, name: str) -> State:
    """Return the groups of a client's state under a namespace: `algorithm:control` is `control` of `algorithm`."""
    return {key.partition(":")[2]: tensors for key, tensors in state.items() if key.partition(":")[0] == name}
