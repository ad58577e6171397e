"""Everything an experiment file can say, with the papers' letters beside the fields.

    K  partition.clients      C  participation      T  rounds      E  epochs      B  batch_size      eta  learning_rate

`simfl.config` turns YAML into these frozen dataclasses; nothing else reads YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from simfl.algorithms.base import Algorithm
from simfl.algorithms.fedavg import FedAvg
from simfl.codecs.base import Codec
from simfl.codecs.identity import Float32
from simfl.constraints import Amount, Count, FileName, Fraction, Positive, PowerOfTwo, Seed, Whole
from simfl.data.base import Data
from simfl.data.partition.partitioners import Partitioner
from simfl.models.base import Model
from simfl.objectives.base import Objective
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.schedules import Constant, Schedule
from simfl.optimizers.server import ServerOptimizer, Sgd


@dataclass(frozen=True)
class Local:
    """What a sampled client does with what it received."""

    optimizer: LocalOptimizer  # a name of torch.optim in lower case, or a name with its settings
    learning_rate: Amount  # eta
    schedule: Schedule = field(default_factory=Constant)  # of the learning rate
    epochs: Count = 1  # E: passes over the client's examples
    steps: Count | None = None  # local steps instead of epochs
    batch_size: Count = 16  # B
    shuffle: bool = True  # a new order for each epoch; false: file order
    clip_norm: Positive | None = None  # clip the gradient to this norm
    clip_value: Positive | None = None  # clip each entry of the gradient
    keep_optimizer: bool = False  # the optimizer's state is client memory; false: fresh at each visit


@dataclass(frozen=True)
class PartCodecs:
    """The wire format of one part of the messages."""

    download: Codec | None = None  # server to client; null: as the other parts
    upload: Codec | None = None  # client to server; null: as the other parts


@dataclass(frozen=True)
class Codecs:
    """The wire format of each direction."""

    download: Codec = field(default_factory=Float32)  # server to client
    upload: Codec = field(default_factory=Float32)  # client to server
    parts: Mapping[str, PartCodecs] = field(default_factory=dict)  # by part, such as scaffold's `control`

    def of_part(self, direction: str, part: str) -> Codec:
        """The wire format of a part, `download` or `upload`."""
        own = getattr(self.parts.get(part), direction, None)
        return getattr(self, direction) if own is None else own


@dataclass(frozen=True)
class Phase:
    """T rounds of one objective with one algorithm. Client memory is dropped at its end unless `keep` names it."""

    objective: Objective  # what a client learns from its examples
    local: Local  # how it learns
    rounds: Count  # T
    name: str = ""  # shown beside the phase's number
    algorithm: Algorithm = field(default_factory=FedAvg)  # both halves: client and server
    server: ServerOptimizer = field(default_factory=Sgd)  # what steps with the mean of the uploads
    participation: Fraction | None = None  # C: the fraction of clients sampled in a round
    clients_per_round: Count | None = None  # or their number
    poisson: Fraction | None = None  # or the probability of each client on its own; a round may have nobody
    rounding: Literal["floor", "round", "ceil"] = "floor"  # how C·K becomes a number; at least 1
    weighting: Literal["examples", "uniform"] = "examples"  # the weight of a client in a mean
    train: tuple[str, ...] = ()  # globs trained besides the adapters; without adapters the default is everything
    frozen: tuple[str, ...] = ()  # globs that stay as they are
    personal_params: tuple[str, ...] = ()  # globs that are trained and never travel
    communicate: bool = True  # false: everything is private, and clients train alone
    centralized: bool = False  # true: centralized training on a round's examples, with the steps its clients would take
    buffers: Literal["average", "local", "refuse"] = "average"  # running statistics
    codec: Codecs = field(default_factory=Codecs)  # how tensors become bytes
    carry_over: tuple[
        Literal["algorithm", "optimizer", "codec", "personal_params"], ...
    ] = ()  # client memory of the phase before


@dataclass(frozen=True)
class Execution:
    """How many clients are trained side by side, and in which way."""

    clients_per_batch: PowerOfTwo | Literal["auto"] = "auto"  # part of the run's identity
    mode: Literal["auto", "sequential", "vectorized"] = "auto"  # loop: one after the other; batch: as one program
    program: Literal["auto", "eager", "graph", "compiled"] = "auto"  # of a step of `vectorized` on a GPU
    data_parallel: Count = (
        1  # of each local batch: where a round has fewer clients than workers, these share its clients
    )
    autotune: Literal["auto", "always", "never"] = "auto"  # try what is left open; auto: on a GPU, unless strict
    threads: Count = (
        1  # CPU threads of a worker; sums on the CPU depend on them, so they too are part of the run's identity
    )


@dataclass(frozen=True)
class LedgerRule:
    """How tied weights are charged."""

    tied_weights: Literal["once", "of_trained", "always"] = (
        "once"  # tied names: one payment, only for trained ones, each
    )


@dataclass(frozen=True)
class AdaptiveClip:
    """The clip follows a quantile of the units' norms (Andrew et al. 2021); the noise pays for it."""

    quantile: Fraction = 0.5  # gamma: the share of units that the clip is to leave alone
    learning_rate: Positive = 0.2  # eta: the clip times exp(−eta·(share left alone − gamma)) after each round
    count_noise: Positive = 5.0  # noise multiplier of the count over that of all: the larger, the cheaper; above 0.5


@dataclass(frozen=True)
class Privacy:
    """Whose presence is hidden, and how well: the unit's whole update is clipped, summed with others, and noised."""

    unit: Literal["record", "group", "client"] = "group"  # an example, a named part of a client (provider), or a client
    clip: Positive | None = None  # S: the norm to which a unit's update is clipped; of a record, its gradient
    epsilon: Positive | None = None  # what all rounds may spend; without a noise_multiplier, the noise follows from it
    delta: Fraction = 1e-5  # the chance that epsilon does not cover
    noise_multiplier: Amount | None = None  # sigma: standard deviation of the noise over the clip
    noise: Literal["client", "central"] = "client"  # each client its own, or the server once, which is then trusted
    groups_per_client: Count | None = None  # M: groups sampled at a visit, and what their sum is divided by; null: all
    group_rate: Fraction | None = None  # Poisson: each group on its own with this probability, in place of M of them
    min_groups: Count | None = None  # the fewest groups a client has, as a public fact; null: as the partition has it
    adjacency: Literal["add_remove", "zero_out"] = "add_remove"  # data sets with and without a unit, or with it emptied
    denominator: Literal["fixed", "realised"] = "fixed"  # divide by expected numbers of units and clients, or real ones
    view: Literal["averages", "messages", "formula"] = "averages"  # epsilon is of who sees these, or a paper's formula
    accountant: Literal["rdp", "rdp_fine", "prv", "pld"] = "rdp"  # Rényi orders of PFL-DocVQA, more of them, numerical
    adaptive: AdaptiveClip | None = None  # null: the clip stays as it is
    tied_weights: Literal["once", "always"] = (
        "once"  # in the norm, tied weights count once, or once for each of their names
    )
    secure: bool = False  # sampling and noise from the system's source: no run can be repeated


@dataclass(frozen=True)
class Evaluate:
    """When, on what, and which models are scored."""

    every: Whole = 1  # rounds; 0: only before the first and after the last
    splits: tuple[str, ...] = ("valid",)  # of the data set
    models: tuple[str, ...] = ("global",)  # generic, local, and what the algorithm offers: personal
    batch_size: Count = 64  # examples side by side
    limit: Count | None = None  # examples of each split, drawn once
    overlap: bool = False  # the next round is trained meanwhile, on Ray; a round counts when it is scored
    samples: Whole = 8  # predictions of the generic model kept at each evaluation, of rows drawn once for each split


@dataclass(frozen=True)
class Checkpoint:
    """A commit is due when both have passed; one more is made at the end and at a signal."""

    rounds: Count = 1  # rounds since the last commit
    seconds: Amount = 30.0  # seconds since the last commit


@dataclass(frozen=True)
class Wandb:
    """One run of Weights & Biases for the whole experiment, from the driver alone."""

    project: str = "simfl"  # shown on the site
    entity: str | None = None  # user or team; null: the account's default
    group: str | None = None  # shown together, such as the seeds of one setting
    tags: tuple[str, ...] = ()  # to search by
    mode: Literal["online", "offline"] | None = None  # null: what WANDB_MODE says, else online where a key is known
    artifacts: bool = True  # keep the partition manifest and the final checkpoint
    varied: Mapping[str, object] = field(default_factory=dict)  # what its sweep varies, which fills this in


@dataclass(frozen=True)
class Tracking:
    """Where else the numbers go. Nothing is imported unless it is asked for."""

    wandb: Wandb | None = None  # null: no Weights & Biases
    tensorboard: bool = False  # event files in the run's folder


@dataclass(frozen=True)
class Experiment:
    """One run."""

    name: FileName  # of the run and its folder
    data: Data  # a data set
    partition: Partitioner  # which client holds which examples
    model: Model  # a backbone with its adapters
    phases: tuple[Phase, ...]  # one after the other
    seed: Seed = 42  # of every random choice
    mentor: Model | None = None  # a second network, each client's own, for algorithms with two; null: another `model`
    execution: Execution = field(default_factory=Execution)  # clients side by side
    deterministic: bool = False  # strict forbids what makes two machines of a kind differ
    ledger: LedgerRule = field(default_factory=LedgerRule)  # how bytes are charged
    privacy: Privacy | None = None  # null: nothing is clipped
    evaluate: Evaluate = field(default_factory=Evaluate)  # what is scored
    checkpoint: Checkpoint = field(default_factory=Checkpoint)  # what a crash can lose
    on_error: Literal["stop", "skip", "retry"] = "stop"  # what a client's exception does; retry: thrice more, then stop
    watchdog_seconds: Positive | None = (
        3600.0  # no result for so long ends the run with the workers' stacks; null: never
    )
    tracking: Tracking = field(default_factory=Tracking)  # where else the numbers go
