"""ASTER as a component: the settings of the network in `aster_network`, its sizes, and the published names.

FedOCR (He et al. 2020) trains it federatedly, with ResNet (20,991,594 parameters) and with ShuffleNetV2. The paper does
not say how a trunk of 2048 channels meets the BiLSTM; its 13.34 M fit if the BiLSTM keeps its 512 inputs, so here
each of the 25 vectors is read as four of 512. Without the BiLSTM (`context: false`) there are 13.33 M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from torch import Tensor

from simfl.constraints import Limit
from simfl.errors import ConfigError
from simfl.models import hashed
from simfl.models import pretrained as start
from simfl.models.adapters_base import Adapter
from simfl.models.base import Model, default_trained, seeded
from simfl.models.dropout import install
from simfl.models.hashed import Ratio
from simfl.models.weight_layouts import fill, renamed
from simfl.protocol import Task

if TYPE_CHECKING:
    from simfl.models.aster_network import AsterNetwork

CLASSES, END = 97, 94  # 94 printable characters, the end, padding, unknown
BASE = {
    "resnet": (32, 32, 64, 128, 256, 512), "shufflenet": (24, 244, 488, 976, 2048),
    "blocks": {"resnet": (3, 4, 6, 6, 3), "shufflenet": (4, 8, 4)}, "slice": 512, "lstm": 256, "state": 512,
    "stn": (32, 64, 128, 256, 256, 256), "stn_dense": 512, "classes": CLASSES, "end": END,
}  # fmt: skip
TINY = BASE | {
    "resnet": (8, 8, 16, 16, 32, 32), "shufflenet": (8, 16, 16, 32, 64),
    "blocks": {"resnet": (1, 1, 1, 1, 1), "shufflenet": (1, 1, 1)}, "slice": 32, "lstm": 32, "state": 48,
    "stn": (8, 8, 8, 8, 8, 8), "stn_dense": 16,
}  # fmt: skip
SMALL = TINY | {
    "resnet": (16, 32, 32, 64, 64, 128), "shufflenet": (16, 48, 64, 96, 128), "slice": 64, "state": 96,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {"tiny": TINY, "small": SMALL, "base": BASE}
# values of the smallest tensor that is hashed: FedOCR's sizes are 0.06 M + γ·13.28 M, and 50,654 values of one axis are
# 0.05 M; with the 6,632 of the smallest kernels they are 0.06, and 6.70, 3.38 and 1.72 M come out as printed
SMALLEST = {"tiny": 1, "small": 1, "base": 2048}

Margin = Annotated[float, Limit("a number of at least 0 and below 0.5", lambda m: 0 <= m < 0.5)]

RULES = (  # names of aster.pytorch -> ours; "" is not needed
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
    """A recogniser of words: rectifier, ResNet or ShuffleNetV2, BiLSTM, attention decoder."""

    size: Literal["tiny", "small", "base"] = "base"  # tiny: for tests; small: learns short words in minutes
    encoder: Literal["resnet", "shufflenet"] = "resnet"  # ASTER's, or FedOCR's lighter one of double width
    rectify: bool = True  # straighten the word first
    context: bool = True  # the BiLSTM between encoder and decoder
    margin: Margin = 0.05  # of the spline's targets, as in aster.pytorch; TensorFlow's has 0
    norm: Literal["batch", "group"] = "batch"  # over the batch, one client at a time; or over groups of channels
    adapters: Adapter | None = None  # trained in place of the rest; it has no place for prompts
    precision: Literal["float32", "bf16"] = "float32"  # bf16: autocast behind the rectifier; weights stay float32
    hash: Ratio | None = None  # γ: trained in a hashed space of this share of the weights; null: not hashed
    weights: str | None = None  # a folder with a checkpoint of aster.pytorch; null: drawn from the seed

    def __post_init__(self) -> None:
        """Refuses weights that hashing would lose, and to hash what adapters leave frozen."""
        if self.hash is not None and self.adapters is not None:
            raise ConfigError(f"hash: {self.hash} given with adapters, beside which nothing hashed is trained")
        if self.hash is not None and self.weights is not None:
            raise ConfigError(f"hash: {self.hash} given with weights; a hashed model is drawn from the seed")

    def build(self, task: Task) -> AsterNetwork:
        """The network, with weights if there are any."""
        with seeded(task.seed):
            network = self.network()
            if self._folder is not None:
                load(network, start.read(self._folder), str(self._folder))
            if self.adapters is not None:
                self.adapters.attach(network)
        if self.hash is not None:
            hashed.attach(network, self.hash, task.seed, SMALLEST[self.size])
        install(network)
        default_trained(self, network)
        return network.eval()

    def trains(self, module: Any) -> tuple[str, ...]:
        """The adapters, if there are any."""
        return ("*",) if self.adapters is None else self.adapters.trained(module)

    def network(self) -> AsterNetwork:
        """The bare network on the default device."""
        from simfl.models.aster_network import AsterNetwork

        return AsterNetwork(
            SIZES[self.size], encoder=self.encoder, rectify=self.rectify, context=self.context, margin=self.margin,
            norm=self.norm, bf16=self.precision == "bf16",
        )  # fmt: skip

    @cached_property
    def _folder(self) -> Any:
        return None if self.weights is None else start.locate(self.weights)


def load(network: AsterNetwork, stored: Mapping[str, Tensor], where: str) -> None:
    """Fill in place, running statistics included."""
    fill(network, {ours: stored[name] for name, ours in renamed(stored, RULES).items()}, where)
