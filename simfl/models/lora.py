"""Low-rank adaptation (LoRA, Hu et al. 2022) through peft: y = W x + (alpha / rank) B A x, with B = 0 at the start."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from simfl.constraints import PositiveFloat, PositiveInt
from simfl.errors import ConfigError, nearest
from simfl.models.adapters import Adapter
from simfl.models.base import DropoutRate
from simfl.models.peft_method import inject

TRANSPOSED = "Conv1D"  # transformers' linear layer of GPT-2, whose weight is [in, out]
TOWER = r"(vision|visual)(_\w+)?|(image|audio)_(encoder|model|tower)"  # part of a name: an encoder of images or sound


@dataclass(frozen=True)
class Lora(Adapter):
    """A pair of low-rank matrices added to each chosen linear layer.

    A target is a last name (`q_proj`), the end of a name, a glob or a regular expression of full names. Encoders of
    images or sound are adapted by targets that name them (`vision_model.*q_proj`) alone.
    """

    rank: PositiveInt = 6  # r
    alpha: PositiveFloat = 16  # the product B A is scaled by alpha / rank
    dropout: DropoutRate = 0.1  # on the input of A
    targets: tuple[str, ...] = ()  # names, globs or expressions; none: the layers of the queries and values
    biases: bool = False  # train the chosen layers' biases too

    def attach(self, module: nn.Module) -> None:
        """Add A and B, in float32 to half-precision layers too; ConfigError for a target that matches no layer."""
        chosen = self._chosen_layers(module)
        from peft import LoraConfig  # takes seconds to import, and many runs need none of it
        from peft.tuners.lora import LoraLayer

        transposed = any(type(module.get_submodule(name)).__name__ == TRANSPOSED for name in chosen)
        config = LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=chosen, bias="none",
            fan_in_fan_out=transposed,
        )  # fmt: skip
        inject(module, config)
        for layer in module.modules():
            if isinstance(layer, LoraLayer) and layer.get_base_layer().weight.dtype == torch.float32:
                layer.cast_input_dtype_enabled = False  # under bf16 autocast the cast to float32 would be wasted

    def _chosen_layers(self, module: nn.Module) -> list[str]:
        """Return the full names of the targets, outside of the parts that `module.lora_exclude` lists."""
        linear = _linear_layers(module)
        chosen: set[str] = set()
        for target in self.targets or _queries_and_values(module, linear):
            matched = [name for name in linear if _matches(name, target)]
            found = [name for name in matched if all(part in target for part in _towers(name, linear))]
            if not matched:
                hint = nearest(target, {name.rpartition(".")[2] for name in linear})
                raise ConfigError(f"adapters.targets: no linear layer is named {target!r}; {hint}")
            if not found:
                raise ConfigError(
                    f"adapters.targets: {target!r} matches only layers such as {matched[0]!r}; name that part to adapt"
                    f" it, as in {_towers(matched[0], linear)[0] + '.*' + target!r}"
                )
            chosen.update(found)
        return [name for name in linear if name in chosen]

    def own_params(self) -> tuple[str, ...]:
        """Return globs of A and B of every chosen layer, and of its bias if `biases` is set."""
        return ("*.lora_*", "*.base_layer.bias") if self.biases else ("*.lora_*",)


def _linear_layers(module: nn.Module) -> list[str]:
    """Return the full names of the linear layers outside of the parts that `module.lora_exclude` lists."""
    excluded: tuple[str, ...] = getattr(module, "lora_exclude", ())
    return [
        name for name, layer in module.named_modules()
        if (isinstance(layer, nn.Linear) or type(layer).__name__ == TRANSPOSED)
        and not any(part in name for part in excluded)
    ]  # fmt: skip


def _queries_and_values(module: nn.Module, linear: list[str]) -> tuple[str, ...]:
    """Return the targets that the module declares, or those of peft for its model type."""
    declared: tuple[str, ...] | None = getattr(module, "queries_and_values", None)
    if declared is not None:
        return declared
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as BY_MODEL_TYPE

    found = BY_MODEL_TYPE.get(getattr(getattr(module, "config", None), "model_type", ""))
    if found is None:
        allowed = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        raise ConfigError(f"adapters.targets: missing, and the model declares none; allowed: {allowed}")
    return (found,) if isinstance(found, str) else tuple(found)


def _matches(name: str, target: str) -> bool:
    """Return whether a target names this layer: by the end of its name, a glob or an expression."""
    if name == target:
        return True
    if name.endswith(f".{target}") or fnmatchcase(name, target) or fnmatchcase(name.rpartition(".")[2], target):
        return True
    try:
        return re.fullmatch(target, name) is not None
    except re.error:
        return False


def _towers(name: str, linear: list[str]) -> list[str]:
    """Return the parts of a layer's name that are encoders of images or sound; none if the model is nothing else."""
    if all(_in_tower(other) for other in linear):
        return []
    return [part for part in name.split(".") if re.fullmatch(TOWER, part)]


def _in_tower(name: str) -> bool:
    return any(re.fullmatch(TOWER, part) for part in name.split("."))


def merge(module: nn.Module) -> None:
    """Add each product B A to its weight in place; outputs stay equal up to rounding."""
    from peft.tuners.lora import LoraLayer

    for layer in module.modules():
        if isinstance(layer, LoraLayer):
            layer.merge()
