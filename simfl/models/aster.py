"""ASTER: the settings of the network in `aster_network`, its sizes, and its weights.

FedOCR (He et al. 2020) trains it federatedly, with ResNet (20,991,594 parameters) and with ShuffleNetV2. The paper does
not say how a trunk of 2,048 channels connects to the BiLSTM; its 13.34 million fit if the BiLSTM keeps its 512 inputs,
so here each of the 25 vectors is split into four of 512. Without the BiLSTM (`context: false`) there are 13.33 million.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from torch import Tensor, nn

from simfl.constraints import Constraint
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.aster_network import AsterNetwork, AsterParts, AsterSizes
from simfl.models.base import Model, seeded, set_trainable
from simfl.models.dropout import install_keyed_dropout
from simfl.models.hashed_weights import HashRatio, check_hash_settings, hash_weights
from simfl.models.pretrained import copy_tensors, read_tensors, renamed_tensors, weights_folder
from simfl.protocol import Task

BASE = AsterSizes(
    channels={"resnet": (32, 32, 64, 128, 256, 512), "shufflenet": (24, 244, 488, 976, 2048)},
    blocks={"resnet": (3, 4, 6, 6, 3), "shufflenet": (4, 8, 4)},
    lstm_input=512,
    lstm=256,
    state=512,
    rectifier=(32, 64, 128, 256, 256, 256),
    rectifier_dense=512,
)
TINY = AsterSizes(
    channels={"resnet": (8, 8, 16, 16, 32, 32), "shufflenet": (8, 16, 16, 32, 64)},
    blocks={"resnet": (1, 1, 1, 1, 1), "shufflenet": (1, 1, 1)},
    lstm_input=32,
    lstm=32,
    state=48,
    rectifier=(8, 8, 8, 8, 8, 8),
    rectifier_dense=16,
)
SMALL = replace(
    TINY,
    channels={"resnet": (16, 32, 32, 64, 64, 128), "shufflenet": (16, 48, 64, 96, 128)},
    lstm_input=64,
    state=96,
)
SIZES = {"tiny": TINY, "small": SMALL, "base": BASE}
# Values of the smallest tensor that is hashed. FedOCR's sizes are 0.06 M + γ·13.28 M. The 50,654 values of one axis are
# 0.05 M; with the 6,632 of the smallest kernels they are 0.06 M, which gives the printed 6.70, 3.38 and 1.72 M.
MIN_HASHED_SIZE = {"tiny": 1, "small": 1, "base": 2048}

Margin = Annotated[float, Constraint("a number of at least 0 and below 0.5", lambda m: 0 <= m < 0.5)]

CHECKPOINT_RULES = (  # names of aster.pytorch -> ours
    (r"^module\.", ""),
    (r"^tps\..*", ""),
    (r"^encoder\.rnn\.", "context."),
    (r"^stn_head\.stn_convnet\.", "rectifier.convs."),
    (r"^stn_head\.stn_fc1\.", "rectifier.dense."),
    (r"^stn_head\.stn_fc2\.", "rectifier.points."),
    (r"^decoder\.decoder\.", "decoder."),
    (r"\.attention_unit\.sEmbed\.", ".attention.state."),
    (r"\.attention_unit\.xEmbed\.", ".attention.feature."),
    (r"\.attention_unit\.wEmbed\.", ".attention.score."),
    (r"\.tgt_embedding\.", ".embedding."),
)


@dataclass(frozen=True)
class Aster(Model):
    """A word recognizer: rectifier, ResNet or ShuffleNetV2, BiLSTM, attention decoder."""

    size: Literal["tiny", "small", "base"] = "base"  # tiny: for tests; small: learns short words in minutes
    encoder: Literal["resnet", "shufflenet"] = "resnet"  # ASTER's, or FedOCR's lighter one of double width
    rectify: bool = True  # straighten the word first
    context: bool = True  # the BiLSTM between encoder and decoder
    margin: Margin = 0.05  # of the spline's targets, as in aster.pytorch; 0 in the TensorFlow code
    norm: Literal["batch", "group"] = "batch"  # over the batch, one client at a time; or over groups of channels
    adapters: Adapter | None = None  # trained instead of the rest; it has no place for prompts
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast after the rectifier; weights stay float32
    hash: HashRatio | None = None  # γ: train in a hashed space of this share of the weights; null: not hashed
    weights: str | None = None  # a folder with a checkpoint of aster.pytorch; null: drawn from the seed

    def __post_init__(self) -> None:
        """Reject hashed weights together with adapters, or with pretrained weights, which hashing would lose."""
        check_hash_settings(self.hash, self.adapters)
        if self.hash is not None and self.weights is not None:
            raise ConfigError(f"hash: {self.hash} given with weights; a hashed model is drawn from the seed")

    def build(self, task: Task) -> AsterNetwork:
        """Build the network, with weights and adapters if there are any."""
        with seeded(task.seed):
            network = self.network()
            if self._folder is not None:
                load_aster(network, read_tensors(self._folder), str(self._folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        if self.hash is not None:
            hash_weights(network, self.hash, task.seed, MIN_HASHED_SIZE[self.size])
        return set_trainable(self, install_keyed_dropout(network)).eval()

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return everything, or the adapters if there are any."""
        return ("*",) if self.adapters is None else self.adapters.trainable_params(module)

    def network(self) -> AsterNetwork:
        """Build the bare network on the default device."""
        parts = AsterParts(self.encoder, self.rectify, self.context, self.margin, self.norm)
        return AsterNetwork(SIZES[self.size], parts, bf16=self.precision == "bf16")

    @cached_property
    def _folder(self) -> Path | None:
        return None if self.weights is None else weights_folder(self.weights)


def load_aster(network: AsterNetwork, stored: Mapping[str, Tensor], source: str) -> None:
    """Fill the network in place, running statistics included."""
    copy_tensors(network, renamed_tensors(stored, CHECKPOINT_RULES), source)
