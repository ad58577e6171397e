"""ViT (Dosovitskiy et al. 2021), as FedDAT's case study on DomainNet uses it; a linear head over the class token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from simfl.constraints import Count
from simfl.errors import ConfigError
from simfl.models import pretrained as start
from simfl.models.adapters_base import Adapter, beside_heads
from simfl.models.base import Dropout, Model, default_trained, seeded
from simfl.models.dropout import install
from simfl.models.mlp import shape_and_classes
from simfl.models.weight_layouts import dimensions, fill, renamed, resized_positions
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.vit_network import ViTNetwork

SIZES: dict[str, dict[str, Any]] = {
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
    image_size: Count | None = None  # images are scaled to this height and width; null: the weights' or the size's
    patch_size: Count | None = None  # height and width of a patch, if not the weights' or the size's
    dropout: Dropout = 0.0  # of the backbone
    adapters: Adapter | None = None  # trained in place of the rest, beside the head
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def build(self, task: Task) -> ViTNetwork:
        """The network with weights and adapters; ConfigError for data that are no images."""
        with seeded(task.seed):
            network = self.network(task)
            if self._folder is not None:
                load(network, start.read(self._folder), str(self._folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        install(network)
        default_trained(self, network)
        return network.eval()

    def network(self, task: Task) -> ViTNetwork:
        """The bare network on the default device, without weights or adapters."""
        from simfl.models.vit_network import ViTNetwork  # imports transformers: seconds, and many runs need none of it

        side = self._dims["image_size"]
        shape, classes = shape_and_classes(replace(task, shape=task.shape or (3, side, side)), "vit")
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise ConfigError(
                f"model: 'vit' reads grey or colour images [channels, height, width]; the data have {shape}"
            )
        return ViTNetwork(self._dims, shape, classes, dropout=self.dropout, bf16=self.precision == "bf16")

    def trains(self, module: Any) -> tuple[str, ...]:
        """Everything; with adapters these and the head."""
        return ("*",) if self.adapters is None else beside_heads(self.adapters, module)

    @cached_property
    def _folder(self) -> Any:
        return None if self.weights is None else start.locate(self.weights)

    @cached_property
    def _dims(self) -> dict[str, Any]:
        dims = dict(SIZES[self.size or "tiny"])
        if self._folder is not None:
            dims |= dimensions(self._folder, dims)
        if self.size and dims["hidden_size"] != SIZES[self.size]["hidden_size"]:
            raise ConfigError(
                f"model.size: {self.size!r} is not the size of {self.weights}, whose width is {dims['hidden_size']}"
            )
        own = {key: getattr(self, key) for key in ("image_size", "patch_size")}
        return dims | {key: value for key, value in own.items() if value is not None}


def rules() -> tuple[tuple[str, str], ...]:
    """Names of transformers' ViT checkpoints, with or without a classifier -> ours."""
    from simfl.models.transformer import LAYER_NAMES

    return (
        (r"^(vit\.)?pooler\..*", ""),
        (r"^vit\.", ""),
        (r"^embeddings\.mask_token$", ""),
        (r"^encoder\.layer\.", "layers."),
        (r"^classifier\.", "head."),
        *LAYER_NAMES,
    )


def load(network: ViTNetwork, stored: Mapping[str, Tensor], where: str) -> None:
    """Fill in place; a classifier of other classes is left out, places are interpolated for another image size."""
    found = {ours: stored[name] for name, ours in renamed(stored, rules()).items()}
    if "head.weight" in found and found["head.weight"].shape != network.head.weight.shape:
        found = {name: tensor for name, tensor in found.items() if not name.startswith("head.")}
    places = "embeddings.position_embeddings"
    if places in found:
        found[places] = resized_positions(found[places], network.embeddings.position_embeddings.shape[1])
    fill(network, found, where, optional=("head.*",))
