"""Low-rank adaptation (LoRA, Hu et al. 2022) through peft: y = W x + (alpha / rank) B A x, with B = 0 at the start."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from simfl.constraints import PositiveFloat, PositiveInt
from simfl.errors import ConfigError, nearest
from simfl.models.adapters import Adapter
from simfl.models.base import DropoutRate


@dataclass(frozen=True)
class Lora(Adapter):
    """A pair of low-rank matrices added to each chosen linear layer."""

    rank: PositiveInt = 6  # r
    alpha: PositiveFloat = 16  # the product B A is scaled by alpha / rank
    dropout: DropoutRate = 0.1  # on the input of A
    targets: tuple[str, ...] = ()  # last names of the linear layers; none: those of the queries and values
    biases: bool = False  # train the chosen layers' biases too

    def attach(self, module: nn.Module) -> None:
        """Add A and B to the chosen layers; raise ConfigError for a target that matches no linear layer."""
        chosen = self._chosen_layers(module)
        from peft import LoraConfig, inject_adapter_in_model  # takes seconds to import, and many runs need none of it
        from peft.tuners.lora import LoraLayer

        config = LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=chosen, bias="none"
        )
        inject_adapter_in_model(config, module)
        for layer in module.modules():
            if isinstance(layer, LoraLayer):
                layer.cast_input_dtype_enabled = False  # under bf16 autocast the cast to float32 would be wasted

    def _chosen_layers(self, module: nn.Module) -> list[str]:
        """Return the full names of the targets, outside of the parts that `module.lora_exclude` lists."""
        excluded = getattr(module, "lora_exclude", ("vision.",))
        linear = [
            name for name, layer in module.named_modules()
            if isinstance(layer, nn.Linear) and not any(part in name for part in excluded)
        ]  # fmt: skip
        last_names = {name.rpartition(".")[2] for name in linear}
        targets = self.targets or getattr(module, "queries_and_values", ("q", "v"))
        for target in targets:
            if target not in last_names:
                hint = nearest(target, last_names)
                raise ConfigError(f"adapters.targets: no linear layer is named {target!r}; {hint}")
        return [name for name in linear if name.rpartition(".")[2] in targets]

    def own_params(self) -> tuple[str, ...]:
        """Return globs of A and B of every chosen layer, and of its bias if `biases` is set."""
        return ("*.lora_*", "*.base_layer.bias") if self.biases else ("*.lora_*",)


def merge(module: nn.Module) -> None:
    """Add each product B A to its weight in place; outputs stay equal up to rounding."""
    from peft.tuners.lora import LoraLayer

    for layer in module.modules():
        if isinstance(layer, LoraLayer):
            layer.merge()
