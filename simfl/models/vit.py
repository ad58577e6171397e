"""ViT (Dosovitskiy et al. 2021), as in FedDAT's case study on DomainNet; a linear head over the class token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter, with_heads
from simfl.models.base import DropoutRate, Model, seeded, set_trainable, shape_and_classes
from simfl.models.dropout import install_keyed_dropout
from simfl.models.pretrained import (
    Rules,
    copy_tensors,
    read_sizes,
    read_tensors,
    renamed_tensors,
    resize_positions,
    weights_folder,
)
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.vit_network import ViTNetwork

SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        "image_size": 32, "patch_size": 8,
    },
    "base": {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "image_size": 224, "patch_size": 16,
    },
}  # fmt: skip


@dataclass(frozen=True)
class ViT(Model):
    """A vision transformer and a linear head over its class token."""

    size: Literal["tiny", "base"] | None = None  # null: the weights' own, or tiny
    weights: str | None = None  # a folder or a Hugging Face hub id in transformers' layout; null: drawn from the seed
    image_size: PositiveInt | None = None  # height and width that images are scaled to; null: of the weights or size
    patch_size: PositiveInt | None = None  # height and width of a patch; null: that of the weights or the size
    dropout: DropoutRate = 0.0  # of the backbone
    adapters: Adapter | None = None  # trained instead of the rest, together with the head
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def build(self, task: Task) -> ViTNetwork:
        """Build the network with weights and adapters; raise ConfigError for data that are not images."""
        with seeded(task.seed):
            network = self.network(task)
            if self._folder is not None:
                load_vit(network, read_tensors(self._folder), str(self._folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        return set_trainable(self, install_keyed_dropout(network)).eval()

    def network(self, task: Task) -> ViTNetwork:
        """Build the bare network on the default device, without weights or adapters."""
        from simfl.models.vit_network import ViTNetwork  # imports transformers: seconds, and many runs need none of it

        side = self._sizes["image_size"]
        shape, classes = shape_and_classes(replace(task, shape=task.shape or (3, side, side)), "vit")
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise ConfigError(
                f"model: 'vit' reads grey or colour images [channels, height, width]; the data have shape {shape}"
            )
        return ViTNetwork(self._sizes, shape, classes, dropout=self.dropout, bf16=self.precision == "bf16")

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return everything, or the adapters and the head."""
        return ("*",) if self.adapters is None else with_heads(self.adapters, module)

    @cached_property
    def _folder(self) -> Path | None:
        return None if self.weights is None else weights_folder(self.weights)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        sizes = dict(SIZES[self.size or "tiny"])
        if self._folder is not None:
            sizes |= read_sizes(self._folder, sizes)
        if self.size and sizes["hidden_size"] != SIZES[self.size]["hidden_size"]:
            raise ConfigError(
                f"model.size: {self.size!r} is not the size of {self.weights}, whose width is {sizes['hidden_size']}"
            )
        own = {key: getattr(self, key) for key in ("image_size", "patch_size")}
        return sizes | {key: value for key, value in own.items() if value is not None}


def vit_rules() -> Rules:
    """Return rules from transformers' ViT checkpoints, with or without a classifier, to our names."""
    from simfl.models.transformer import LAYER_NAMES

    return (
        (r"^(vit\.)?pooler\..*", ""),
        (r"^vit\.", ""),
        (r"^embeddings\.mask_token$", ""),
        (r"^encoder\.layer\.", "layers."),
        (r"^classifier\.", "head."),
        *LAYER_NAMES,
    )


def load_vit(network: ViTNetwork, stored: Mapping[str, Tensor], source: str) -> None:
    """Fill the network in place.

    A classifier over another number of classes is ignored, and positions are interpolated for another image size.
    """
    found = renamed_tensors(stored, vit_rules())
    if "head.weight" in found and found["head.weight"].shape != network.head.weight.shape:
        found = {name: tensor for name, tensor in found.items() if not name.startswith("head.")}
    positions = "embeddings.position_embeddings"
    if positions in found:
        found[positions] = resize_positions(found[positions], network.embeddings.position_embeddings.shape[1])
    copy_tensors(network, found, source, optional=("head.*",))
