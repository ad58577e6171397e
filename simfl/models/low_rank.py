"""Low-rank pairs of a model: the factors A and B of each adapted layer, as peft's LoRA layers hold them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from simfl.errors import ConfigError
from simfl.low_rank import LowRankPair


def low_rank_pairs(module: nn.Module, where: str, changes_base: bool = False) -> tuple[LowRankPair, ...]:
    """Return the low-rank pairs of a module in the order of its layers.

    Args:
        module: A model with adapters.
        where: Path of the setting that needs them, for errors.
        changes_base: Whether the frozen tensors of the pairs must be such as can be changed.

    Raises:
        ConfigError: There are none, or a layer computes more than W + scaling · B A.
    """
    names = {name for name, _ in module.named_parameters()}
    pairs = [
        pair
        for path, layer in module.named_modules()
        if isinstance(getattr(layer, "scaling", None), dict) and hasattr(layer, "lora_A")
        for pair in _pairs_of(path, layer, names, where)
    ]
    if not pairs:
        raise ConfigError(f"{where}: the model has no low-rank adapters; allowed: model.adapters of kind lora")
    for pair in pairs if changes_base else ():
        base = module.get_parameter(pair.base)
        if not base.is_floating_point():
            raise ConfigError(f"{where}: {pair.base} is quantized ({base.dtype}) and cannot be changed")
    return tuple(pairs)


def _pairs_of(path: str, layer: Any, names: Collection[str], where: str) -> list[LowRankPair]:
    """Return the pairs of a layer, one for each of its adapters."""
    found = []
    for adapter in layer.scaling:
        if adapter in layer.lora_variant or getattr(layer, "lora_bias", {}).get(adapter):
            raise ConfigError(f"{where}: the adapter of {path} is no plain product B A; allowed: LoRA without variants")
        embeds = adapter in layer.lora_embedding_A
        down, up = (f"{path}.lora_embedding_{side}.{adapter}" for side in "AB")
        if not embeds:
            down, up = (f"{path}.lora_{side}.{adapter}.weight" for side in "AB")
        base = f"{path}.base_layer.weight"
        if not {down, up, base} <= set(names):
            raise ConfigError(f"{where}: the adapter of {path} has no factors of its own for one weight")
        shape = tuple(layer.get_base_layer().weight.shape)
        transposed = embeds or bool(getattr(layer, "fan_in_fan_out", False))
        rank = layer.r[adapter]
        found.append(LowRankPair(path, base, down, up, float(layer.scaling[adapter]), rank, shape, transposed))
    return found
