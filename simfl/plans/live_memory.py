"""Peak of the memory that a training step holds, simulated with tensors that have shapes and no values.

Every operation of the forward and the backward pass runs on such tensors; the bytes of each new storage count until
its last reference is gone, as in the caching allocator of a GPU. Attention, dropout and the like are those of a GPU,
whose kernels keep no matrix of scores and no mask. Not counted: workspaces of kernels, and rounding.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simfl.models.base import planned_kernels
from simfl.protocol import Weights

HEAD_MULTIPLE = 8  # fused attention pads heads of other widths


class LiveMemory(TorchDispatchMode):
    """The bytes that operations in the block create and that are alive.

    Attributes:
        live: Bytes now.
        peak: Most bytes so far.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        """Create a counter that leaves out the storages of the `known` tensors."""
        super().__init__()
        self.live = self.peak = 0
        self._seen = {id(storage): weakref.ref(storage) for storage in (t.untyped_storage() for t in known)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count its outputs."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: Any) -> None:
        seen = self._seen.get(id(storage))
        if seen is not None and seen() is storage:
            return
        size = int(storage.nbytes())
        self._seen[id(storage)] = weakref.ref(storage)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.live -= size


@contextmanager
def fused_attention() -> Iterator[None]:
    """Give attention in the block the memory of the fused kernels of a GPU, instead of that of a matrix of scores.

    The function itself is replaced: a mode of torch would not reach layers that are recomputed in the backward pass.
    """
    original = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = _attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return the shape of attention by the memory-efficient kernel, which saves no matrix of scores."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    if query.dim() != 4 or query.shape[-1] % HEAD_MULTIPLE or value.shape[-1] % HEAD_MULTIPLE:
        return _plain_attention(query, key, value, attn_mask, scale)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:2], query.shape[2], key.shape[2])
    out: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )[0]
    return out


def _plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    scores = query @ key.transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.masked_fill(mask, 0) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ value


def step_peak(
    loss_of: Callable[[Weights], Tensor], leaves: Mapping[str, Tensor], known: Iterable[Tensor], traced: bool = False
) -> int:
    """Return the most bytes that a training step holds beyond the known tensors: activations, gradients, temporaries.

    Args:
        loss_of: Returns the loss, a scalar, for the trained tensors.
        leaves: The trained tensors, with or without values.
        known: Tensors that the step reads and does not create.
        traced: Compute with fake tensors, as where a program is traced; slower, and models of transformers then read
            no values. Else operations run on the device of the tensors, such as `meta`.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True) if traced else None
    as_given: Callable[[Tensor], Tensor] = lambda t: t
    shaped = as_given if fake is None else fake.from_tensor
    with fake or nullcontext():
        trained = {name: shaped(t).detach().requires_grad_() for name, t in leaves.items()}
        memory = LiveMemory([*trained.values(), *map(shaped, known)])
        with memory, fused_attention(), planned_kernels():
            loss = loss_of(trained)
            gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
            del loss, gradients
    return memory.peak
