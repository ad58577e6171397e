"""Adapters by kind: what is trained of a model, so what travels. Without any, all of it (`full`)."""

from __future__ import annotations

from simfl.models.adapters_base import Adapter
from simfl.registry import Registry

ADAPTERS: Registry[Adapter] = Registry(
    {
        "bias": "simfl.models.parts:Bias",
        "bottleneck": "simfl.models.bottleneck:Bottleneck",
        "head": "simfl.models.parts:Head",
        "last_layers": "simfl.models.parts:LastLayers",
        "lora": "simfl.models.lora:Lora",
        "peft": "simfl.models.peft_method:PeftMethod",
        "prompt": "simfl.models.prompt:Prompt",
    }
)
