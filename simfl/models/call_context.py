"""The pass under way: what layers must know beyond their input, without threading it through every model's `forward`.

The engine enters a `ModelCall` around each call of a model. Keyed dropout reads `key`, adapters read `branch`, grouped
layers read `groups`. Outside of any pass (a user calling the model by hand) layers see the default: no dropout, one
group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ModelCall:
    """One call of a model by the engine."""

    key: Tensor | None = None  # int64 scalar, or [groups]: the dropout key of this client and step; None: no dropout
    groups: int = 1  # clients side by side along the first axis of every activation
    branch: str = ""  # the path through adapters that have several
    stacked: bool = False  # under `vmap`, where fused kernels have no rule

    @property
    def keys(self) -> Tensor:
        """The dropout key of each group: [groups], or a scalar for one."""
        assert self.key is not None
        return self.key.reshape(self.groups) if self.groups > 1 else self.key.reshape(())


@dataclass(frozen=True)
class BatchPart:
    """Which examples of their batch are in the passes under way: `count` of them, after `first` others."""

    first: int
    count: int

    def before(self, values: int) -> int:
        """Of an activation of the whole batch, how many values come before the `values` of this part."""
        return self.first * (values // self.count)


_OUTSIDE = ModelCall()
_WHOLE = BatchPart(0, 1)
_PART: ContextVar[BatchPart] = ContextVar("simfl_part", default=_WHOLE)
_CURRENT: ContextVar[ModelCall] = ContextVar("simfl_pass", default=_OUTSIDE)


def current() -> ModelCall:
    """The pass under way."""
    return _CURRENT.get()


@contextmanager
def call_context(step: ModelCall) -> Iterator[None]:
    """Make `step` the current pass inside a `with` block."""
    token = _CURRENT.set(step)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def part() -> BatchPart:
    """The part of a batch that passes are of."""
    return _PART.get()


@contextmanager
def batch_part(part: BatchPart) -> Iterator[None]:
    """Inside the block, passes are of this part of a batch."""
    token = _PART.set(part)
    try:
        yield
    finally:
        _PART.reset(token)
