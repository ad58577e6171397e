"""ViLT as a component: the settings of the network in `vilt_network`, its sizes, and where its weights come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from simfl.constraints import Count
from simfl.errors import ConfigError
from simfl.models import pretrained as start
from simfl.models.adapters_base import Adapter, beside_heads
from simfl.models.base import Dropout, Model, default_trained, seeded
from simfl.models.dropout import install
from simfl.models.heads import HeadSpec
from simfl.models.tokenizer import Tokenizer, small, wordpiece
from simfl.models.weight_layouts import dimensions, fill, renamed, resized_positions
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.vilt_network import ViltNetwork

TEXT = {"vocab_size": 30522, "max_position_embeddings": 40, "type_vocab_size": 2}  # BERT's pieces, ViLT's places
SIZES: dict[str, dict[str, Any]] = {
    "tiny": TEXT | {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        "image_size": 32, "patch_size": 8,
    },
    "base": TEXT | {
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
    image_size: Count | None = None  # height and width of the image, if not the weights' or the size's
    dropout: Dropout = 0.0  # of the backbone
    adapters: Adapter | None = None  # trained in place of the rest, beside the heads
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def build(self, task: Task) -> ViltNetwork:
        """The network with weights, adapters and tokenizer; ConfigError for settings that do not fit the weights."""
        with seeded(task.seed):
            network = self.network(task)
            if self._folder is not None:
                load(network, start.read(self._folder), str(self._folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        install(network)
        default_trained(self, network)
        return network.eval()

    def network(self, task: Task) -> ViltNetwork:
        """The bare network on the default device, without weights or adapters."""
        from simfl.models.vilt_network import ViltNetwork  # imports transformers: seconds, and many runs need none

        heads = self.heads or {"answers": HeadSpec()}
        return ViltNetwork(self._dims, heads, task, dropout=self.dropout, bf16=self.precision == "bf16")

    def trains(self, module: Any) -> tuple[str, ...]:
        """Everything; with adapters these and the heads."""
        return ("*",) if self.adapters is None else beside_heads(self.adapters, module)

    def tokenizer(self) -> Tokenizer:
        """BERT's pieces as the weights have them; without weights, a small public vocabulary."""
        if self._folder is None:
            return Tokenizer(small(), self._dims["image_size"])
        return wordpiece(self._folder, self._dims["image_size"])

    @cached_property
    def _folder(self) -> Any:
        return None if self.weights is None else start.locate(self.weights)

    @cached_property
    def _dims(self) -> dict[str, Any]:
        dims = dict(SIZES[self.size or "tiny"])
        if self._folder is not None:
            dims |= dimensions(self._folder, dims)
        elif self.size is None or self.size == "tiny":
            dims["vocab_size"] = small().get_vocab_size()
        if self.size and dims["hidden_size"] != SIZES[self.size]["hidden_size"]:
            raise ConfigError(
                f"model.size: {self.size!r} is not the size of {self.weights}, whose width is {dims['hidden_size']}"
            )
        dims["modality_type_vocab_size"] = 3 if two_images(self.heads) else 2
        return dims | ({"image_size": self.image_size} if self.image_size else {})


def two_images(heads: Mapping[str, HeadSpec]) -> bool:
    """Whether a head reads two images, of which the second has a kind of its own."""
    return any(head.reads == "two" for head in heads.values())


def rules() -> tuple[tuple[str, str], ...]:
    """Names of transformers' ViLT checkpoints -> ours; its other heads and stored positions are not needed."""
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


def load(network: ViltNetwork, stored: Mapping[str, Tensor], where: str, optional: tuple[str, ...] = ()) -> None:
    """Fill in place, all but what is `optional`.

    A classifier of another number of answers is left out, so that ours stays as drawn.
    """
    found = {ours: stored[name] for name, ours in renamed(stored, rules()).items()}
    own = dict(network.named_parameters())
    head = own.get("head.answers.out.weight")
    if "head.answers.out.weight" in found and (head is None or head.shape != found["head.answers.out.weight"].shape):
        found = {name: tensor for name, tensor in found.items() if not name.startswith("head.")}
    kinds, places = "embeddings.token_type_embeddings.weight", "embeddings.position_embeddings"
    if kinds in found and len(found[kinds]) == 2 and len(own[kinds]) == 3:  # a second image starts as the first
        found[kinds] = found[kinds][[0, 1, 1]]
    if kinds in found and len(found[kinds]) == 3 and len(own[kinds]) == 2:
        found[kinds] = found[kinds][:2]
    if places in found:
        found[places] = resized_positions(found[places], own[places].shape[1])
    fill(network, found, where, optional=("head.*", *optional))
