"""Logits of labelled positions alone: with 150,000 tokens, those of 4 x 1,200 positions have 2.9 GB in float32.

The last layer of a model of transformers, its output embeddings, is given the hidden states of the labelled positions
instead of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def labelled_positions(module: nn.Module, positions: Tensor) -> Iterator[None]:
    """Compute logits [B, T, V] at `positions` [B, T], int64, inside the block, instead of [B, L, V]."""
    head = output_layer(module)
    if head is None:
        yield
        return
    hook = head.register_forward_pre_hook(lambda layer, inputs: (at_positions(inputs[0], positions), *inputs[1:]))
    try:
        yield
    finally:
        hook.remove()


def output_layer(module: nn.Module) -> nn.Module | None:
    """Return the layer of a model of transformers that computes logits; None if it has none."""
    get: Any = getattr(module, "get_output_embeddings", None)
    found = get() if callable(get) else None
    return found if isinstance(found, nn.Module) else None


def at_positions(values: Tensor, positions: Tensor) -> Tensor:
    """Return the rows of values [B, L, D] at positions [B, T]: [B, T, D]."""
    index = positions.to(values.device)[..., None]  # a model over several devices has its last layer on the last one
    return values.gather(1, index.expand(-1, -1, values.shape[-1]))
