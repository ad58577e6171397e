"""VAuLT (Chochlakis et al. 2022): ViLT whose words are BERT's last states, as a component.

BERT's pooler and ViLT's own words belong to the published 227.77 million, but nothing reads them: they stay frozen.
"""

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
from simfl.models.vilt import SIZES as VILT_SIZES
from simfl.models.vilt import load, two_images
from simfl.models.weight_layouts import BERT_NAMES, dimensions, fill, renamed
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.vault_network import VaultNetwork

BERT = {"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}
DIMS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of ViLT and of BERT
    "tiny": (VILT_SIZES["tiny"], BERT | {key: VILT_SIZES["tiny"][key] for key in DIMS}),
    "small": (
        VILT_SIZES["base"] | dict(zip(DIMS, (384, 6, 12, 1536), strict=True)),
        BERT | dict(zip(DIMS, (384, 6, 12, 1536), strict=True)),  # MiniLM's
    ),
    "base": (VILT_SIZES["base"], BERT | {key: VILT_SIZES["base"][key] for key in DIMS}),
}
TEXT_RULES = (*BERT_NAMES, (r"^cls\..*", ""), (r"^(?=.)", "bert."))  # names of BERT checkpoints -> ours


@dataclass(frozen=True)
class Vault(Model):
    """ViLT over BERT: a question is read by BERT before it meets the image."""

    size: Literal["tiny", "small", "base"] = "tiny"  # of both; small: MiniLM's width and depth
    weights: str | None = None  # ViLT's: a folder or hub id in transformers' layout; null: drawn from the seed
    text: str | None = None  # BERT's, with its tokenizer, likewise; minilm: six layers of width 384, of size small
    heads: Mapping[str, HeadSpec] = field(default_factory=dict)  # by task; none: one, over the data's answers
    frozen_text: bool = False  # BERT without gradient and without adapters, as the published code runs it
    image_size: Count | None = None  # height and width of the image, if not the size's
    dropout: Dropout = 0.0  # of ViLT and BERT
    adapters: Adapter | None = None  # trained in place of the rest, beside the heads
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32

    def build(self, task: Task) -> VaultNetwork:
        """The network with weights, adapters and tokenizer; ConfigError for settings that do not fit the weights."""
        with seeded(task.seed):
            network = self.network(task)
            if self.weights is not None:
                folder = start.locate(self.weights)
                load(network, start.read(folder), str(folder), optional=("bert.*",))
            if self.text is not None:
                folder = start.locate(self.text, "model.text")
                load_text(network, start.read(folder), str(folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        install(network)
        default_trained(self, network)
        return network.eval()

    def network(self, task: Task) -> VaultNetwork:
        """The bare network on the default device, without weights or adapters."""
        from simfl.models.vault_network import VaultNetwork  # imports transformers: seconds, and many runs need none

        vilt, bert = self._dims
        heads = self.heads or {"answers": HeadSpec()}
        bf16 = self.precision == "bf16"
        return VaultNetwork(vilt, bert, heads, task, frozen_text=self.frozen_text, dropout=self.dropout, bf16=bf16)

    def trains(self, module: Any) -> tuple[str, ...]:
        """Everything; with adapters these and the heads."""
        return ("*",) if self.adapters is None else beside_heads(self.adapters, module)

    def frozen(self, module: Any) -> tuple[str, ...]:
        """What nothing reads, and BERT if wanted."""
        unread = ("bert.pooler.*", "embeddings.text_embeddings.word_embeddings.*")
        return (*unread, "bert.*") if self.frozen_text else unread

    def tokenizer(self) -> Tokenizer:
        """BERT's pieces; without its weights, a small public vocabulary."""
        side = self._dims[0]["image_size"]
        return Tokenizer(small(), side) if self.text is None else wordpiece(start.locate(self.text, "model.text"), side)

    @cached_property
    def _dims(self) -> tuple[dict[str, Any], dict[str, Any]]:
        vilt, bert = (dict(dims) for dims in SIZES[self.size])
        if self.weights is not None:
            vilt |= dimensions(start.locate(self.weights), vilt)
        if self.text is not None:
            bert |= dimensions(start.locate(self.text, "model.text"), bert, "model.text")
        elif self.size == "tiny":
            bert["vocab_size"] = small().get_vocab_size()
        if vilt["hidden_size"] != bert["hidden_size"]:
            raise ConfigError(
                f"model.text: BERT's width is {bert['hidden_size']}, ViLT's {vilt['hidden_size']}; they must be equal"
            )
        vilt["modality_type_vocab_size"] = 3 if two_images(self.heads) else 2
        return vilt | ({"image_size": self.image_size} if self.image_size else {}), bert


def load_text(network: VaultNetwork, stored: Mapping[str, Tensor], where: str) -> None:
    """Fill BERT in place; a checkpoint without a pooler leaves ours as drawn, for nothing reads it."""
    found = {ours: stored[name] for name, ours in renamed(stored, TEXT_RULES).items()}
    rest = [name for name, _ in network.named_parameters() if not name.startswith("bert.")]
    fill(network, found, where, optional=(*rest, "bert.pooler.*"))
