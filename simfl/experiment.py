"""Everything an experiment file can say, with the papers' letters beside the fields.

    K  partition.clients      C  participation      T  rounds      E  epochs      B  batch_size      eta  learning_rate

`simfl.config` turns YAML into these frozen dataclasses; nothing else reads YAML.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simfl.algorithms.base import Algorithm
from simfl.algorithms.fedavg import FedAvg
from simfl.codecs.base import Codec
from simfl.codecs.identity import Float32
from simfl.data.base import Data
from simfl.data.partition import Partitioner
from simfl.models.base import Model
from simfl.objectives.base import Objective
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.server import ServerOptimizer, Sgd


@dataclass(frozen=True)
class Local:
    """What a sampled client does with what it received."""

    optimizer: LocalOptimizer  # a name of torch.optim in lower case, or a name with its settings
    learning_rate: float  # eta
    epochs: int = 1  # E: passes over the client's examples
    steps: int | None = None  # local steps instead of epochs
    batch_size: int = 16  # B
    shuffle: bool = True  # a new order for each epoch; false: file order
    clip_norm: float | None = None  # clip the gradient to this norm
    clip_value: float | None = None  # clip each entry of the gradient
    keep_optimizer: bool = False  # the optimizer's state is client memory; false: fresh at each visit


@dataclass(frozen=True)
class Codecs:
    """The wire format of each direction."""

    download: Codec = field(default_factory=Float32)
    upload: Codec = field(default_factory=Float32)


@dataclass(frozen=True)
class Phase:
    """T rounds of one objective with one algorithm. Client memory is dropped at its end unless `keep` names it."""

    objective: Objective
    local: Local
    rounds: int  # T
    name: str = ""
    algorithm: Algorithm = field(default_factory=FedAvg)
    server: ServerOptimizer = field(default_factory=Sgd)
    participation: float | None = None  # C: the fraction of clients sampled in a round
    clients_per_round: int | None = None  # or their number
    poisson: float | None = None  # or the probability of each client on its own; a round may have nobody
    rounding: str = "floor"  # how C·K becomes a number: floor | round | ceil; at least 1
    weighting: str = "examples"  # examples | uniform
    train: tuple[str, ...] = ()  # globs trained besides the adapters; without adapters the default is everything
    frozen: tuple[str, ...] = ()  # globs that stay as they are
    private: tuple[str, ...] = ()  # globs that are trained and never travel
    communicate: bool = True  # false: everything is private
    buffers: str = "average"  # running statistics: average | local | refuse
    codec: Codecs = field(default_factory=Codecs)
    keep: tuple[str, ...] = ()  # client memory carried in from the phase before: algorithm | optimizer | codec | private


@dataclass(frozen=True)
class Cohort:
    """How many clients are trained side by side, and in which way."""

    width: int | str = "auto"  # a power of two, part of the run's identity
    way: str = "auto"  # auto | loop | batch


@dataclass(frozen=True)
class LedgerRule:
    """How tied weights are charged."""

    aliases: str = "once"  # once | of_trained | always


@dataclass(frozen=True)
class Privacy:
    """Whose presence is hidden; the unit's whole update is clipped and summed."""

    unit: str = "group"  # group | client
    clip: float | None = None  # the norm to which a unit's update is clipped
    groups_per_client: int | None = None  # units sampled at a visit; None: all


@dataclass(frozen=True)
class Evaluate:
    """When, on what, and which models are scored."""

    every: int = 1  # rounds; 0: only before the first and after the last
    splits: tuple[str, ...] = ("valid",)
    models: tuple[str, ...] = ("generic",)  # what the algorithm offers: generic, personal
    batch_size: int = 64
    limit: int | None = None  # examples of each split, drawn once


@dataclass(frozen=True)
class Checkpoint:
    """A commit is due when both have passed; one more is made at the end and at a signal."""

    rounds: int = 1
    seconds: float = 30.0


@dataclass(frozen=True)
class Experiment:
    """One run."""

    name: str
    data: Data
    partition: Partitioner
    model: Model
    phases: tuple[Phase, ...]
    seed: int = 42
    cohort: Cohort = field(default_factory=Cohort)
    exactness: str = "fast"  # fast | strict
    ledger: LedgerRule = field(default_factory=LedgerRule)
    privacy: Privacy | None = None
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    on_error: str = "stop"  # a client's exception: stop | skip
