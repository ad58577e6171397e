"""Adapters that add no tensors: a part of the backbone itself is trained, the rest stays as it is.

The head is always trained beside them by models that have one (`module.heads`); here it is what `head` trains alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from simfl.constraints import Count
from simfl.errors import ConfigError
from simfl.models.adapters_base import Adapter


@dataclass(frozen=True)
class Part(Adapter):
    """The base of these kinds: nothing is hung into the module."""

    def attach(self, module: nn.Module) -> None:
        """Change nothing."""

    def trains(self) -> tuple[str, ...]:
        """There are no tensors of its own."""
        return ()


@dataclass(frozen=True)
class Head(Part):
    """The classification head alone (`clf`)."""

    def trained(self, module: nn.Module) -> tuple[str, ...]:
        """Globs of the head; ConfigError for a model without one."""
        globs: tuple[str, ...] = getattr(module, "heads", ())
        if not globs:
            raise ConfigError(f"adapters.kind: {type(module).__name__} has no head; name what is trained under `train`")
        return globs


@dataclass(frozen=True)
class Bias(Part):
    """All biases (BitFit, Ben Zaken et al. 2022; as the bias-tuning of FedDAT, Chen et al. 2024)."""

    def trained(self, module: nn.Module) -> tuple[str, ...]:
        """Every tensor named bias, those of recurrent layers too."""
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
        return ("*.bias", "*.bias_[ih]h_l*") if recurrent else ("*.bias",)


@dataclass(frozen=True)
class LastLayers(Part):
    """The last blocks of the backbone, as FedVQA trains three of ViLT's."""

    layers: Count = 3  # how many, counted from the end

    def trained(self, module: nn.Module) -> tuple[str, ...]:
        """Globs of the last blocks, in the order of `module.blocks()`; ConfigError if there are fewer."""
        blocks: list[str] = getattr(module, "blocks", list)()
        if len(blocks) < self.layers:
            raise ConfigError(f"adapters.layers: {self.layers} given; {type(module).__name__} has {len(blocks)} blocks")
        return tuple(f"{name}.*" for name in blocks[-self.layers :])
