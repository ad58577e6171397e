"""ViLT: the settings of the network in `vilt_network`, its sizes, and its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter, with_heads
from simfl.models.base import DropoutRate, Model, seeded, set_trainable
from simfl.models.dropout import install_keyed_dropout
from simfl.models.heads import HeadSpec
from simfl.models.pretrained import (
    Rules,
    copy_tensors,
    read_sizes,
    read_tensors,
    renamed_tensors,
    resize_positions,
    weights_folder,
)
from simfl.models.tokenizer import Tokenizer, load_bert_tokenizer, public_tokenizer
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.vilt_network import ViltNetwork

TEXT_SIZES = {"vocab_size": 30522, "max_position_embeddings": 40, "type_vocab_size": 2}  # BERT's vocabulary
SIZES: dict[str, dict[str, int]] = {
    "tiny": TEXT_SIZES | {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        "image_size": 32, "patch_size": 8,
    },
    "base": TEXT_SIZES | {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "image_size": 384, "patch_size": 32,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Vilt(Model):
    """ViLT: one transformer over a question and an image, and a classifier over the answers."""

    size: Literal["tiny", "base"] | None = None  # null: the weights' own, or tiny
    weights: str | None = None  # a folder or a Hugging Face hub id in transformers' layout; null: drawn from the seed
    heads: Mapping[str, HeadSpec] = field(default_factory=dict)  # by task; none: one, over the data's answers
    image_size: PositiveInt | None = None  # height and width of the image; null: that of the weights or the size
    dropout: DropoutRate = 0.0  # of the backbone
    adapters: Adapter | None = None  # trained instead of the rest, together with the heads
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def build(self, task: Task) -> ViltNetwork:
        """Build the network with weights and adapters; raise ConfigError for settings that do not fit the weights."""
        with seeded(task.seed):
            network = self.network(task)
            if self._folder is not None:
                load_vilt(network, read_tensors(self._folder), str(self._folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        return set_trainable(self, install_keyed_dropout(network)).eval()

    def network(self, task: Task) -> ViltNetwork:
        """Build the bare network on the default device, without weights or adapters."""
        from simfl.models.vilt_network import ViltNetwork  # imports transformers: seconds, and many runs need none

        heads = self.heads or {"answers": HeadSpec()}
        return ViltNetwork(self._sizes, heads, task, dropout=self.dropout, bf16=self.precision == "bf16")

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return everything, or the adapters and the heads."""
        return ("*",) if self.adapters is None else with_heads(self.adapters, module)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the weights; without weights, a small public one."""
        if self._folder is None:
            return Tokenizer(public_tokenizer(), self._sizes["image_size"])
        return load_bert_tokenizer(self._folder, self._sizes["image_size"])

    @cached_property
    def _folder(self) -> Path | None:
        return None if self.weights is None else weights_folder(self.weights)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        sizes = dict(SIZES[self.size or "tiny"])
        if self._folder is not None:
            sizes |= read_sizes(self._folder, sizes)
        elif self.size is None or self.size == "tiny":
            sizes["vocab_size"] = public_tokenizer().get_vocab_size()
        if self.size and sizes["hidden_size"] != SIZES[self.size]["hidden_size"]:
            raise ConfigError(
                f"model.size: {self.size!r} is not the size of {self.weights}, whose width is {sizes['hidden_size']}"
            )
        sizes["modality_type_vocab_size"] = 3 if reads_two_images(self.heads) else 2
        return sizes | ({"image_size": self.image_size} if self.image_size else {})


def reads_two_images(heads: Mapping[str, HeadSpec]) -> bool:
    """Return whether a head reads two images, the second of which has its own token type."""
    return any(head.reads == "two" for head in heads.values())


def vilt_rules() -> Rules:
    """Return rules from transformers' ViLT checkpoints to our names; other heads and stored positions are dropped."""
    from simfl.models.transformer import LAYER_NAMES

    return (
        (r"^(mlm_score|rank_output)\..*", ""),
        (r"^.*\.(position_ids|token_type_ids)$", ""),
        (r"^vilt\.", ""),
        (r"^encoder\.layer\.", "layers."),
        (r"^classifier\.0\.", "head.answers.dense."),
        (r"^classifier\.1\.", "head.answers.norm."),
        (r"^classifier\.3\.", "head.answers.out."),
        *LAYER_NAMES,
    )


def load_vilt(network: ViltNetwork, stored: Mapping[str, Tensor], source: str, optional: tuple[str, ...] = ()) -> None:
    """Fill the network in place; tensors that match the globs `optional` may be missing.

    A classifier over another number of answers is ignored, and ours keeps its initial values. A second image's type
    starts as the first one's, and positions are interpolated for another image size.
    """
    found = renamed_tensors(stored, vilt_rules())
    known = dict(network.named_parameters())
    head = known.get("head.answers.out.weight")
    if "head.answers.out.weight" in found and (head is None or head.shape != found["head.answers.out.weight"].shape):
        found = {name: tensor for name, tensor in found.items() if not name.startswith("head.")}
    types, positions = "embeddings.token_type_embeddings.weight", "embeddings.position_embeddings"
    if types in found and len(found[types]) == 2 and len(known[types]) == 3:
        found[types] = found[types][[0, 1, 1]]
    if types in found and len(found[types]) == 3 and len(known[types]) == 2:
        found[types] = found[types][:2]
    if positions in found:
        found[positions] = resize_positions(found[positions], known[positions].shape[1])
    copy_tensors(network, found, source, optional=("head.*", *optional))
