"""Adapters by kind."""

from __future__ import annotations

from simfl.models.adapters_base import Adapter
from simfl.models.bottleneck import Bottleneck
from simfl.models.lora import Lora

ADAPTERS: dict[str, type[Adapter]] = {
    "bottleneck": Bottleneck,
    "lora": Lora,
}
