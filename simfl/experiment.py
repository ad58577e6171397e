"""All settings of an experiment file, with the papers' letters in the comments.

    K  partition.clients      C  participation      T  rounds      E  epochs      B  batch_size      eta  learning_rate

`simfl.config` reads YAML into these frozen dataclasses. `simfl list sections` shows the comment behind each field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from simfl.algorithms.base import Algorithm
from simfl.algorithms.fedavg import FedAvg
from simfl.asynchronous.staleness import Polynomial, Staleness
from simfl.codecs.base import Codec
from simfl.codecs.casts import Float32
from simfl.constraints import (
    FileName,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    Port,
    PositiveFloat,
    PositiveInt,
    PowerOfTwo,
    Seed,
)
from simfl.data.base import Data
from simfl.data.partition.partitioners import Partitioner
from simfl.data.transform import Transform
from simfl.factorizations.base import Factorization
from simfl.models.base import Model
from simfl.objectives.base import Objective
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.schedules import Constant, Schedule
from simfl.optimizers.server import ServerOptimizer, Sgd
from simfl.virtual_time.profiles import Profile
from simfl.virtual_time.settings import RoundTime


@dataclass(frozen=True)
class Local:
    """Local training of a sampled client."""

    optimizer: LocalOptimizer  # name of a torch.optim optimizer in lower case, optionally with settings
    learning_rate: NonNegativeFloat  # eta
    schedule: Schedule = field(default_factory=Constant)  # learning rate schedule
    epochs: PositiveInt = 1  # E: passes over the client's examples
    steps: PositiveInt | None = None  # number of local steps; replaces epochs
    batch_size: PositiveInt = 16  # B: examples per local step
    drop_last: bool = False  # true: leave out the last batch of an epoch if it is smaller than batch_size
    shuffle: bool = True  # true: reshuffle before each epoch; false: keep the order of the data set
    clip_norm: PositiveFloat | None = None  # largest gradient norm; null: no clipping
    clip_value: PositiveFloat | None = None  # largest absolute value of a gradient entry; null: no clipping
    keep_optimizer: bool = False  # true: the optimizer state is client state; false: reset it in each client update


@dataclass(frozen=True)
class PartCodecs:
    """Codecs of one part of the messages."""

    download: Codec | None = None  # server to client; null: the codec of the other parts
    upload: Codec | None = None  # client to server; null: the codec of the other parts


@dataclass(frozen=True)
class Codecs:
    """Codecs of both directions."""

    download: Codec = field(default_factory=Float32)  # server to client
    upload: Codec = field(default_factory=Float32)  # client to server
    parts: Mapping[str, PartCodecs] = field(
        default_factory=dict
    )  # codecs of single parts, such as scaffold's `control`
    shared_start: bool = True  # clients have the initial weights of a run (seed, checkpoint) before the first download

    def of_part(self, direction: str, part: str) -> Codec:
        """Return the codec of a part in one direction, `download` or `upload`."""
        own = getattr(self.parts.get(part), direction, None)
        return getattr(self, direction) if own is None else own


@dataclass(frozen=True)
class Buffers:
    """Owners of the tensors that training steps change besides trained parameters, such as running statistics.

    Globs of names; `frozen` before `personal` before `averaged`. With `communicate: false` all are personal.
    """

    averaged: tuple[str, ...] = ("*",)  # sent and averaged; integers advance by the clients' rounded mean increment
    personal: tuple[str, ...] = ()  # kept by each client and never sent
    frozen: tuple[str, ...] = ()  # reset to their initial values before each pass; attributes of layers too


@dataclass(frozen=True)
class Asynchronous:
    """Asynchronous training in virtual time: a round is a server step on the updates that arrived since the last one.

    Clients take `concurrency` slots; a slot whose update has arrived is filled with another client at once.
    """

    concurrency: PositiveInt  # clients at work at the same time
    buffer: PositiveInt = 10  # K: arrived updates that make the server step; 1: after every update, as FedAsync
    mix: Literal["deltas", "models"] = "deltas"  # step with updates (FedBuff), or towards clients' models (FedAsync)
    staleness: Staleness = field(default_factory=Polynomial)  # factor of an update, by how old its version is
    max_staleness: NonNegativeInt | None = None  # updates from older versions are dropped; null: none is
    deadline: PositiveFloat | None = None  # seconds after a step until the next, with what has arrived; null: none

    @property
    def reads_versions(self) -> bool:
        """True if the server compares the version that a client received with the current model."""
        return self.mix == "models" or self.staleness.needs_norms


@dataclass(frozen=True)
class Phase:
    """T rounds of one objective with one algorithm; client state ends with the phase unless `carry_over` names it."""

    objective: Objective  # loss and metrics of the task
    local: Local  # local training
    rounds: PositiveInt  # T: number of rounds
    name: str = ""  # label shown next to the number of the phase
    algorithm: Algorithm = field(default_factory=FedAvg)  # client and server side of the algorithm
    server: ServerOptimizer = field(default_factory=Sgd)  # applies the aggregated update to the global model
    participation: Fraction | None = None  # C: fraction of the clients sampled in each round
    clients_per_round: PositiveInt | None = None  # number of clients sampled in each round; replaces participation
    poisson: Fraction | None = None  # probability with which each client is sampled independently; rounds may be empty
    rounding: Literal["floor", "round", "ceil"] = "floor"  # rounding of C·K; at least one client is sampled
    weighting: Literal["examples", "uniform"] = "examples"  # weight of a client in the aggregate
    train: tuple[str, ...] = ()  # globs of parameters trained in addition to the adapters; no adapters, no globs: all
    frozen: tuple[str, ...] = ()  # globs of parameters that are not trained
    personal_params: tuple[str, ...] = ()  # globs of parameters that are trained and never uploaded
    communicate: bool = True  # false: every parameter is personal and each client trains alone
    centralized: bool = False  # true: train on the pooled examples of a round, as many steps as its clients would take
    buffers: Buffers = field(default_factory=Buffers)  # owners of what training changes besides parameters
    codec: Codecs = field(default_factory=Codecs)  # encoding of downloads and uploads
    transform: Transform | None = None  # random transform of training examples, keyed by client, round, epoch, example
    time: RoundTime | None = None  # rules of rounds in virtual time; null: a round waits for all its clients
    asynchronous: Asynchronous | None = None  # rounds without waiting, from `clients.profile`; null: synchronous rounds
    carry_over: tuple[
        Literal["algorithm", "optimizer", "codec", "personal_params"], ...
    ] = ()  # client state kept from the previous phase


@dataclass(frozen=True)
class Execution:
    """Execution of client updates on the workers."""

    clients_per_batch: PowerOfTwo | Literal["auto"] = "auto"  # clients trained together; part of the run's identity
    mode: Literal["auto", "sequential", "vectorized"] = "auto"  # one client after another, or several as one program
    program: Literal["auto", "eager", "graph", "compiled"] = "auto"  # form of a vectorized step on a GPU
    data_parallel: PositiveInt = 1  # micro-batches per local batch; workers that have no client compute some of them
    model_parallel: PositiveInt = 1  # GPUs of a worker, over which the layers of the model are divided
    autotune: Literal["auto", "always", "never"] = "auto"  # time what is left open; auto: on GPUs if not deterministic
    threads: PositiveInt = 1  # CPU threads per worker; part of the run's identity, as they change sums on the CPU


@dataclass(frozen=True)
class LedgerRule:
    """Rule by which the ledger charges tied weights."""

    tied_weights: Literal["once", "of_trained", "always"] = "once"  # charge its other names: never, if trained, always


@dataclass(frozen=True)
class AdaptiveClip:
    """Clipping norm that follows a quantile of the update norms (Andrew et al. 2021); the accountant charges for it."""

    quantile: Fraction = 0.5  # gamma: target fraction of units that are not clipped
    learning_rate: PositiveFloat = 0.2  # eta: the clip is multiplied by exp(−eta·(fraction not clipped − gamma))
    count_noise: PositiveFloat = 5.0  # noise multiplier of the count, relative to the total; above 0.5


@dataclass(frozen=True)
class PrivatePart:
    """Clipping of an uploaded part other than the weights, and its share of the budget."""

    clip: PositiveFloat  # largest norm of a unit's update of the part
    share: Fraction | None = None  # of the budget: the part is clipped on its own; null: one clip over all parts


@dataclass(frozen=True)
class Deployment:
    """A deployment with larger cohorts than those trained: its noise is added, and epsilon is estimated for it."""

    clients_per_round: PositiveInt  # clients of a round of the deployment, at least as many as a run trains
    clients: PositiveInt  # clients that the deployment samples from


@dataclass(frozen=True)
class Privacy:
    """Differential privacy: clip the update of each unit, aggregate, and add Gaussian noise."""

    unit: Literal["record", "group", "client"] = "group"  # protected unit: an example, a group (provider), or a client
    clip: PositiveFloat | None = None  # S: largest norm of a unit's update; for records, of an example's gradient
    epsilon: PositiveFloat | None = None  # budget of all rounds; determines the noise unless noise_multiplier is set
    delta: Fraction = 1e-5  # probability that the bound epsilon does not hold
    noise_multiplier: NonNegativeFloat | None = None  # sigma: standard deviation of the noise divided by the clip
    noise: Literal["client", "central", "distributed"] = "client"  # added by clients, by the server, or under masks
    mechanism: Literal["gaussian", "discrete_gaussian", "skellam"] = "gaussian"  # noise; with distributed: integers
    factorization: Factorization | None = None  # correlate noise over rounds, with clients in turns; null: independent
    groups_per_client: PositiveInt | None = None  # M: groups sampled per client update, divisor of their sum; null: all
    group_rate: Fraction | None = None  # probability with which each group is sampled independently; replaces M
    min_groups: PositiveInt | None = None  # smallest number of groups of a client, public; null: as in the partition
    min_examples: PositiveInt | None = None  # unit record: smallest number of examples of a client, public
    min_clients: PositiveInt | None = None  # unit client: smallest number of clients, public
    adjacency: Literal["add_remove", "zero_out"] = "add_remove"  # neighbours differ by adding or by emptying a unit
    denominator: Literal["fixed", "realised"] = "fixed"  # divide by the expected or by the sampled number of units
    view: Literal["averages", "messages", "formula"] = "averages"  # what the adversary sees; formula: as in a paper
    accountant: Literal["rdp", "rdp_fine", "prv", "pld"] = "rdp"  # Rényi orders of PFL-DocVQA, more orders, numerical
    adaptive: AdaptiveClip | None = None  # adaptive clipping; null: constant clip
    parts: Mapping[str, PrivatePart] = field(default_factory=dict)  # clips of uploaded parts other than the weights
    deployment: Deployment | None = None  # noise and epsilon of its larger cohorts, not of this run; null: of this run
    tied_weights: Literal["once", "always"] = "once"  # count tied weights in the norm once, or once per name
    secure: bool = False  # true: sample and noise from the operating system's random source; runs are not repeatable
    noise_seed: Seed | None = None  # for tests: noise from this seed, which claims nothing; null: from a secret key

    @property
    def adds_noise(self) -> bool:
        """True if noise is added; otherwise updates are only clipped."""
        return self.noise_multiplier != 0.0 and (self.noise_multiplier is not None or self.epsilon is not None)

    @property
    def has_secret_sampling(self) -> bool:
        """True if a secret key or the operating system samples clients, groups and records."""
        return self.adds_noise and (self.secure or self.noise_seed is None)


@dataclass(frozen=True)
class SecureAggregation:
    """Secure aggregation, simulated: the server learns the sum of masked fixed-point uploads, and no single one."""

    clip: PositiveFloat | None = None  # largest absolute value of an uploaded number; larger ones are cut and counted
    part_clips: Mapping[str, PositiveFloat] = field(default_factory=dict)  # that of parts other than weights
    bits: PositiveInt = 32  # b, 8 to 60: sums are taken modulo 2^b
    value_bits: PositiveInt = 20  # bits of one client's numbers, with their sign; at least 2 and below b
    rounding: Literal["stochastic", "nearest"] = "stochastic"  # to the fixed-point grid
    threshold: PositiveInt | None = None  # t: shares that recover a secret; null: more than half of its holders
    min_survivors: PositiveInt | None = None  # fewest uploads whose sum is released; null: the threshold
    neighbors: PositiveInt | None = None  # k, even: clients with which each has masks (SecAgg+); null: all
    dropout: NonNegativeFloat = 0.0  # below 1: probability that a client leaves before its upload
    late_dropout: NonNegativeFloat = 0.0  # below 1: probability that a client leaves between upload and unmasking
    too_few: Literal["stop", "skip"] = "stop"  # a round with too few survivors ends the run, or changes nothing
    masks: Literal["auto", "all", "none"] = "auto"  # compute them, or leave out what cancels; auto: if it takes seconds

    @property
    def levels(self) -> int:
        """L: the integer that stands for the largest value."""
        return (1 << (self.value_bits - 1)) - 1

    def num_holders(self, clients: int) -> int:
        """Return how many clients of a round hold shares of each secret."""
        return clients if self.neighbors is None else min(clients, self.neighbors + 1)

    def threshold_for(self, clients: int) -> int:
        """Return t for a round of this many clients: by default more than half of the holders of a secret."""
        return self.threshold or self.num_holders(clients) // 2 + 1

    def clip_of(self, part: str) -> float:
        """Return the largest absolute value in a part of an upload."""
        clip = self.part_clips.get(part, self.clip)
        assert clip is not None, "the rules of the configuration require a clip"
        return clip


@dataclass(frozen=True)
class Clients:
    """Properties of the simulated clients besides their data."""

    profile: Profile | None = None  # devices, networks and availability, for virtual time; null: no virtual time


@dataclass(frozen=True)
class Evaluate:
    """Evaluation schedule, splits and models."""

    every: NonNegativeInt = 1  # rounds between evaluations; 0: only before the first and after the last round
    virtual_seconds: PositiveFloat | None = None  # also after the rounds in which so much virtual time has passed
    splits: tuple[str, ...] = ("valid",)  # splits of the data set
    all_clients: tuple[str, ...] = ()  # those of the splits on which each client's model is scored on all examples
    models: tuple[str, ...] = ("global",)  # global, local, or personal if the algorithm has personal models
    loss: bool = True  # also compute the mean task loss, by one more forward pass
    batch_size: PositiveInt = 64  # examples per forward pass
    limit: PositiveInt | None = None  # examples per split, sampled once; null: all
    two_step: str | None = None  # column whose values' means make up the global model's overall scores; null: examples
    overlap: bool = False  # true: evaluate while Ray trains the next round; a round is complete once evaluated
    samples: NonNegativeInt = 8  # predictions of the global model saved per evaluation, for rows sampled once per split


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint interval; both limits must have passed. A checkpoint is also written at the end and on a signal."""

    rounds: PositiveInt = 1  # rounds since the last checkpoint
    seconds: NonNegativeFloat = 30.0  # seconds since the last checkpoint


@dataclass(frozen=True)
class Wandb:
    """Weights & Biases run, logged by the driver."""

    project: str = "simfl"  # project name
    entity: str | None = None  # user or team; null: the default of the account
    group: str | None = None  # group name, such as one for all seeds of a setting
    job_type: str | None = None  # kind of the run within its group, such as train or ablation
    notes: str | None = None  # text shown with the run
    tags: tuple[str, ...] = ()  # tags of the run
    mode: Literal["online", "offline"] | None = None  # null: WANDB_MODE, else online if an API key is found
    artifacts: bool = True  # true: upload the partition manifest and the final checkpoint
    varied: Mapping[str, object] = field(default_factory=dict)  # settings varied by the sweep; written by the sweep


@dataclass(frozen=True)
class Prometheus:
    """Metrics of a running run for Prometheus, updated after each round."""

    port: Port = 9464  # of the HTTP endpoint; if it is in use, the next free one of 100; 0: any free port
    host: str = "127.0.0.1"  # address that the endpoint listens on; it has no password
    through: Literal["auto", "endpoint", "ray"] = "auto"  # auto: Ray's metrics in a joined cluster, else the endpoint


@dataclass(frozen=True)
class Tracking:
    """Experiment trackers; a tracker is imported only if it is enabled."""

    wandb: Wandb | None = None  # null: no Weights & Biases
    prometheus: Prometheus | None = None  # null: no metrics for Prometheus
    tensorboard: bool = False  # true: write event files to the folder of the run


@dataclass(frozen=True)
class Experiment:
    """One run: data, partition, model, training phases, and all other settings."""

    name: FileName  # name of the run and of its folder
    data: Data  # data set
    partition: Partitioner  # assignment of examples to clients
    model: Model  # model, optionally with adapters
    phases: tuple[Phase, ...]  # training phases, in order
    seed: Seed = 42  # seed of all random choices
    clients: Clients = field(default_factory=Clients)  # devices, networks and availability of the clients
    mentor: Model | None = None  # second model of each client, for algorithms that train two; null: a second `model`
    execution: Execution = field(default_factory=Execution)  # how client updates are executed
    deterministic: bool = False  # true: use only operations that give equal results on machines of the same kind
    ledger: LedgerRule = field(default_factory=LedgerRule)  # how bytes are charged
    privacy: Privacy | None = None  # differential privacy; null: off
    secure_aggregation: SecureAggregation | None = None  # masked sums of uploads, simulated; null: off
    evaluate: Evaluate = field(default_factory=Evaluate)  # evaluation
    checkpoint: Checkpoint = field(default_factory=Checkpoint)  # when the state of the run is saved
    on_error: Literal["stop", "skip", "retry"] = "stop"  # if a client fails; retry: up to three more times, then stop
    watchdog_seconds: PositiveFloat | None = 3600.0  # seconds without a result until the run is aborted; null: never
    tracking: Tracking = field(default_factory=Tracking)  # experiment trackers
