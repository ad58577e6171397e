"""Logits of labelled positions alone, and losses of all positions in chunks.

With 150,000 tokens, logits of 4 x 1,200 positions have 2.9 GB in float32. Where few positions are labelled, the last
layer of a model of transformers, its output embeddings, is given their hidden states instead of all. Where all are, it
is replaced by one that returns the loss of each position: logits are computed for some positions at a time, in the
forward and again in the backward pass, and never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from simfl.protocol import Outputs

CHUNK = 1 << 24  # logits that are computed at a time: 67 MB in float32
LAST = "simfl_head_is_last"  # attribute of a module: whether its logits are what its last layer returns

Values = Callable[[Tensor, Tensor], Tensor]  # of logits [..., V] and labels [...]: one value a position, [...]


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


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each position [...] in float32; labels are at least 0."""
    return -logits.float().log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)


def hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for each position [...] at which the label has the largest logit, and 0 for others, in float32."""
    return (logits.argmax(-1) == labels).float()


def position_values(module: nn.Module, labels: Tensor, run: Callable[[], Any], values: Values) -> Tensor:
    """Return `values` of all positions, float32 [B, L].

    Logits are whole if the model changes them after its last layer, as Gemma 2 does, if that layer has dropout, and
    under `torch.func.vmap`, by which small models are trained.

    Args:
        module: The model.
        labels: At least 0, int64 [B, L].
        run: Runs the model and returns a result with `logits` [B, L, V].
        values: Computes a value of each position.
    """
    head = output_layer(module)
    transformed = torch._C._functorch.is_functorch_wrapped_tensor(labels)
    if head is None or transformed or _drops(head) or not getattr(module, LAST, True):
        return values(run().logits, labels)
    with _replaced_forward(head, labels, values) as made:
        found: Tensor = run().logits
    if len(made) == 1 and (found is made[0] or _moved(found, made[0])):
        return found.squeeze(-1)
    setattr(module, LAST, False)
    return values(run().logits, labels)


def _drops(head: nn.Module) -> bool:
    """Return whether a layer has dropout, whose masks would depend on the chunks."""
    return any(type(one).__name__.endswith("Dropout") and getattr(one, "p", 0) > 0 for one in head.modules())


def _moved(found: Tensor, made: Tensor) -> bool:
    """Return whether the logits are a copy of what the last layer returned, as on another device."""
    return found.shape == made.shape and found.device != made.device and torch.equal(found.to(made.device), made)


@contextmanager
def _replaced_forward(head: nn.Module, labels: Tensor, values: Values) -> Iterator[list[Tensor]]:
    """Let the last layer return values [B, L, 1] inside the block; yields the list of what it has returned."""
    before, made = head.__dict__.get("forward"), list[Tensor]()
    forward: Callable[[Tensor], Tensor] = head.forward

    def replaced(hidden: Tensor) -> Tensor:
        made.append(_in_chunks(_LastLayer(head, forward, values), hidden, labels.to(hidden.device))[..., None])
        return made[-1]

    head.__dict__["forward"] = replaced  # takes precedence over the method of the class
    try:
        yield made
    finally:
        del head.__dict__["forward"]
        if before is not None:
            head.__dict__["forward"] = before


def _in_chunks(layer: _LastLayer, hidden: Tensor, labels: Tensor) -> Tensor:
    """Return the values [B, L] of hidden states [B, L, D]."""
    found: Tensor = _ChunkedValues.apply(hidden, labels, layer, *layer.trained)
    return found


class _LastLayer:
    """The last layer with the tensors with which it computes now, so that it can run again in the backward pass."""

    def __init__(self, head: nn.Module, forward: Callable[[Tensor], Tensor], values: Values) -> None:
        self.forward, self.values = forward, values
        self.slots = [
            _Slot(layer._parameters, name, tensor)
            for layer in head.modules()
            for name, tensor in layer._parameters.items()
            if tensor is not None
        ]
        self.trained = [slot.tensor for slot in self.slots if slot.tensor.requires_grad]
        self.context: Context = copy_context()  # the model call under way, by which dropout is keyed

    def __call__(self, hidden: Tensor, labels: Tensor, trained: tuple[Tensor, ...]) -> Tensor:
        """Return the values [B, c] of hidden states [B, c, D], with `trained` in place of the trained tensors."""
        return self.context.copy().run(self._call, hidden, labels, trained)

    def _call(self, hidden: Tensor, labels: Tensor, trained: tuple[Tensor, ...]) -> Tensor:
        given = iter(trained)
        before = [slot.set(next(given) if slot.tensor.requires_grad else slot.tensor) for slot in self.slots]
        try:
            return self.values(self.forward(hidden), labels)
        finally:
            for slot, old in zip(self.slots, before, strict=True):
                slot.set(old)

    def chunks(self, hidden: Tensor) -> list[slice]:
        """Return positions that are computed together."""
        rows, length = hidden.shape[:2]
        width = max((slot.tensor.shape[-2] for slot in self.slots if slot.tensor.dim() >= 2), default=1)
        size = max(1, CHUNK // max(1, rows * width))
        return [slice(first, first + size) for first in range(0, length, size)]


@dataclass(frozen=True)
class _Slot:
    """A tensor of a layer and its place."""

    table: dict[str, Any]
    name: str
    tensor: Tensor

    def set(self, tensor: Tensor) -> Tensor:
        """Put a tensor into the place and return the one that was there."""
        before: Tensor = self.table[self.name]
        self.table[self.name] = tensor
        return before


class _ChunkedValues(torch.autograd.Function):
    """Values of positions, by logits that are computed in chunks and again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, labels: Tensor, layer: _LastLayer, *trained: Tensor) -> Tensor:
        """Return values [B, L]."""
        ctx.layer = layer
        ctx.save_for_backward(hidden, labels, *trained)
        return torch.cat(
            [layer(hidden[:, here].contiguous(), labels[:, here], trained) for here in layer.chunks(hidden)], 1
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients of the hidden states and of the trained tensors."""
        hidden, labels, *trained = ctx.saved_tensors
        leaves = [tensor.detach().requires_grad_() for tensor in trained]
        to_hidden, totals = torch.empty_like(hidden), [torch.zeros_like(leaf) for leaf in leaves]
        for here in ctx.layer.chunks(hidden):
            with torch.enable_grad():
                part = hidden[:, here].detach().contiguous().requires_grad_()
                values = ctx.layer(part, labels[:, here], tuple(leaves))
            found = torch.autograd.grad(values, [part, *leaves], gradients[0][:, here], materialize_grads=True)
            to_hidden[:, here] = found[0]
            for total, one in zip(totals, found[1:], strict=True):
                total += one
        return to_hidden, None, None, *totals


def token_losses(outputs: Outputs, labels: Tensor, mask: Tensor, missing: int) -> tuple[Tensor, Tensor]:
    """Return losses of tokens that are known, summed over each example, and their number; both [B].

    `labels` are [B, L], `missing` where there is none; `mask` is that of the examples, [B].
    """
    losses = outputs.require("token_losses")
    real = (labels != missing).to(losses.dtype) * mask[..., None]
    return (losses * real).sum(-1), real.sum(-1)
