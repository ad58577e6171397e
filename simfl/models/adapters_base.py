"""The base of all adapters: few trained tensors hung into a backbone that stays as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Adapter(ABC):
    """Settings that change a built module in place; the names of its own tensors stay as they are."""

    @abstractmethod
    def attach(self, module: nn.Module) -> None:
        """Hang the adapters into `module`. Draws from torch's generator, which the caller has seeded."""

    @abstractmethod
    def trains(self) -> tuple[str, ...]:
        """Globs of the adapters' own tensors."""

    def trained(self, module: nn.Module) -> tuple[str, ...]:
        """Globs of all that is trained: the adapters' own tensors, and what of the module itself this kind trains."""
        return self.trains()


def beside_heads(adapters: Adapter, module: nn.Module) -> tuple[str, ...]:
    """Globs of what the adapters train and of the heads, for models whose heads are always trained."""
    heads: tuple[str, ...] = getattr(module, "heads", ())
    return tuple(dict.fromkeys((*adapters.trained(module), *heads)))
