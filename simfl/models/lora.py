"""Low-rank adaptation (Hu et al. 2022) through peft: y = W x + (alpha / rank) B A x, with B = 0 at the start."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from simfl.constraints import Count, Positive
from simfl.errors import ConfigError, nearest
from simfl.models.adapters_base import Adapter
from simfl.models.base import Dropout


@dataclass(frozen=True)
class Lora(Adapter):
    """Two thin matrices beside each chosen linear layer."""

    rank: Count = 6  # r
    alpha: Positive = 16  # the product is scaled by alpha / rank
    dropout: Dropout = 0.1  # of the input of A
    targets: tuple[str, ...] = ()  # last names of the linear layers; none: those of the queries and values
    biases: bool = False  # train the chosen layers' biases too

    def attach(self, module: nn.Module) -> None:
        """Inject in place; ConfigError for a target that names no linear layer outside the frozen vision tower."""
        spared = getattr(module, "lora_spares", ("vision.",))
        linear = [n for n, m in module.named_modules() if isinstance(m, nn.Linear) and not any(s in n for s in spared)]
        ends = {name.rpartition(".")[2] for name in linear}
        targets = self.targets or getattr(module, "queries_and_values", ("q", "v"))
        for target in targets:
            if target not in ends:
                raise ConfigError(f"adapters.targets: no linear layer is named {target!r}; {nearest(target, ends)}")
        chosen = [name for name in linear if name.rpartition(".")[2] in targets]
        from peft import LoraConfig, inject_adapter_in_model  # seconds to import, and many runs need none of it
        from peft.tuners.lora import LoraLayer

        config = LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=chosen, bias="none"
        )
        inject_adapter_in_model(config, module)
        for layer in module.modules():
            if isinstance(layer, LoraLayer):
                layer.cast_input_dtype_enabled = False  # a pass in bf16 would widen the input for nothing

    def trains(self) -> tuple[str, ...]:
        """A and B of every chosen layer, and its bias if wanted."""
        return ("*.lora_*", "*.base_layer.bias") if self.biases else ("*.lora_*",)


def merge(module: nn.Module) -> None:
    """Add each product B A into its weight, in place; the forward of the module stays the same up to rounding."""
    from peft.tuners.lora import LoraLayer

    for layer in module.modules():
        if isinstance(layer, LoraLayer):
            layer.merge()
