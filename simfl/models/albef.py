"""ALBEF as a component: the settings of the network in `albef_network`, its sizes, and the published names.

290.34 million parameters at full size. From a checkpoint of pretraining the decoder gets the upper half of the question
encoder, its words and its head, as ALBEF's own code for questions does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from simfl.constraints import Count
from simfl.errors import ConfigError
from simfl.models import pretrained as start
from simfl.models.adapters_base import Adapter, beside_heads
from simfl.models.base import Dropout, Model, aliases, default_trained, seeded
from simfl.models.dropout import install
from simfl.models.tokenizer import Tokenizer, small, wordpiece
from simfl.models.weight_layouts import BERT_NAMES, dimensions, fill, renamed, resized_positions
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.albef_network import AlbefNetwork

WORDS = {"max_position_embeddings": 512, "type_vocab_size": 2, "vocab_size": 30522}  # BERT's
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        "image_size": 32, "patch_size": 8, "text_layers": 2, "fusion": 1, "decoder_layers": 1,
        "max_position_embeddings": 64, "type_vocab_size": 2,
    },
    "small": WORDS | {
        "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
        "image_size": 384, "patch_size": 32, "text_layers": 6, "fusion": 3, "decoder_layers": 3,
    },
    "base": WORDS | {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "image_size": 384, "patch_size": 16, "text_layers": 12, "fusion": 6, "decoder_layers": 6,
    },
}  # fmt: skip
TEXT_RULES = (  # names of BERT checkpoints -> ours
    *BERT_NAMES,
    (r"^(pooler|cls\.predictions\.decoder)\..*", ""),
    (r"^cls\.predictions\.bias$", "head.out.bias"),
    (r"^cls\.predictions\.", "head."),
    (r"^(?=embeddings\.|layer\.)", "question."),
)
SHAPED = {  # what a BERT says of itself: what of a size it must be
    "hidden_size": "hidden_size", "num_hidden_layers": "text_layers", "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}  # fmt: skip


@dataclass(frozen=True)
class Albef(Model):
    """ALBEF for questions: it ranks the answers of a client's list by the chance of their pieces."""

    size: Literal["tiny", "small", "base"] = "tiny"  # of all parts; small: MiniLM's width and depth
    weights: str | None = None  # a folder with ALBEF.pth or a checkpoint for questions, and BERT's tokenizer
    text: str | None = None  # a BERT with its tokenizer, for question and answers alone; minilm: of size small
    image_size: Count | None = None  # height and width of the image, if not the size's
    dropout: Dropout = 0.0  # of all parts
    adapters: Adapter | None = None  # trained in place of the rest, beside the head
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def __post_init__(self) -> None:
        """Refuses texts from two places."""
        if self.weights is not None and self.text is not None:
            raise ConfigError(f"model.text: {self.text!r} given with weights, which bring texts of their own")

    def build(self, task: Task) -> AlbefNetwork:
        """The network with weights, adapters and tokenizer; ConfigError for settings that do not fit the weights."""
        with seeded(task.seed):
            network = self.network()
            if self._folder is not None:
                read = load_text if self.text is not None else load
                read(network, start.read(self._folder), str(self._folder), SIZES[self.size]["fusion"])
            if self.adapters is not None:
                self.adapters.attach(network)
        network.start = self.tokenizer().start
        install(network)
        default_trained(self, network)
        return network.eval()

    def network(self) -> AlbefNetwork:
        """The bare network on the default device, without weights or adapters."""
        from simfl.models.albef_network import AlbefNetwork  # imports transformers: seconds, and many runs need none

        return AlbefNetwork(self._dims, dropout=self.dropout, bf16=self.precision == "bf16")

    def trains(self, module: Any) -> tuple[str, ...]:
        """Everything; with adapters these and the head."""
        return ("*",) if self.adapters is None else beside_heads(self.adapters, module)

    def tokenizer(self) -> Tokenizer:
        """BERT's pieces as the weights have them; without weights, a small public vocabulary."""
        side = self._dims["image_size"]
        return Tokenizer(small(), side) if self._folder is None else wordpiece(self._folder, side)

    @cached_property
    def _folder(self) -> Any:
        if self.text is not None:
            return start.locate(self.text, "model.text")
        return None if self.weights is None else start.locate(self.weights)

    @cached_property
    def _dims(self) -> dict[str, Any]:
        dims = dict(SIZES[self.size])
        if self.text is not None:
            dims |= self._of_text(dims)
        if "vocab_size" not in dims:
            dims["vocab_size"] = self._own_pieces()
        return dims | ({"image_size": self.image_size} if self.image_size else {})

    def _of_text(self, dims: dict[str, Any]) -> dict[str, Any]:
        found = dimensions(self._folder, (*SHAPED, *WORDS), "model.text")
        for name, other in SHAPED.items():
            if found.get(name, dims[other]) != dims[other]:
                raise ConfigError(
                    f"model.text: {self.text}: {name} is {found[name]}, of size {self.size} {dims[other]}"
                )
        return {name: value for name, value in found.items() if name in WORDS}

    def _own_pieces(self) -> int:
        return len(Tokenizer(small()) if self._folder is None else wordpiece(self._folder, 1))


def rules() -> tuple[tuple[str, str], ...]:
    """Names of ALBEF's checkpoints -> ours; momentum copies, queues and the heads of pretraining are not needed."""
    from simfl.models.transformer import TIMM_NAMES

    return (
        (r"^(\w+_m\.|temp$|\w+_queue$|queue_ptr$|vision_proj|text_proj|itm_head|combine_).*", ""),
        (r"^.*\.position_ids$", ""),
        (r"^text_encoder\.cls\..*", ""),
        (r"^visual_encoder\.cls_token$", "image.embeddings.cls_token"),
        (r"^visual_encoder\.pos_embed$", "image.embeddings.position_embeddings"),
        (r"^visual_encoder\.patch_embed\.proj\.", "image.embeddings.patch_embeddings.projection."),
        (r"^visual_encoder\.norm\.", "image.layernorm."),
        (r"^visual_encoder\.blocks\.", "image.layers."),
        (r"^text_encoder\.(?:bert\.)?embeddings\.", "question.embeddings."),
        (r"^text_encoder\.(?:bert\.)?encoder\.layer\.", "question.layer."),
        (r"^text_decoder\.bert\.embeddings\.", "decoder.embeddings."),
        (r"^text_decoder\.bert\.encoder\.layer\.", "decoder.layer."),
        (r"^text_decoder\.cls\.predictions\.bias$", ""),  # a second name of the next
        (r"^text_decoder\.cls\.predictions\.decoder\.", "head.out."),
        (r"^text_decoder\.cls\.predictions\.", "head."),
        *TIMM_NAMES,
    )


def load(network: AlbefNetwork, stored: Mapping[str, Tensor], where: str, fusion: int) -> None:
    """Fill in place; places are interpolated for another image size."""
    found, places = arranged(stored, fusion), "image.embeddings.position_embeddings"
    if places in found:
        found[places] = resized_positions(found[places], network.image.embeddings.position_embeddings.shape[1])
    fill(network, {name: t for name, t in found.items() if name not in aliases(network)}, where)


def load_text(network: AlbefNetwork, stored: Mapping[str, Tensor], where: str, fusion: int) -> None:
    """Fill question and answers from a BERT, in place: the decoder gets the layers from `fusion` on.

    What looks at the image or at the question, which a BERT does not have, stays as drawn.
    """
    found = {ours: stored[name] for name, ours in renamed(stored, TEXT_RULES).items()}
    for name, tensor in list(found.items()):
        layer = re.match(r"^question\.layer\.(\d+)\.(.*)$", name)
        if layer and int(layer[1]) >= fusion:
            found[f"decoder.layer.{int(layer[1]) - fusion}.{layer[2]}"] = tensor
        elif name.startswith("question.embeddings."):
            found[name.replace("question.", "decoder.", 1)] = tensor
    fill(network, found, where, optional=("image.*", "*.crossattention.*", "head.*"))


def arranged(stored: Mapping[str, Tensor], fusion: int) -> dict[str, Tensor]:
    """A checkpoint's tensors by our names."""
    from simfl.models.transformer import split_qkv

    stored = split_qkv(stored)
    if not any(name.startswith("text_decoder.") for name in stored):
        stored |= decoder_of(stored, fusion)
    return {ours: stored[name] for name, ours in renamed(stored, rules()).items()}


def decoder_of(stored: Mapping[str, Tensor], fusion: int) -> dict[str, Tensor]:
    """The decoder that pretraining gives: the layers of the question encoder from `fusion` on, its words, its head."""
    made = {}
    for name, tensor in stored.items():
        layer = re.match(r"^text_encoder\.bert\.encoder\.layer\.(\d+)\.(.*)$", name)
        if layer and int(layer[1]) >= fusion:
            made[f"text_decoder.bert.encoder.layer.{int(layer[1]) - fusion}.{layer[2]}"] = tensor
        elif name.startswith(("text_encoder.bert.embeddings.", "text_encoder.cls.")):
            made[name.replace("text_encoder.", "text_decoder.", 1)] = tensor
    return made
