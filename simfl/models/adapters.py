"""Adapters by kind: what is trained of a model, so what travels. Without any, all of it (`full`)."""

from __future__ import annotations

from simfl.models.adapters_base import Adapter
from simfl.models.bottleneck import Bottleneck
from simfl.models.lora import Lora
from simfl.models.parts import Bias, Head, LastLayers
from simfl.models.peft_method import PeftMethod
from simfl.models.prompt import Prompt

ADAPTERS: dict[str, type[Adapter]] = {
    "bias": Bias,
    "bottleneck": Bottleneck,
    "head": Head,
    "last_layers": LastLayers,
    "lora": Lora,
    "peft": PeftMethod,
    "prompt": Prompt,
}
