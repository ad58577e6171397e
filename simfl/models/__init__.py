"""Backbones by name."""

from __future__ import annotations

from simfl.models.albef import Albef
from simfl.models.aster import Aster
from simfl.models.base import Model
from simfl.models.cnn import Cnn
from simfl.models.layout_t5 import LayoutT5
from simfl.models.mlp import Mlp
from simfl.models.own import Own
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import ViT
from simfl.models.vt5 import VT5

MODELS: dict[str, type[Model]] = {
    "albef": Albef,
    "aster": Aster,
    "cnn": Cnn,
    "layout_t5": LayoutT5,
    "mlp": Mlp,
    "own": Own,
    "vault": Vault,
    "vilt": Vilt,
    "vit": ViT,
    "vt5": VT5,
}
