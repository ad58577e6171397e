"""The base of all models: settings that build a torch module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from simfl.constraints import Limit
from simfl.protocol import Task

Dropout = Annotated[float, Limit("a number of at least 0 and below 1", lambda p: 0 <= p < 1)]


@dataclass(frozen=True)
class Model(ABC):
    """A backbone, with its adapters if it has any."""

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """The module on the CPU, in evaluation mode, the same to the bit for the same settings and `task.seed`.

        `module(**inputs)` returns logits or `protocol.Outputs`.
        """

    def trains(self, module: nn.Module) -> tuple[str, ...]:
        """Globs of what is trained when a phase names nothing: everything, or the adapters."""
        return ("*",)

    def frozen(self, module: nn.Module) -> tuple[str, ...]:
        """Globs of what this model never trains, whatever a phase names."""
        return ()

    def tokenizer(self) -> Any:
        """The text tokenizer the model was made with, or None for a model that reads no text."""
        return None


def mixed(like: Tensor, enabled: bool) -> torch.autocast:
    """bfloat16 where it is enabled, on the device of `like`; on the meta device, which knows none, without effect."""
    return torch.autocast("cpu" if like.is_meta else like.device.type, torch.bfloat16, enabled=enabled)


def filled(values: Sequence[float], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Constants [len(values)] on the device of `like`, made there: a copy from the host cannot be captured."""
    kind = dtype or like.dtype
    return torch.stack([torch.full((), value, dtype=kind, device=like.device) for value in values])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Initialise with torch's own functions, from `seed`, and leave the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def aliases(module: nn.Module) -> dict[str, str]:
    """Second names of shared parameters, each with the name that `named_parameters` gives its owner."""
    owners = {id(parameter): name for name, parameter in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: owners[id(parameter)] for name, parameter in every if owners[id(parameter)] != name}


def default_trained(model: Model, module: nn.Module) -> nn.Module:
    """`module` with gradients wanted where a phase that names nothing would train; returns it."""
    for name, parameter in module.named_parameters():
        wanted = any(fnmatchcase(name, glob) for glob in model.trains(module))
        parameter.requires_grad_(wanted and not any(fnmatchcase(name, glob) for glob in model.frozen(module)))
    return module
