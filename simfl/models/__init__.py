"""Models by name: the backbones that an experiment can train."""

from __future__ import annotations

from simfl.models.base import Model
from simfl.registry import Registry

MODELS: Registry[Model] = Registry(
    {
        "albef": "simfl.models.albef:Albef",
        "aster": "simfl.models.aster:Aster",
        "cnn": "simfl.models.cnn:Cnn",
        "hf": "simfl.models.hf:HuggingFace",
        "layout_t5": "simfl.models.layout_t5:LayoutT5",
        "mlp": "simfl.models.mlp:Mlp",
        "own": "simfl.models.own:OwnModel",
        "vault": "simfl.models.vault:Vault",
        "vilt": "simfl.models.vilt:Vilt",
        "vit": "simfl.models.vit:ViT",
        "vt5": "simfl.models.vt5:VT5",
    }
)
