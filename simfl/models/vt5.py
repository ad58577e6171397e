"""VT5 as a component: the settings of the network in `vt5_network`, its sizes, and where its weights come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from simfl.constraints import Count
from simfl.errors import ConfigError
from simfl.models import pretrained as start
from simfl.models.adapters_base import Adapter
from simfl.models.base import Dropout, Model, default_trained, seeded
from simfl.models.dropout import install
from simfl.models.tokenizer import Tokenizer, read, small
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.vt5_network import VT5Network

# T5's own names; `vision` in BEiT's. DiT-base is BEiT with absolute positions, whose only dropout is of whole paths.
DIT = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "image_size": 224, "patch_size": 16, "drop_path_rate": 0.1, "use_absolute_position_embeddings": True,
}  # fmt: skip
TINY_VISION = DIT | {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "image_size": 64,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 256, "d_ff": 512, "num_layers": 4, "num_heads": 4, "d_kv": 64, "vision": TINY_VISION},
    "small": {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "d_kv": 64, "vision": DIT},
    "base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "d_kv": 64, "vision": DIT},
}
T5_VOCABULARY = 32128  # rows of T5's embedding; its tokenizer has 32,100 pieces


@dataclass(frozen=True)
class VT5(Model):
    """T5 that reads question, words with their places, and the page image."""

    size: Literal["tiny", "small", "base"] | None = None  # null: the weights' own, or tiny
    weights: str | None = None  # a folder, a Hugging Face hub id, or a bundled start; null: drawn from the seed
    head: Literal["tied", "untied"] | None = None  # output projection; null: as the weights are, or untied
    box_scale: Literal[1, 1000] = 1000  # of boxes in [0, 1]; 1: all but zero, as the published weights were trained
    frozen_dropout: bool = False  # drop paths of the frozen page reader in training, as the published code does
    dropout: Dropout = 0.1  # of T5 and of the spatial embedding
    adapters: Adapter | None = None  # trained in place of the rest
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32
    d_model: Count | None = None  # width, if not the size's
    d_ff: Count | None = None  # width of the feed-forward, if not the size's
    num_layers: Count | None = None  # of the encoder and of the decoder, if not the size's
    num_heads: Count | None = None  # of every attention, if not the size's
    vocab_size: Count | None = None  # rows of the embedding; null: the weights' or the tokenizer's

    def build(self, task: Task) -> VT5Network:
        """The network with weights, adapters and tokenizer; ConfigError for settings that do not fit the weights."""
        with seeded(task.seed):
            network = self.network()
            if self._folder is not None:
                start.load(network, self._folder)
            if self.adapters is not None:
                self.adapters.attach(network)
        network.text = self.tokenizer()
        install(network)
        default_trained(self, network)
        return network.eval()

    def network(self) -> VT5Network:
        """The bare network on the default device, without weights or adapters."""
        from transformers import BeitConfig, T5Config  # seconds to import, and many runs need none of it

        from simfl.models.vt5_network import VT5Network

        dims = self._dims
        vision = BeitConfig(**dims["vision"], attn_implementation="simfl")
        t5 = T5Config(
            **{key: dims[key] for key in ("d_model", "d_ff", "num_layers", "num_heads", "d_kv", "vocab_size")},
            dropout_rate=self.dropout, decoder_start_token_id=0, attn_implementation="simfl",
        )  # fmt: skip
        return VT5Network(
            t5, vision, tied=dims["head"] == "tied", frozen_dropout=self.frozen_dropout, bf16=self.precision == "bf16"
        )

    def trains(self, module: Any) -> tuple[str, ...]:
        """The adapters, if there are any."""
        return ("*",) if self.adapters is None else self.adapters.trained(module)

    def frozen(self, module: Any) -> tuple[str, ...]:
        """The page reader."""
        return ("vision.*",)

    def tokenizer(self) -> Tokenizer:
        """The weights' own; without weights, a small public one."""
        text = small() if self._folder is None else read(self._folder)
        if text.get_vocab_size() > self._dims["vocab_size"]:
            raise ConfigError(
                f"model.vocab_size: {self._dims['vocab_size']} rows are too few for {text.get_vocab_size()} pieces"
            )
        return Tokenizer(text, self._dims["vision"]["image_size"], self.box_scale)

    @cached_property
    def _folder(self) -> Any:
        return None if self.weights is None else start.locate(self.weights)

    @cached_property
    def _dims(self) -> dict[str, Any]:
        found = start.config(self._folder) if self._folder is not None else {}
        dims = SIZES[self.size or "tiny"] | {"head": "untied"} | found
        if self.size and dims["d_model"] != SIZES[self.size]["d_model"]:
            raise ConfigError(
                f"model.size: {self.size!r} is not the size of {self.weights}, whose d_model is {dims['d_model']}"
            )
        own = {key: getattr(self, key) for key in ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "head")}
        dims |= {key: value for key, value in own.items() if value is not None}
        if "vocab_size" not in dims:
            dims["vocab_size"] = T5_VOCABULARY if self.size in ("small", "base") else small().get_vocab_size()
        return dims
