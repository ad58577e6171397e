"""The base of all models: settings that build a torch module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import nn

from simfl.protocol import Task


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

    def tokenizer(self) -> Any:
        """The text tokenizer the model was made with, or None for a model that reads no text."""
        return None
