"""Adapter kinds that add no tensors: part of the backbone is trained, the rest stays frozen.

Models that declare a head (`module.heads`) always train it as well; `HeadTuning` trains nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter


@dataclass(frozen=True)
class PartialTuning(Adapter):
    """The base of these kinds."""

    def attach(self, module: nn.Module) -> None:
        """Leave the module unchanged."""

    def own_params(self) -> tuple[str, ...]:
        """Return no globs: nothing is added."""
        return ()


@dataclass(frozen=True)
class HeadTuning(PartialTuning):
    """The classification head alone (`clf`)."""

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return globs of the head; raise ConfigError for a model without one."""
        globs: tuple[str, ...] = getattr(module, "heads", ())
        if not globs:
            raise ConfigError(
                f"adapters.kind: {type(module).__name__} has no head; list the trained parameters under `train`"
            )
        return globs


@dataclass(frozen=True)
class BiasTuning(PartialTuning):
    """All biases (BitFit, Ben Zaken et al. 2022; bias tuning of FedDAT, Chen et al. 2024)."""

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return globs of every bias, those of recurrent layers included."""
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
        return ("*.bias", "*.bias_[ih]h_l*") if recurrent else ("*.bias",)


@dataclass(frozen=True)
class LastLayersTuning(PartialTuning):
    """The last blocks of the backbone; FedVQA trains the last three of ViLT."""

    layers: PositiveInt = 3  # number of blocks, counted from the end
    example: ClassVar[Mapping[str, object]] = {"layers": 1}

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return globs of the last blocks in the order of `module.blocks()`; raise ConfigError if there are fewer."""
        blocks: list[str] = getattr(module, "blocks", list)()
        if len(blocks) < self.layers:
            raise ConfigError(f"adapters.layers: {self.layers} given; {type(module).__name__} has {len(blocks)} blocks")
        return tuple(f"{name}.*" for name in blocks[-self.layers :])
