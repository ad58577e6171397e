"""FeDocVQA's model as a component: the settings of the network in `layout_t5_network`, and where its weights come from.

T5-base, MAE's patch embedding, boxes by tables (the published code) or by a linear layer (the paper): 225.07 million.
For self-pretraining the vocabulary has 33,201 rows, 824,064 parameters more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from simfl.constraints import Count
from simfl.errors import ConfigError
from simfl.models import pretrained as start
from simfl.models.adapters_base import Adapter
from simfl.models.base import Dropout, Model, aliases, default_trained, seeded
from simfl.models.dropout import install
from simfl.models.marks import COUNT, marked, marks
from simfl.models.tokenizer import Tokenizer, read, small
from simfl.models.weight_layouts import Rules, fill, renamed
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.layout_t5_network import LayoutT5Network

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 2, "d_kv": 32, "image_size": 64, "patch_size": 16,
    },
    "small": {
        "d_model": 256, "d_ff": 512, "num_layers": 4, "num_heads": 4, "d_kv": 64, "vocab_size": 3072, "pieces": 3072,
        "image_size": 64, "patch_size": 16,
    },
    "medium": {
        "d_model": 384, "d_ff": 1024, "num_layers": 4, "num_heads": 6, "d_kv": 64, "vocab_size": 3072, "pieces": 3072,
        "image_size": 64, "patch_size": 16,
    },
    "base": {
        "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "d_kv": 64, "vocab_size": 32128,
        "pieces": 32_000, "image_size": 224, "patch_size": 16,
    },
}  # fmt: skip
RULES = (  # names of the published code (and of transformers' UDOP), of a plain T5, of MAE -> ours; "" is not needed
    (r"^.*\.EncDecAttention\.relative_attention_bias\.weight$", ""),
    (r"^pos_embed$", ""),
    (r"^(patch_embed|encoder\.embed_patches)\.proj\.", "patches."),
    (r"^special_vis_token$", "patch_token.weight"),
    (r"^encoder\.(cell2dembedding|cell_2d_embedding)\.([xy])_position_embeddings\.", r"box.\2."),
    (r"^encoder\.relative_bias\.biases\.0\..*", ""),  # the first block's own
    (r"^encoder\.relative_bias\.biases\.1\.relative_attention_bias\.", "across."),
    (r"^encoder\.relative_bias\.biases\.2\.relative_attention_bias\.", "down."),
    (r"^decoder\.(relative_bias|embed_patches)\..*", ""),
    (r"^(spatial_embedding|visual_projection|vision)\..*", ""),  # what else a VT5 has
    (r"^(shared|encoder|decoder|lm_head)\.", r"t5.\1."),
)
PARTS = ("t5", "patches", "patch_token", "box", "across", "down")
MAE_RULES = (  # MAE's checkpoint: the patch embedding alone
    (r"^(patch_embed\.proj|vit\.embeddings\.patch_embeddings\.projection)\.", "patches."),
    (r"^(?!patches\.).*", ""),
)


@dataclass(frozen=True)
class LayoutT5(Model):
    """T5 whose words carry the patches of the page that they stand on."""

    size: Literal["tiny", "small", "medium", "base"] = "tiny"  # of T5; small: that of the bundled start vt5_tiny
    weights: str | None = None  # a T5, or a checkpoint of the whole: folder or hub id; null: drawn from the seed
    vocabulary: str | None = None  # a start whose tokenizer is taken; null: the weights' own, or a small public one
    patches: str | None = None  # MAE's checkpoint, folder or hub id, for the patch embedding; null: as the weights
    boxes: Literal["tables", "linear"] = "tables"  # two tables, as published, or a linear layer, as printed
    head: Literal["tied", "untied"] = "tied"  # output projection
    marks: bool = False  # sentinels and places among the pieces, for self-pretraining and what starts from it
    vocab_size: Count | None = (
        None  # rows of the embedding; null: the size's or the tokenizer's; of base 33201 with marks
    )
    dropout: Dropout = 0.1  # of T5
    adapters: Adapter | None = None  # trained in place of the rest
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def build(self, task: Task) -> LayoutT5Network:
        """The network with weights, adapters and tokenizer; ConfigError for settings that do not fit the weights."""
        with seeded(task.seed):
            network = self.network()
            for weights, rules in ((self.weights, RULES), (self.patches, MAE_RULES)):
                if weights is not None:
                    folder = start.locate(weights)
                    load(network, start.read(folder), rules, str(folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        network.text = self.tokenizer()
        install(network)
        default_trained(self, network)
        return network.eval()

    def network(self) -> LayoutT5Network:
        """The bare network on the default device, without weights or adapters."""
        from transformers import T5Config  # seconds to import, and many runs need none of it

        from simfl.models.layout_t5_network import LayoutT5Network

        dims = SIZES[self.size]
        t5 = T5Config(
            **{key: dims[key] for key in ("d_model", "d_ff", "num_layers", "num_heads", "d_kv")},
            vocab_size=self._rows, dropout_rate=self.dropout, decoder_start_token_id=0, attn_implementation="simfl",
        )  # fmt: skip
        return LayoutT5Network(
            t5, image_size=dims["image_size"], patch_size=dims["patch_size"], boxes=self.boxes,
            tied=self.head == "tied", bf16=self.precision == "bf16",
        )  # fmt: skip

    def trains(self, module: Any) -> tuple[str, ...]:
        """The adapters, if there are any."""
        return ("*",) if self.adapters is None else self.adapters.trained(module)

    def tokenizer(self) -> Tokenizer:
        """That of `vocabulary`, or the weights' own, or a small public one."""
        if self.vocabulary is not None:
            text = read(start.locate(self.vocabulary, "model.vocabulary"))
        else:
            text = small() if self.weights is None else read(start.locate(self.weights))
        text = marked(text) if self.marks else text
        if text.get_vocab_size() > self._rows:
            raise ConfigError(f"model.vocab_size: {self._rows} rows are too few for {text.get_vocab_size()} pieces")
        return Tokenizer(text, SIZES[self.size]["image_size"], marks=marks(text) if self.marks else None)

    @cached_property
    def _rows(self) -> int:
        if self.vocab_size is not None:
            return self.vocab_size
        if self.marks:
            return SIZES[self.size].get("pieces", small().get_vocab_size()) + COUNT
        return SIZES[self.size].get("vocab_size", small().get_vocab_size())


def load(network: LayoutT5Network, stored: Mapping[str, Tensor], rules: Rules, where: str) -> None:
    """Fill what the checkpoint has. A smaller vocabulary fills the first rows, others stay as drawn.

    A T5 brings no patches, boxes and distances, MAE the patches alone: what is missing of the rest is an error.
    """
    found = {ours: stored[name] for name, ours in renamed(stored, rules).items()}
    own, second = dict(network.named_parameters()), aliases(network)
    head, shared = "t5.lm_head.weight", "t5.shared.weight"
    if shared in found and head in own and head not in found:
        found[head] = found[shared]  # stored tied, wanted untied
    found = {name: tensor for name, tensor in found.items() if name not in second}
    for name in (shared, head):
        if name in found and len(found[name]) < len(own[name]):
            found[name] = torch.cat([found[name], own[name].detach()[len(found[name]) :].to(found[name].dtype)])
    brought = {name.partition(".")[0] for name in found}
    absent = tuple(f"{part}*" for part in PARTS if part not in brought)
    fill(network, found, where, optional=() if {"t5", "box"} <= brought else absent)
