"""Backbones by name, and adapters by kind."""

from __future__ import annotations

from simfl.models.adapter import Adapter
from simfl.models.base import Model
from simfl.models.bottleneck import Bottleneck
from simfl.models.cnn import Cnn
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.models.vt5 import VT5

MODELS: dict[str, type[Model]] = {
    "cnn": Cnn,
    "mlp": Mlp,
    "vt5": VT5,
}

ADAPTERS: dict[str, type[Adapter]] = {
    "bottleneck": Bottleneck,
    "lora": Lora,
}
