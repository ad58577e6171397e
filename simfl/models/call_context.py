"""The state of the model call under way, which layers read without it being passed through every `forward`.

The training code enters `call_context(ModelCall(...))` around each call of a model. Keyed dropout reads `dropout_key`,
adapters read `branch`, grouped layers read `num_groups`. Outside of any context, as when a user calls the model
directly, layers see the default: no dropout, one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ModelCall:
    """Settings of one call of a model.

    Attributes:
        dropout_key: int64 scalar, or [num_groups]: the key of a client and local step; None turns dropout off.
        num_groups: Clients whose examples are concatenated along the first axis of every activation.
        branch: Path through adapters that have several; "" is their first.
        under_vmap: True inside of `torch.func.vmap`, for which fused kernels have no batching rule.
        cut: Padding of a batch was cut off: the length that is left, and the length of all batches; None: it was not.
    """

    dropout_key: Tensor | None = None
    num_groups: int = 1
    branch: str = ""
    under_vmap: bool = False
    cut: tuple[int, int] | None = None

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of an activation [B, L, D] or of attention [B, H, L, L] as if no padding had been cut off.

        Dropout numbers its values by this shape, so that masks do not depend on how much was cut.
        """
        if self.cut is None or len(shape) not in (3, 4):
            return tuple(shape)
        short, full = self.cut
        axes = (1,) if len(shape) == 3 else (2, 3)
        return tuple(full if axis in axes and size == short else size for axis, size in enumerate(shape))

    def group_keys(self, device: torch.device) -> Tensor:
        """Return the dropout key of each group on the device of a layer: [num_groups], or a scalar for one group."""
        assert self.dropout_key is not None
        key = self.dropout_key.to(device)
        return key.reshape(self.num_groups) if self.num_groups > 1 else key.reshape(())


@dataclass(frozen=True)
class BatchPart:
    """The examples of a batch that a call of the model sees: `count` of them, preceded by `first` others."""

    first: int
    count: int

    def offset(self, num_values: int) -> int:
        """Return how many values of the whole batch's activation precede the `num_values` of this part."""
        return self.first * (num_values // self.count)


NO_CALL = ModelCall()  # outside of any context
WHOLE_BATCH = BatchPart(0, 1)
_CALL: ContextVar[ModelCall] = ContextVar("simfl_model_call", default=NO_CALL)
_PART: ContextVar[BatchPart] = ContextVar("simfl_batch_part", default=WHOLE_BATCH)


def current_call() -> ModelCall:
    """Return the model call under way, or `NO_CALL`."""
    return _CALL.get()


@contextmanager
def call_context(call: ModelCall) -> Iterator[None]:
    """Make `call` the current model call inside the block."""
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


def current_batch_part() -> BatchPart:
    """Return the part of the batch that the current model calls see."""
    return _PART.get()


@contextmanager
def batch_part(part: BatchPart) -> Iterator[None]:
    """Make `part` the part of the batch that model calls inside the block see."""
    token = _PART.set(part)
    try:
        yield
    finally:
        _PART.reset(token)
