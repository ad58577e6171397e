"""Rules that tie several settings of an experiment together: what cannot be meant, and what would have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from simfl.algorithms.fedavg import FedAvg
from simfl.config import privacy
from simfl.config.registries import REGISTRIES
from simfl.errors import ConfigError, nearest
from simfl.experiment import Codecs, Experiment, Phase
from simfl.optimizers.schedules import Constant
from simfl.optimizers.server import Sgd
from simfl.protocol import Server

Complaints = Iterator[str]  # each begins with the path of the setting at fault, seen from the phase or the experiment


def check(experiment: Experiment) -> None:
    """Raise a ConfigError for the first rule that the experiment breaks."""
    for complaint in complaints(experiment):
        raise ConfigError(complaint)


def complaints(experiment: Experiment) -> Complaints:
    """Every broken rule, one line each."""
    if not experiment.phases:
        yield "phases: at least one is needed"
    for i, phase in enumerate(experiment.phases):
        for rule in (
            _sampling,
            _local,
            _schedules,
            _plain_sgd,
            _needs,
            _names,
            _codecs,
            _silence,
            _pooled,
            _weighting,
            _pieces,
        ):
            yield from (f"phases.{i}.{line}" for line in rule(phase, experiment))
        yield from (f"phases.{i}.{line}" for line in _keep(phase, experiment.phases[i - 1] if i else None))
    yield from _evaluate(experiment)
    yield from _mentor(experiment)
    yield from _probe(experiment)
    yield from privacy.complaints(experiment)


def _evaluate(experiment: Experiment) -> Complaints:
    for key in ("splits", "models"):
        names = getattr(experiment.evaluate, key)
        if not names:
            yield f"evaluate.{key}: at least one is needed"
        if len(set(names)) < len(names):
            yield f"evaluate.{key}: {list(names)} names one twice"


def _mentor(experiment: Experiment) -> Complaints:
    passes = [forward for phase in experiment.phases for forward in phase.algorithm.forwards().values()]
    if experiment.mentor is not None and not any(forward.mentor for forward in passes):
        yield "mentor: has no effect, as no phase's algorithm has a second network; allowed with: fedkd"


def _probe(experiment: Experiment) -> Complaints:
    execution = experiment.execution
    if execution.autotune != "always":
        return
    if experiment.deterministic:
        yield "execution.autotune: always, but deterministic is true, and no clock may decide its bits; allowed: auto, never"
    if execution.mode == "sequential" or (execution.mode == "vectorized" and execution.clients_per_batch != "auto"):
        yield "execution.autotune: always, but execution.mode and execution.clients_per_batch leave nothing to be tried; give auto for one"


def _pieces(phase: Phase, experiment: Experiment) -> Complaints:
    """Gradients of pieces of a batch add up where the loss is a sum over examples, and one step is taken of them."""
    pieces, algorithm, name = experiment.execution.data_parallel, phase.algorithm, type(phase.algorithm).__name__
    if pieces == 1:
        return
    if pieces > phase.local.batch_size:
        yield f"local.batch_size: {phase.local.batch_size} examples are fewer than execution.data_parallel, which is {pieces}"
    if experiment.execution.mode == "vectorized":
        yield f"algorithm: execution.mode is batch, which takes no pieces, and execution.data_parallel is {pieces}; give one of them"
    if len(algorithm.micro_steps()) > 1 or algorithm.observes():
        yield f"algorithm: {name} looks at every step on its own, which execution.data_parallel ({pieces}) cannot; allowed: 1"
    if algorithm.over_batch:
        yield f"algorithm: {name} has a loss over the whole batch, which execution.data_parallel ({pieces}) cuts; allowed: 1"
    if experiment.privacy is not None and experiment.privacy.unit == "record":
        yield f"algorithm: privacy.unit is record, whose gradients are single; execution.data_parallel is {pieces}; allowed: 1"


def _sampling(phase: Phase, experiment: Experiment) -> Complaints:
    given = [name for name in ("participation", "clients_per_round", "poisson") if getattr(phase, name) is not None]
    if len(given) != 1:
        yield f"participation: give exactly one of participation, clients_per_round, poisson; given: {given or 'none'}"
    clients = experiment.partition.clients
    if phase.clients_per_round is not None and clients is not None and phase.clients_per_round > clients:
        yield f"clients_per_round: {phase.clients_per_round} is more than partition.clients, which is {clients}"
    if phase.rounding != "floor" and phase.participation is None:
        yield f"rounding: {phase.rounding!r} has no effect without participation"


def _local(phase: Phase, experiment: Experiment) -> Complaints:
    local = phase.local
    if local.steps is not None and local.epochs != 1:
        yield f"local.steps: {local.steps} stands instead of epochs, which is {local.epochs}; give one of them"
    if local.keep_optimizer and local.optimizer.name == "sgd" and not local.optimizer.settings.get("momentum"):
        yield "local.keep_optimizer: true has no effect, as sgd without momentum has no state"


def _schedules(phase: Phase, experiment: Experiment) -> Complaints:
    if phase.server.schedule.unit != "round":
        unit = phase.server.schedule.unit
        yield f"server.schedule.unit: {unit!r} given; the server steps once a round; allowed: round"
    if phase.local.optimizer.name == "rprop" and phase.local.schedule != Constant():
        yield "local.schedule: has no effect with rprop, which takes its rate from signs alone after the first step"


def _needs(phase: Phase, experiment: Experiment) -> Complaints:
    """What the algorithm cannot do without, of model, objective and privacy."""
    algorithm, name = phase.algorithm, REGISTRIES["algorithms"].name_of(type(phase.algorithm))
    if algorithm.needs_targets and not phase.objective.target:
        yield f"algorithm: {name} needs right classes, which {type(phase.objective).__name__} does not tell"
    passes = [*algorithm.forwards().values(), *algorithm.offered_models.values()]
    branches = {forward.branch for forward in passes} - {"", "dual"}
    paths = getattr(getattr(experiment.model, "adapters", None), "names", ())
    if hasattr(experiment.model, "adapters") and not branches <= set(paths):
        yield f"algorithm: {name} needs model.adapters: {{kind: bottleneck, names: {sorted(branches)}}}"
    others = sorted(set(algorithm.reduce) - {"weights"})
    if experiment.privacy is not None and (others or "gather" in algorithm.reduce.values()):
        what = others or "single updates"
        yield f"algorithm: {name} sends {what} that privacy neither clips nor sums; allowed: fedavg"
    if experiment.privacy is not None and algorithm.needs_positions:
        yield f"algorithm: {name} remembers single examples, which privacy does not cover; allowed: fedavg"

    privacy = experiment.privacy
    if algorithm.hides is not None and (privacy is None or privacy.unit != algorithm.hides):
        yield f"algorithm: {name} needs privacy: {{unit: {algorithm.hides}, clip: …}}"


def _plain_sgd(phase: Phase, experiment: Experiment) -> Complaints:
    allowed = phase.algorithm.sgd_with()
    if allowed is None:
        return
    algorithm, local = REGISTRIES["algorithms"].name_of(type(phase.algorithm)), phase.local
    if local.optimizer.name != "sgd":
        yield f"local.optimizer: {local.optimizer.name!r} given; {algorithm} is right only with plain sgd"
    for key, value in local.optimizer.settings.items():
        if value and local.optimizer.name == "sgd" and key not in allowed:
            yield f"local.optimizer.{key}: {value!r} given; {algorithm} is right only with plain sgd"
    for key in ("clip_norm", "clip_value"):
        if getattr(local, key) is not None and key not in allowed:
            yield f"local.{key}: {getattr(local, key)} given; {algorithm} is right only with plain sgd, unclipped"


def _names(phase: Phase, experiment: Experiment) -> Complaints:
    for glob in phase.frozen:
        for key in ("train", "personal_params"):
            if glob in getattr(phase, key):
                yield f"frozen: {glob!r} is in {key} too"


def _codecs(phase: Phase, experiment: Experiment) -> Complaints:
    codec, algorithm = phase.codec, phase.algorithm
    for part, own in codec.parts.items():
        down = list(algorithm.download(Server({}, algorithm.init_server({}))))
        for direction, known in (("download", down), ("upload", list(algorithm.reduce))):
            if getattr(own, direction) is not None and part not in known:
                yield f"codec.parts.{part}.{direction}: no such part; {nearest(part, known)}"
    downloads = {"download": codec.download}
    downloads |= {f"parts.{part}.download": own.download for part, own in codec.parts.items() if own.download}
    for path, one in downloads.items():
        if one.error_feedback:
            yield f"codec.{path}.error_feedback: has no effect on the way down; a delta makes up for what was lost"


def _silence(phase: Phase, experiment: Experiment) -> Complaints:
    if phase.communicate:
        return
    silent = {"algorithm": FedAvg(), "personal_params": (), "codec": Codecs(), "server": Sgd(), "weighting": "examples"}
    for key, usual in silent.items():
        if getattr(phase, key) != usual:
            yield f"{key}: has no effect with communicate: false, when nothing travels"


def _pooled(phase: Phase, experiment: Experiment) -> Complaints:
    if not phase.centralized:
        return
    alone = {
        "algorithm": FedAvg(),
        "personal_params": (),
        "communicate": True,
        "codec": Codecs(),
        "weighting": "examples",
    }
    for key, usual in alone.items():
        if getattr(phase, key) != usual:
            yield f"{key}: has no meaning with centralized: true, when there are no clients and nothing travels"
    if phase.local.keep_optimizer or experiment.privacy is not None:
        yield "pooled: true has no clients that could keep an optimizer or need privacy"


def _keep(phase: Phase, before: Phase | None) -> Complaints:
    if phase.carry_over and before is None:
        yield f"keep: {list(phase.carry_over)} given, and no phase comes before"
    elif before is not None and "algorithm" in phase.carry_over and type(phase.algorithm) is not type(before.algorithm):
        yield "keep: 'algorithm' needs the algorithm of the phase before"
    elif before is not None and "optimizer" in phase.carry_over:
        if not (phase.local.keep_optimizer and before.local.keep_optimizer):
            yield "keep: 'optimizer' needs local.keep_optimizer in both phases"
        elif phase.local.optimizer.name != before.local.optimizer.name:
            yield "keep: 'optimizer' needs the local optimizer of the phase before"


def _weighting(phase: Phase, experiment: Experiment) -> Complaints:
    if experiment.privacy and phase.weighting != "uniform":
        yield f"weighting: {phase.weighting!r} tells how many examples a client has; privacy needs uniform"
