"""Activation checkpointing: layers that run again in the backward pass, with the tensors of their forward pass.

The weights of a client and its dropout key are in place during a forward pass alone. A layer that is recomputed later
would read the module's own weights, and its gradients would be wrong without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch.utils.checkpoint as torch_checkpoint
from torch import nn

from simfl.errors import ConfigError

REFUSED = (
    "model.of: the model recomputes activations by torch.utils.checkpoint, whose second pass would miss the client's"
    " weights; allowed: gradient_checkpointing_enable() of transformers, or no checkpointing"
)
CHECKPOINTED = "gradient checkpointing trains several clients at once by adapters, linear layers and the like alone"
RECOMPUTES = "recomputes"  # attribute of a module whose layers run again in the backward pass
Enter = Callable[[], AbstractContextManager[None]]
_FORWARD: ContextVar[Enter | None] = ContextVar("simfl_forward", default=None)


@contextmanager
def recomputable(enter: Enter) -> Iterator[None]:
    """Enter the context of a forward pass, and let layers inside the block enter it again when they are recomputed."""
    token = _FORWARD.set(enter)
    try:
        with enter():
            yield
    finally:
        _FORWARD.reset(token)


def use_recomputable_checkpoints(module: nn.Module) -> bool:
    """Let a model of transformers with gradient checkpointing recompute its layers; return whether it has any."""
    layers = [layer for layer in module.modules() if getattr(layer, "gradient_checkpointing", False)]
    for layer in layers:
        layer._gradient_checkpointing_func = partial(  # type: ignore[assignment]
            torch_checkpoint.checkpoint, use_reentrant=False, context_fn=_contexts
        )
    if layers:
        setattr(module, RECOMPUTES, True)
    return bool(layers)


def recomputes(module: nn.Module) -> bool:
    """Return whether layers of a module run again in the backward pass."""
    return bool(getattr(module, RECOMPUTES, False))


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a layer's forward pass and of its recomputation."""
    enter = _FORWARD.get()
    return nullcontext(), nullcontext() if enter is None else _Recomputation(enter)


class _Recomputation(AbstractContextManager[None]):
    """The context of a forward pass, entered again; reusable, as a graph may be differentiated twice."""

    def __init__(self, enter: Enter) -> None:
        self.enter = enter
        self.entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self.entered.append(self.enter())
        self.entered[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self.entered.pop().__exit__(*error)


@contextmanager
def refuse_other_checkpoints() -> Iterator[None]:
    """Raise ConfigError inside the block where a model uses torch's checkpointing on its own."""
    function, generator = torch_checkpoint.CheckpointFunction, torch_checkpoint._checkpoint_without_reentrant_generator

    def checked(fn: Any, preserve: bool, context_fn: Any, *rest: Any, **options: Any) -> Any:
        if context_fn is not _contexts:
            raise ConfigError(REFUSED)
        return generator(fn, preserve, context_fn, *rest, **options)

    torch_checkpoint.CheckpointFunction = _Refused  # type: ignore[assignment,misc]
    torch_checkpoint._checkpoint_without_reentrant_generator = checked  # type: ignore[assignment]
    try:
        yield
    finally:
        torch_checkpoint.CheckpointFunction = function  # type: ignore[misc]
        torch_checkpoint._checkpoint_without_reentrant_generator = generator


class _Refused:
    """Stands for torch's reentrant checkpointing."""

    @staticmethod
    def apply(*_: Any) -> None:
        """Raise ConfigError."""
        raise ConfigError(REFUSED)
