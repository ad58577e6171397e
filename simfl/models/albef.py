"""ALBEF: the settings of the network in `albef_network`, its sizes, and its weights.

290.34 million parameters at full size. From a pretraining checkpoint the decoder takes the upper half of the question
encoder, its words and its head, as ALBEF's own code for question answering does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter, with_heads
from simfl.models.base import DropoutRate, Model, seeded, set_trainable, tied_names
from simfl.models.dropout import install_keyed_dropout
from simfl.models.pretrained import (
    BERT_NAMES,
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
    from simfl.models.albef_network import AlbefNetwork

BERT_VOCABULARY = {"max_position_embeddings": 512, "type_vocab_size": 2, "vocab_size": 30522}
SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        "image_size": 32, "patch_size": 8, "text_layers": 2, "fusion": 1, "decoder_layers": 1,
        "max_position_embeddings": 64, "type_vocab_size": 2,
    },
    "small": BERT_VOCABULARY | {
        "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
        "image_size": 384, "patch_size": 32, "text_layers": 6, "fusion": 3, "decoder_layers": 3,
    },
    "base": BERT_VOCABULARY | {
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
BERT_TO_SIZE = {  # keys of a BERT's config.json -> the size that they must equal
    "hidden_size": "hidden_size", "num_hidden_layers": "text_layers", "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}  # fmt: skip


@dataclass(frozen=True)
class Albef(Model):
    """ALBEF for question answering: it ranks a client's list of answers by the probability of their tokens."""

    size: Literal["tiny", "small", "base"] = "tiny"  # of all parts; small: MiniLM's width and depth
    weights: str | None = None  # a folder with ALBEF.pth or a checkpoint for questions, and BERT's tokenizer
    text: str | None = None  # a BERT with its tokenizer, for question and answers alone; minilm: of size small
    image_size: PositiveInt | None = None  # height and width of the image; null: the size's
    dropout: DropoutRate = 0.0  # of all parts
    adapters: Adapter | None = None  # trained instead of the rest, together with the head
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def __post_init__(self) -> None:
        """Reject two sources of the text's weights."""
        if self.weights is not None and self.text is not None:
            raise ConfigError(
                f"model.text: {self.text!r} given with weights, which include the text's; give one of them"
            )

    def build(self, task: Task) -> AlbefNetwork:
        """Build the network with weights and adapters; raise ConfigError for settings that do not fit the weights."""
        with seeded(task.seed):
            network = self.network()
            if self._folder is not None:
                load = load_bert if self.text is not None else load_albef
                load(network, read_tensors(self._folder), str(self._folder), SIZES[self.size]["fusion"])
            if self.adapters is not None:
                self.adapters.attach(network)
        network.start_id = self.tokenizer().start_id
        return set_trainable(self, install_keyed_dropout(network)).eval()

    def network(self) -> AlbefNetwork:
        """Build the bare network on the default device, without weights or adapters."""
        from simfl.models.albef_network import AlbefNetwork  # imports transformers: seconds, and many runs need none

        return AlbefNetwork(self._sizes, dropout=self.dropout, bf16=self.precision == "bf16")

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return everything, or the adapters and the head."""
        return ("*",) if self.adapters is None else with_heads(self.adapters, module)

    def tokenizer(self) -> Tokenizer:
        """Return BERT's tokenizer of the weights; without weights, a small public one."""
        side = self._sizes["image_size"]
        return Tokenizer(public_tokenizer(), side) if self._folder is None else load_bert_tokenizer(self._folder, side)

    @cached_property
    def _folder(self) -> Path | None:
        if self.text is not None:
            return weights_folder(self.text, "model.text")
        return None if self.weights is None else weights_folder(self.weights)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        sizes = dict(SIZES[self.size])
        if self._folder is not None and self.text is not None:
            sizes |= self._text_sizes(self._folder, sizes)
        if "vocab_size" not in sizes:
            folder = self._folder
            sizes["vocab_size"] = len(
                Tokenizer(public_tokenizer()) if folder is None else load_bert_tokenizer(folder, 1)
            )
        return sizes | ({"image_size": self.image_size} if self.image_size else {})

    def _text_sizes(self, folder: Path, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the vocabulary's sizes of the BERT `text`; raise ConfigError if its layers have another size."""
        found = read_sizes(folder, (*BERT_TO_SIZE, *BERT_VOCABULARY), "model.text")
        for name, ours in BERT_TO_SIZE.items():
            if found.get(name, sizes[ours]) != sizes[ours]:
                raise ConfigError(
                    f"model.text: {self.text}: {name} is {found[name]}, but {sizes[ours]} in size {self.size}"
                )
        return {name: value for name, value in found.items() if name in BERT_VOCABULARY}


def albef_rules() -> Rules:
    """Return rules from ALBEF's checkpoints to our names; momentum copies, queues and pretraining heads are dropped."""
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


def load_albef(network: AlbefNetwork, stored: Mapping[str, Tensor], source: str, fusion: int) -> None:
    """Fill the network from an ALBEF checkpoint in place; positions are interpolated for another image size."""
    found, positions = albef_tensors(stored, fusion), "image.embeddings.position_embeddings"
    if positions in found:
        found[positions] = resize_positions(found[positions], network.image.embeddings.position_embeddings.shape[1])
    copy_tensors(network, {name: t for name, t in found.items() if name not in tied_names(network)}, source)


def load_bert(network: AlbefNetwork, stored: Mapping[str, Tensor], source: str, fusion: int) -> None:
    """Fill question encoder and decoder from a BERT, in place: the decoder gets the layers from `fusion` on.

    Cross-attention and the image encoder, which a BERT does not have, keep their initial values.
    """
    found = renamed_tensors(stored, TEXT_RULES)
    for name, tensor in list(found.items()):
        layer = re.match(r"^question\.layer\.(\d+)\.(.*)$", name)
        if layer and int(layer[1]) >= fusion:
            found[f"decoder.layer.{int(layer[1]) - fusion}.{layer[2]}"] = tensor
        elif name.startswith("question.embeddings."):
            found[name.replace("question.", "decoder.", 1)] = tensor
    copy_tensors(network, found, source, optional=("image.*", "*.crossattention.*", "head.*"))


def albef_tensors(stored: Mapping[str, Tensor], fusion: int) -> dict[str, Tensor]:
    """Return the tensors of an ALBEF checkpoint under our names."""
    from simfl.models.transformer import split_qkv

    stored = split_qkv(stored)
    if not any(name.startswith("text_decoder.") for name in stored):
        stored |= decoder_tensors(stored, fusion)
    return renamed_tensors(stored, albef_rules())


def decoder_tensors(stored: Mapping[str, Tensor], fusion: int) -> dict[str, Tensor]:
    """Build the decoder's tensors from a pretraining checkpoint, in its names.

    They are the layers of the question encoder from `fusion` on, its words and its head.
    """
    made = {}
    for name, tensor in stored.items():
        layer = re.match(r"^text_encoder\.bert\.encoder\.layer\.(\d+)\.(.*)$", name)
        if layer and int(layer[1]) >= fusion:
            made[f"text_decoder.bert.encoder.layer.{int(layer[1]) - fusion}.{layer[2]}"] = tensor
        elif name.startswith(("text_encoder.bert.embeddings.", "text_encoder.cls.")):
            made[name.replace("text_encoder.", "text_decoder.", 1)] = tensor
    return made
