"""Adapters: few trained tensors added to a frozen backbone, so that only they travel. Without one, the model is `full`.

`ADAPTERS` maps the `kind` of an experiment to the class that implements it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from simfl.registry import Registry


@dataclass(frozen=True)
class Adapter(ABC):
    """Settings that add adapters to a built module in place; the module's own tensors keep their names."""

    example: ClassVar[Mapping[str, object]] = {}  # settings for `simfl.contract.check`

    @abstractmethod
    def attach(self, module: nn.Module) -> None:
        """Add the adapters to `module`, drawing weights from torch's generator, which the caller has seeded."""

    @abstractmethod
    def own_params(self) -> tuple[str, ...]:
        """Return globs of the tensors that `attach` adds."""

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return globs of all trained tensors: those added, and those of `module` that this kind trains."""
        return self.own_params()


def with_heads(adapters: Adapter, module: nn.Module) -> tuple[str, ...]:
    """Return globs of the adapters' trained tensors and of the heads, for models that always train their heads."""
    heads: tuple[str, ...] = getattr(module, "heads", ())
    return tuple(dict.fromkeys((*adapters.trainable_params(module), *heads)))


ADAPTERS: Registry[Adapter] = Registry(
    {
        "bias": "simfl.models.partial_tuning:BiasTuning",
        "bottleneck": "simfl.models.bottleneck:Bottleneck",
        "head": "simfl.models.partial_tuning:HeadTuning",
        "last_layers": "simfl.models.partial_tuning:LastLayersTuning",
        "lora": "simfl.models.lora:Lora",
        "peft": "simfl.models.peft_method:PeftMethod",
        "prompt": "simfl.models.prompt:Prompt",
    }
)
