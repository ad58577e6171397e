"""VAuLT (Chochlakis et al. 2022): ViLT with BERT's last states as words.

BERT's pooler and ViLT's word embeddings are part of the published 227.77 million parameters, but their outputs are not
used: they stay frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter, with_heads
from simfl.models.base import DropoutRate, Model, seeded, set_trainable
from simfl.models.dropout import install_keyed_dropout
from simfl.models.heads import HeadSpec
from simfl.models.pretrained import BERT_NAMES, copy_tensors, read_sizes, read_tensors, renamed_tensors, weights_folder
from simfl.models.tokenizer import Tokenizer, load_bert_tokenizer, public_tokenizer
from simfl.models.vilt import SIZES as VILT_SIZES
from simfl.models.vilt import load_vilt, reads_two_images
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.vault_network import VaultNetwork

BERT_VOCABULARY = {"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}
LAYER_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
MINILM_SIZES = dict(zip(LAYER_SIZES, (384, 6, 12, 1536), strict=True))
SIZES: dict[str, tuple[dict[str, int], dict[str, int]]] = {  # of ViLT and of BERT
    "tiny": (VILT_SIZES["tiny"], BERT_VOCABULARY | {key: VILT_SIZES["tiny"][key] for key in LAYER_SIZES}),
    "small": (VILT_SIZES["base"] | MINILM_SIZES, BERT_VOCABULARY | MINILM_SIZES),
    "base": (VILT_SIZES["base"], BERT_VOCABULARY | {key: VILT_SIZES["base"][key] for key in LAYER_SIZES}),
}
TEXT_RULES = (*BERT_NAMES, (r"^cls\..*", ""), (r"^(?=.)", "bert."))  # names of BERT checkpoints -> ours


@dataclass(frozen=True)
class Vault(Model):
    """ViLT over BERT: BERT reads the question before it meets the image."""

    size: Literal["tiny", "small", "base"] = "tiny"  # of both; small: MiniLM's width and depth
    weights: str | None = None  # ViLT's: a folder or hub id in transformers' layout; null: drawn from the seed
    text: str | None = None  # BERT's, with its tokenizer, likewise; minilm: six layers of width 384, of size small
    heads: Mapping[str, HeadSpec] = field(default_factory=dict)  # by task; none: one, over the data's answers
    frozen_text: bool = False  # BERT without gradient and without adapters, as the published code runs it
    image_size: PositiveInt | None = None  # height and width of the image; null: that of the weights or the size
    dropout: DropoutRate = 0.0  # of ViLT and BERT
    adapters: Adapter | None = None  # trained instead of the rest, together with the heads
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def build(self, task: Task) -> VaultNetwork:
        """Build the network with weights and adapters; raise ConfigError for settings that do not fit the weights."""
        with seeded(task.seed):
            network = self.network(task)
            if self.weights is not None:
                folder = weights_folder(self.weights)
                load_vilt(network, read_tensors(folder), str(folder), optional=("bert.*",))
            if self.text is not None:
                folder = weights_folder(self.text, "model.text")
                load_bert(network, read_tensors(folder), str(folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        return set_trainable(self, install_keyed_dropout(network)).eval()

    def network(self, task: Task) -> VaultNetwork:
        """Build the bare network on the default device, without weights or adapters."""
        from simfl.models.vault_network import VaultNetwork  # imports transformers: seconds, and many runs need none

        vilt, bert = self._sizes
        heads = self.heads or {"answers": HeadSpec()}
        bf16 = self.precision == "bf16"
        return VaultNetwork(vilt, bert, heads, task, frozen_text=self.frozen_text, dropout=self.dropout, bf16=bf16)

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return everything, or the adapters and the heads."""
        return ("*",) if self.adapters is None else with_heads(self.adapters, module)

    def frozen_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return the tensors whose outputs are not used, and BERT if it is frozen."""
        unused = ("bert.pooler.*", "embeddings.text_embeddings.word_embeddings.*")
        return (*unused, "bert.*") if self.frozen_text else unused

    def tokenizer(self) -> Tokenizer:
        """Return BERT's tokenizer; without BERT's weights, a small public one."""
        side = self._sizes[0]["image_size"]
        if self.text is None:
            return Tokenizer(public_tokenizer(), side)
        return load_bert_tokenizer(weights_folder(self.text, "model.text"), side)

    @cached_property
    def _sizes(self) -> tuple[dict[str, int], dict[str, int]]:
        vilt, bert = (dict(sizes) for sizes in SIZES[self.size])
        if self.weights is not None:
            vilt |= read_sizes(weights_folder(self.weights), vilt)
        if self.text is not None:
            bert |= read_sizes(weights_folder(self.text, "model.text"), bert, "model.text")
        elif self.size == "tiny":
            bert["vocab_size"] = public_tokenizer().get_vocab_size()
        if vilt["hidden_size"] != bert["hidden_size"]:
            raise ConfigError(
                f"model.text: BERT's width is {bert['hidden_size']}, ViLT's {vilt['hidden_size']}; they must be equal"
            )
        vilt["modality_type_vocab_size"] = 3 if reads_two_images(self.heads) else 2
        return vilt | ({"image_size": self.image_size} if self.image_size else {}), bert


def load_bert(network: VaultNetwork, stored: Mapping[str, Tensor], source: str) -> None:
    """Fill BERT in place; a checkpoint may lack the pooler, whose output is not used."""
    others = [name for name, _ in network.named_parameters() if not name.startswith("bert.")]
    copy_tensors(network, renamed_tensors(stored, TEXT_RULES), source, optional=(*others, "bert.pooler.*"))
