"""FeDocVQA's model: the settings of the network in `layout_t5_network`, its sizes, and its weights.

T5-base, MAE's patch embedding, boxes by tables (the published code) or by a linear layer (the paper): 225.07 million
parameters. For self-pretraining the vocabulary has 33,201 rows, 824,064 parameters more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.base import DropoutRate, Model, seeded, set_trainable, tied_names
from simfl.models.dropout import install_keyed_dropout
from simfl.models.pretrained import Rules, copy_tensors, read_tensors, renamed_tensors, weights_folder
from simfl.models.tokenizer import (
    NUM_SPECIAL_TOKENS,
    Tokenizer,
    add_special_tokens,
    load_t5_tokenizer,
    public_tokenizer,
    special_token_ids,
)
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.layout_t5_network import LayoutT5Network

T5_SIZES = ("d_model", "d_ff", "num_layers", "num_heads", "d_kv")
SIZES: dict[str, dict[str, int]] = {  # text_tokens: rows of the vocabulary before special tokens
    "tiny": {
        "d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 2, "d_kv": 32, "image_size": 64, "patch_size": 16,
    },
    "small": {
        "d_model": 256, "d_ff": 512, "num_layers": 4, "num_heads": 4, "d_kv": 64, "vocab_size": 3072,
        "text_tokens": 3072, "image_size": 64, "patch_size": 16,
    },
    "medium": {
        "d_model": 384, "d_ff": 1024, "num_layers": 4, "num_heads": 6, "d_kv": 64, "vocab_size": 3072,
        "text_tokens": 3072, "image_size": 64, "patch_size": 16,
    },
    "base": {
        "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "d_kv": 64, "vocab_size": 32128,
        "text_tokens": 32_000, "image_size": 224, "patch_size": 16,
    },
}  # fmt: skip
CHECKPOINT_RULES = (  # names of the published code (and of transformers' UDOP) and of a plain T5 -> ours
    (r"^.*\.EncDecAttention\.relative_attention_bias\.weight$", ""),
    (r"^pos_embed$", ""),
    (r"^(patch_embed|encoder\.embed_patches)\.proj\.", "patches."),
    (r"^special_vis_token$", "patch_token.weight"),
    (r"^encoder\.(cell2dembedding|cell_2d_embedding)\.([xy])_position_embeddings\.", r"box.\2."),
    (r"^encoder\.relative_bias\.biases\.0\..*", ""),  # a copy of the first block's own
    (r"^encoder\.relative_bias\.biases\.1\.relative_attention_bias\.", "across."),
    (r"^encoder\.relative_bias\.biases\.2\.relative_attention_bias\.", "down."),
    (r"^decoder\.(relative_bias|embed_patches)\..*", ""),
    (r"^(spatial_embedding|visual_projection|vision)\..*", ""),  # the parts of a VT5 that are not used here
    (r"^(shared|encoder|decoder|lm_head)\.", r"t5.\1."),
)
MAE_RULES = (  # of MAE's checkpoint: the patch embedding alone
    (r"^(patch_embed\.proj|vit\.embeddings\.patch_embeddings\.projection)\.", "patches."),
    (r"^(?!patches\.).*", ""),
)
PARTS = ("t5", "patches", "patch_token", "box", "across", "down")


@dataclass(frozen=True)
class LayoutT5(Model):
    """T5 whose words carry the patches of the page under them."""

    size: Literal["tiny", "small", "medium", "base"] = "tiny"  # of T5; small: that of the bundled weights vt5_tiny
    weights: str | None = None  # a T5, or a checkpoint of the whole: folder or hub id; null: drawn from the seed
    vocabulary: str | None = None  # weights whose tokenizer is used; null: the weights' own, or a small public one
    patches: str | None = None  # MAE's checkpoint, folder or hub id, for the patch embedding; null: as the weights
    boxes: Literal["tables", "linear"] = "tables"  # two tables, as published, or a linear layer, as in the paper
    head: Literal["tied", "untied"] = "tied"  # output projection
    special_tokens: bool = False  # sentinels and page positions in the vocabulary, for self-pretraining
    vocab_size: PositiveInt | None = None  # rows of the embedding; null: those of the size or of the tokenizer
    dropout: DropoutRate = 0.1  # of T5
    adapters: Adapter | None = None  # trained instead of the rest
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def build(self, task: Task) -> LayoutT5Network:
        """Build the network with weights, adapters and tokenizer; raise ConfigError if the weights do not fit."""
        with seeded(task.seed):
            network = self.network()
            for weights, rules in ((self.weights, CHECKPOINT_RULES), (self.patches, MAE_RULES)):
                if weights is not None:
                    folder = weights_folder(weights)
                    load_layout_t5(network, read_tensors(folder), rules, str(folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        network.tokenizer = self.tokenizer()
        return set_trainable(self, install_keyed_dropout(network)).eval()

    def network(self) -> LayoutT5Network:
        """Build the bare network on the default device, without weights or adapters."""
        from transformers import T5Config  # seconds to import, and many runs need none of it

        from simfl.models.layout_t5_network import LayoutT5Network, PageSettings

        sizes = SIZES[self.size]
        t5 = T5Config(
            **{key: sizes[key] for key in T5_SIZES},
            vocab_size=self._rows, dropout_rate=self.dropout, decoder_start_token_id=0, attn_implementation="simfl",
        )  # fmt: skip
        page = PageSettings(sizes["image_size"], sizes["patch_size"], self.boxes)
        return LayoutT5Network(t5, page, tied=self.head == "tied", bf16=self.precision == "bf16")

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return everything, or the adapters if there are any."""
        return ("*",) if self.adapters is None else self.adapters.trainable_params(module)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of `vocabulary` or of the weights; without either, a small public one."""
        if self.vocabulary is not None:
            backend = load_t5_tokenizer(weights_folder(self.vocabulary, "model.vocabulary"))
        else:
            backend = public_tokenizer() if self.weights is None else load_t5_tokenizer(weights_folder(self.weights))
        backend = add_special_tokens(backend) if self.special_tokens else backend
        if backend.get_vocab_size() > self._rows:
            raise ConfigError(f"model.vocab_size: {self._rows} rows are too few for {backend.get_vocab_size()} tokens")
        special_tokens = special_token_ids(backend) if self.special_tokens else None
        return Tokenizer(backend, SIZES[self.size]["image_size"], special_tokens=special_tokens)

    @cached_property
    def _rows(self) -> int:
        if self.vocab_size is not None:
            return self.vocab_size
        if self.special_tokens:
            return SIZES[self.size].get("text_tokens", public_tokenizer().get_vocab_size()) + NUM_SPECIAL_TOKENS
        return SIZES[self.size].get("vocab_size", public_tokenizer().get_vocab_size())


def load_layout_t5(network: LayoutT5Network, stored: Mapping[str, Tensor], rules: Rules, source: str) -> None:
    """Fill the network with what the checkpoint has, in place.

    A smaller vocabulary fills the first rows; the others keep their initial values. A T5 has no patches, boxes and
    distances, and MAE has the patches alone. Any other missing tensor is a ConfigError.
    """
    found = renamed_tensors(stored, rules)
    known, tied = dict(network.named_parameters()), tied_names(network)
    head, shared = "t5.lm_head.weight", "t5.shared.weight"
    if shared in found and head in known and head not in found:
        found[head] = found[shared]  # tied in the file, untied in the model
    found = {name: tensor for name, tensor in found.items() if name not in tied}
    for name in (shared, head):
        if name in found and len(found[name]) < len(known[name]):
            new_rows = known[name].detach()[len(found[name]) :].to(found[name].dtype)
            found[name] = torch.cat([found[name], new_rows])
    present = {name.partition(".")[0] for name in found}
    absent = tuple(f"{part}*" for part in PARTS if part not in present)
    copy_tensors(network, found, source, optional=() if {"t5", "box"} <= present else absent)
