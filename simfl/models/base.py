"""The base class of all models, and the few functions that every network here needs."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from simfl.constraints import Constraint
from simfl.errors import ConfigError
from simfl.generators.process import reproducible
from simfl.protocol import Task

DropoutRate = Annotated[float, Constraint("a number of at least 0 and below 1", lambda p: 0 <= p < 1)]
AutogradContext = Any  # the `ctx` of `torch.autograd.Function`, which accepts any attribute
Network = TypeVar("Network", bound=nn.Module)
_PLANNED: ContextVar[bool] = ContextVar("simfl_planned_kernels", default=False)
seeded = reproducible  # the block in which models are built


@dataclass(frozen=True)
class Model(ABC):
    """Settings that build a torch module: a backbone, with its adapters if it has any."""

    example: ClassVar[Mapping[str, object]] = {}  # settings for `simfl.contract.check`

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """Build the module on the CPU, in evaluation mode.

        The module is bit-identical for equal settings and an equal `task.seed`. `module(**inputs)` returns logits or
        `protocol.Outputs`.
        """

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return globs of the parameters trained when a phase names none: everything, or the adapters."""
        return ("*",)

    def frozen_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return globs of the parameters that this model never trains, even if a phase names them."""
        return ()

    def tokenizer(self) -> Any:
        """Return the model's text tokenizer (`models.tokenizer.Tokenizer`), or None for a model that reads no text."""
        return None


def set_trainable(model: Model, module: Network) -> Network:
    """Set `requires_grad` as in a phase that names no parameters, and return `module`."""
    trained, frozen = model.trainable_params(module), model.frozen_params(module)  # once: each looks at all names
    for name, parameter in module.named_parameters():
        trainable = any(fnmatchcase(name, glob) for glob in trained)
        parameter.requires_grad_(trainable and not any(fnmatchcase(name, glob) for glob in frozen))
    return module


def tied_names(module: nn.Module) -> dict[str, str]:
    """Map each further name of a tied parameter to its name in `named_parameters`."""
    owners = {id(parameter): name for name, parameter in module.named_parameters()}
    names = module.named_parameters(remove_duplicate=False)
    return {name: owners[id(parameter)] for name, parameter in names if owners[id(parameter)] != name}


def shape_and_classes(task: Task, model: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of an example and the number of classes; raise ConfigError if the data set has neither."""
    if task.shape is None or task.num_classes is None:
        raise ConfigError(f"model: {model!r} reads images or features with a label; the data set has none")
    return task.shape, task.num_classes


def to_float(x: Tensor) -> Tensor:
    """Scale uint8 pixels to floats in [0, 1]; return floats unchanged."""
    return x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x


def bf16_autocast(like: Tensor, enabled: bool) -> torch.autocast:
    """Return a bfloat16 autocast context for the device of `like`; on the meta device it has no effect."""
    return torch.autocast("cpu" if like.is_meta else like.device.type, torch.bfloat16, enabled=enabled)


def constants(values: Sequence[float], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Fill a tensor [len(values)] on the device of `like`: a copy from the host cannot be captured in a CUDA graph."""
    dtype = dtype or like.dtype
    return torch.stack([torch.full((), value, dtype=dtype, device=like.device) for value in values])


def has_kernels(x: Tensor, name: str) -> bool:
    """Return whether the Triton kernels `simfl.models.<name>` can run on a tensor.

    Triton launches them on the current GPU of the process. In `planned_kernels`, they would on a GPU.
    """
    if _PLANNED.get():
        return x.is_meta
    here = x.is_cuda and torch.cuda.is_initialized() and x.device.index == torch.cuda.current_device()
    return here and load_kernels(name) is not None


@contextmanager
def planned_kernels() -> Iterator[None]:
    """Let tensors of the meta device take the operators of a GPU inside the block, to plan what these hold."""
    token = _PLANNED.set(True)
    try:
        yield
    finally:
        _PLANNED.reset(token)


@cache
def load_kernels(name: str) -> Any:
    """Import the Triton kernels `simfl.models.<name>`; return None where Triton is not installed."""
    try:
        return importlib.import_module(f"simfl.models.{name}")
    except ImportError:
        return None
