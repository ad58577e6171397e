"""VT5: the settings of the network in `vt5_network`, its sizes, and its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.base import DropoutRate, Model, seeded, set_trainable
from simfl.models.dropout import install_keyed_dropout
from simfl.models.pretrained import weights_folder
from simfl.models.tokenizer import Tokenizer, load_t5_tokenizer, public_tokenizer
from simfl.models.vt5_checkpoint import T5_KEYS, load_vt5, read_vt5_config
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.vt5_network import VT5Network

# Names are T5's; those of `vision` are BEiT's. DiT-base is BEiT with absolute positions; its only dropout is drop path.
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
T5_VOCABULARY = 32128  # rows of T5's embedding; its tokenizer has 32,100 tokens


@dataclass(frozen=True)
class VT5(Model):
    """T5 that reads a question, words with their boxes, and the page image."""

    size: Literal["tiny", "small", "base"] | None = None  # null: the weights' own, or tiny
    weights: str | None = None  # a folder, a Hugging Face hub id, or bundled weights; null: drawn from the seed
    head: Literal["tied", "untied"] | None = None  # output projection; null: as in the weights, or untied
    box_scale: Literal[1, 1000] = 1000  # of boxes in [0, 1]; 1: all but zero, as the published weights were trained
    frozen_dropout: bool = False  # drop paths of the frozen page reader in training, as the published code does
    dropout: DropoutRate = 0.1  # of T5 and of the spatial embedding
    adapters: Adapter | None = None  # trained instead of the rest
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast; weights stay float32
    d_model: PositiveInt | None = None  # width; null: the size's
    d_ff: PositiveInt | None = None  # width of the feed-forward; null: the size's
    num_layers: PositiveInt | None = None  # of the encoder and of the decoder; null: the size's
    num_heads: PositiveInt | None = None  # of every attention; null: the size's
    vocab_size: PositiveInt | None = None  # rows of the embedding; null: the weights' or the tokenizer's

    def build(self, task: Task) -> VT5Network:
        """Build the network with weights, adapters and tokenizer; raise ConfigError if the weights do not fit."""
        with seeded(task.seed):
            network = self.network()
            if self._folder is not None:
                load_vt5(network, self._folder)
            if self.adapters is not None:
                self.adapters.attach(network)
        network.tokenizer = self.tokenizer()
        return set_trainable(self, install_keyed_dropout(network)).eval()

    def network(self) -> VT5Network:
        """Build the bare network on the default device, without weights or adapters."""
        from transformers import BeitConfig, T5Config  # seconds to import, and many runs need none of it

        from simfl.models.vt5_network import VT5Network

        sizes = self._sizes
        vision = BeitConfig(**sizes["vision"], attn_implementation="simfl")
        t5 = T5Config(
            **{key: sizes[key] for key in T5_KEYS},
            dropout_rate=self.dropout, decoder_start_token_id=0, attn_implementation="simfl",
        )  # fmt: skip
        return VT5Network(
            t5, vision, tied=sizes["head"] == "tied", frozen_dropout=self.frozen_dropout, bf16=self.precision == "bf16"
        )

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return everything, or the adapters if there are any."""
        return ("*",) if self.adapters is None else self.adapters.trainable_params(module)

    def frozen_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return the page reader."""
        return ("vision.*",)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the weights; without weights, a small public one."""
        backend = public_tokenizer() if self._folder is None else load_t5_tokenizer(self._folder)
        rows = self._sizes["vocab_size"]
        if backend.get_vocab_size() > rows:
            raise ConfigError(f"model.vocab_size: {rows} rows are too few for {backend.get_vocab_size()} tokens")
        return Tokenizer(backend, self._sizes["vision"]["image_size"], self.box_scale)

    @cached_property
    def _folder(self) -> Path | None:
        return None if self.weights is None else weights_folder(self.weights)

    @cached_property
    def _sizes(self) -> dict[str, Any]:
        stored = read_vt5_config(self._folder) if self._folder is not None else {}
        sizes = SIZES[self.size or "tiny"] | {"head": "untied"} | stored
        if self.size and sizes["d_model"] != SIZES[self.size]["d_model"]:
            raise ConfigError(
                f"model.size: {self.size!r} is not the size of {self.weights}, whose d_model is {sizes['d_model']}"
            )
        own = {key: getattr(self, key) for key in ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "head")}
        sizes |= {key: value for key, value in own.items() if value is not None}
        if "vocab_size" not in sizes:
            large = self.size in ("small", "base")
            sizes["vocab_size"] = T5_VOCABULARY if large else public_tokenizer().get_vocab_size()
        return sizes
