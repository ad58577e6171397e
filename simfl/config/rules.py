"""Rules across settings of an experiment: contradictions, and settings without effect."""

from __future__ import annotations

from collections.abc import Iterator

from simfl.algorithms.base import Algorithm
from simfl.algorithms.fedavg import FedAvg
from simfl.config import asynchronous, privacy, secure_aggregation, virtual_time
from simfl.config.fields import RENAMED_VALUES
from simfl.config.registries import REGISTRIES
from simfl.errors import ConfigError, nearest
from simfl.experiment import Codecs, Experiment, Phase
from simfl.optimizers.schedules import Constant
from simfl.optimizers.server import Sgd
from simfl.protocol import Server, Task

Violations = Iterator[str]  # error lines; each starts with the path of the setting, relative to its phase or experiment
REDUCTIONS = ("weighting", "clients", "gather")  # how an algorithm can aggregate an uploaded part


def check(experiment: Experiment) -> None:
    """Raise a ConfigError for the first violated rule."""
    for violation in violations(experiment):
        raise ConfigError(violation)


def violations(experiment: Experiment) -> Violations:
    """Yield one line per violated rule."""
    if not experiment.phases:
        yield "phases: the list is empty; give at least one"
    for i, phase in enumerate(experiment.phases):
        for rule in (
            _sampling,
            _local,
            _schedules,
            _plain_sgd,
            _needs,
            _names,
            _codecs,
            _low_rank,
            _local_only,
            _centralized,
            _weighting,
            _data_parallel,
        ):
            yield from (f"phases.{i}.{line}" for line in rule(phase, experiment))
        yield from (f"phases.{i}.{line}" for line in _carry_over(phase, experiment.phases[i - 1] if i else None))
    yield from _evaluate(experiment)
    yield from _all_clients(experiment)
    yield from _mentor(experiment)
    yield from _autotune(experiment)
    yield from _model_parallel(experiment)
    yield from privacy.violations(experiment)
    yield from secure_aggregation.violations(experiment)
    yield from virtual_time.violations(experiment)
    yield from asynchronous.violations(experiment)


def _evaluate(experiment: Experiment) -> Violations:
    seconds = experiment.evaluate.virtual_seconds
    if seconds is not None and experiment.clients.profile is None:
        yield "evaluate.virtual_seconds: needs clients.profile, which gives clients their devices and networks"
    if seconds is not None and experiment.evaluate.every == 1:
        yield "evaluate.virtual_seconds: has no effect with every: 1; set every: 0"
    for key in ("splits", "models"):
        names = getattr(experiment.evaluate, key)
        if key == "models":
            yield from (
                f"evaluate.models: {n!r} was renamed to {RENAMED_VALUES[n]}"
                for n in names
                if n in ("generic", "last_local")
            )
        if not names:
            yield f"evaluate.{key}: the list is empty; give at least one"
        if len(set(names)) < len(names):
            yield f"evaluate.{key}: {list(names)} contains a duplicate"


def _all_clients(experiment: Experiment) -> Violations:
    evaluate = experiment.evaluate
    for name in evaluate.all_clients:
        if name not in evaluate.splits:
            yield f"evaluate.all_clients: {name!r} is not evaluated; {nearest(name, evaluate.splits)}"


def _mentor(experiment: Experiment) -> Violations:
    passes = [forward for phase in experiment.phases for forward in phase.algorithm.forwards().values()]
    if experiment.mentor is not None and not any(forward.mentor for forward in passes):
        yield "mentor: has no effect, because no algorithm of a phase trains a second model; allowed with: fedkd"


def _autotune(experiment: Experiment) -> Violations:
    execution = experiment.execution
    if execution.autotune != "always":
        return
    if experiment.deterministic:
        yield "execution.autotune: always, but deterministic is true and forbids timings; allowed: auto, never"
    if execution.mode == "sequential" or (execution.mode == "vectorized" and execution.clients_per_batch != "auto"):
        yield "execution.autotune: always, but mode and clients_per_batch are fixed; set one of them to auto"


def _model_parallel(experiment: Experiment) -> Violations:
    execution = experiment.execution
    given = f"{execution.model_parallel} given"
    if execution.model_parallel == 1:
        return
    if execution.program not in ("auto", "eager"):
        yield f"execution.model_parallel: {given}, but program is {execution.program}, which holds one GPU; allowed: 1"
    if experiment.mentor is not None:
        yield f"execution.model_parallel: {given}, but a mentor is trained besides the model; allowed: 1"
    if experiment.privacy is not None and experiment.privacy.unit == "record":
        yield f"execution.model_parallel: {given}, but privacy.unit: record needs one GPU; allowed: 1"


def _data_parallel(phase: Phase, experiment: Experiment) -> Violations:
    """Check that gradients of micro-batches add up: one step per batch, and a loss that is a sum over examples."""
    count, algorithm, name = experiment.execution.data_parallel, phase.algorithm, type(phase.algorithm).__name__
    given = f"execution.data_parallel is {count}"
    if count == 1:
        return
    if count > phase.local.batch_size:
        yield f"local.batch_size: {phase.local.batch_size} given, but {given}; allowed: at least {count}"
    if experiment.execution.mode == "vectorized":
        yield f"algorithm: execution.mode is vectorized, but {given}; give one of them"
    steps = algorithm.micro_steps()
    if len(steps) > 1 or algorithm.needs_after_step() or any(one.at or one.active for one in steps):
        yield f"algorithm: {name} observes single local steps, but {given}; allowed: 1"
    if algorithm.needs_whole_batch:
        yield f"algorithm: the loss of {name} is not a sum over examples, but {given}; allowed: 1"
    if experiment.privacy is not None and experiment.privacy.unit == "record":
        yield f"algorithm: privacy.unit is record, which needs gradients per example, but {given}; allowed: 1"


def _sampling(phase: Phase, experiment: Experiment) -> Violations:
    given = [name for name in ("participation", "clients_per_round", "poisson") if getattr(phase, name) is not None]
    if len(given) != 1 and phase.asynchronous is None:
        yield f"participation: give exactly one of participation, clients_per_round, poisson; given: {given or 'none'}"
    clients = experiment.partition.clients
    if phase.clients_per_round is not None and clients is not None and phase.clients_per_round > clients:
        yield f"clients_per_round: {phase.clients_per_round} is more than partition.clients, which is {clients}"
    if phase.rounding != "floor" and phase.participation is None:
        yield f"rounding: {phase.rounding!r} has no effect without participation"


def _local(phase: Phase, experiment: Experiment) -> Violations:
    local = phase.local
    if local.steps is not None and local.epochs != 1:
        yield f"local.steps: {local.steps} given, but local.epochs is {local.epochs}; give one of them"
    if local.drop_last and experiment.privacy is not None and experiment.privacy.unit == "record":
        yield "local.drop_last: has no effect with privacy.unit: record, whose batches are Poisson samples"
    if local.keep_optimizer and local.optimizer.name == "sgd" and not local.optimizer.settings.get("momentum"):
        yield "local.keep_optimizer: true has no effect, because sgd without momentum has no state"


def _schedules(phase: Phase, experiment: Experiment) -> Violations:
    if phase.server.schedule.unit != "round":
        unit = phase.server.schedule.unit
        yield f"server.schedule.unit: {unit!r} given; the server takes one step per round; allowed: round"
    if phase.local.optimizer.name == "rprop" and phase.local.schedule != Constant():
        yield "local.schedule: has no effect with rprop, which adapts its step sizes from the signs of gradients"


def _needs(phase: Phase, experiment: Experiment) -> Violations:
    """Check what the algorithm requires of the model, the objective and privacy."""
    algorithm, name = phase.algorithm, REGISTRIES["algorithms"].name_of(type(phase.algorithm))
    if algorithm.needs_targets and not phase.objective.target:
        yield f"algorithm: {name} needs target classes, which {type(phase.objective).__name__} does not have"
    if algorithm.needs_logits and not phase.objective.keeps_logits:
        yield f"algorithm: {name} compares logits, which objective.loss_on: all does not keep; allowed: loss_on: answer"
    passes = [*algorithm.forwards().values(), *algorithm.eval_models.values()]
    branches = {forward.branch for forward in passes} - {"", "dual"}
    paths = getattr(getattr(experiment.model, "adapters", None), "names", ())
    if hasattr(experiment.model, "adapters") and not branches <= set(paths):
        yield f"algorithm: {name} needs model.adapters: {{kind: bottleneck, names: {sorted(branches)}}}"
    for part, rule in algorithm.reduce.items():
        if rule not in REDUCTIONS:
            yield f"algorithm: {name} reduces {part!r} by {rule!r}; {nearest(rule, REDUCTIONS)}"
    if experiment.privacy is not None and "gather" in algorithm.reduce.values():
        yield f"algorithm: {name} uploads single updates, which privacy does not sum; allowed: fedavg"
    if experiment.privacy is not None and algorithm.needs_positions:
        yield f"algorithm: {name} keeps state per example, which privacy does not cover; allowed: fedavg"
    privacy = experiment.privacy
    if algorithm.privacy_unit is not None and (privacy is None or privacy.unit != algorithm.privacy_unit):
        yield f"algorithm: {name} needs privacy: {{unit: {algorithm.privacy_unit}, clip: …}}"


def _plain_sgd(phase: Phase, experiment: Experiment) -> Violations:
    allowed = phase.algorithm.supported_sgd_settings()
    if allowed is None:
        return
    algorithm, local = REGISTRIES["algorithms"].name_of(type(phase.algorithm)), phase.local
    if local.optimizer.name != "sgd":
        yield f"local.optimizer: {local.optimizer.name!r} given; {algorithm} is correct only with plain sgd"
    for key, value in local.optimizer.settings.items():
        if value and local.optimizer.name == "sgd" and key not in allowed:
            yield f"local.optimizer.{key}: {value!r} given; {algorithm} is correct only with plain sgd"
    for key in ("clip_norm", "clip_value"):
        if getattr(local, key) is not None and key not in allowed:
            yield f"local.{key}: {getattr(local, key)} given; {algorithm} is correct only with plain sgd, unclipped"


def _names(phase: Phase, experiment: Experiment) -> Violations:
    for glob in phase.frozen:
        for key in ("train", "personal_params"):
            if glob in getattr(phase, key):
                yield f"frozen: {glob!r} is also in {key}"


def _codecs(phase: Phase, experiment: Experiment) -> Violations:
    codec, algorithm = phase.codec, phase.algorithm
    for part, own in codec.parts.items():
        down = list(
            algorithm.download(Server({}, algorithm.init_server({}, Task(experiment.seed, num_classes=2, shape=(1,)))))
        )
        for direction, known in (("download", down), ("upload", list(algorithm.reduce))):
            if getattr(own, direction) is not None and part not in known:
                yield f"codec.parts.{part}.{direction}: no such part; {nearest(part, known)}"
    downloads = {"download": codec.download}
    downloads |= {f"parts.{part}.download": own.download for part, own in codec.parts.items() if own.download}
    for path, one in downloads.items():
        if one.error_feedback:
            yield f"codec.{path}.error_feedback: has no effect on downloads; the next update corrects the error"


def _low_rank(phase: Phase, experiment: Experiment) -> Violations:
    """Check what algorithms for low-rank adapters need of privacy and of the codec of downloads."""
    algorithm, codec = phase.algorithm, phase.codec
    ranked = algorithm.client_ranks() is not None
    single = algorithm.products() == "needed" or (algorithm.has_contributions() and not ranked)
    if experiment.privacy is not None and ranked:
        yield "algorithm.rank: clients of different ranks have updates of different sensitivity; allowed: equal ranks"
    if experiment.privacy is not None and type(algorithm).num_downloaded is not Algorithm.num_downloaded:
        name = REGISTRIES["algorithms"].name_of(type(algorithm))
        yield f"algorithm: {name} sends some values of a tensor, which privacy does not clip; allowed: ffa_lora"
    if experiment.privacy is not None and single:
        name = REGISTRIES["algorithms"].name_of(type(algorithm))
        yield (
            f"algorithm: {name} combines A and B of single clients, and their product has no bounded sensitivity;"
            " allowed with privacy: ffa_lora, whose update is linear in what is sent"
        )
    if phase.rounds < (least := algorithm.least_rounds()):
        name = REGISTRIES["algorithms"].name_of(type(algorithm))
        yield f"rounds: {phase.rounds} given, but the stages of {name} take at least {least} rounds"
    if algorithm.assigns and phase.server != Sgd():
        name = REGISTRIES["algorithms"].name_of(type(algorithm))
        yield f"server: {name} sets weights, which other steps would miss; allowed: sgd at learning_rate 1"
    used = {"download": codec.download}
    used |= {f"parts.{part}.download": own.download for part, own in codec.parts.items() if own.download}
    for path, one in used.items():
        proportional = one.fixed_size and 3 * one.size((2, 8)) == one.size((6, 8))
        if ranked and not (proportional and not one.broadcasts_deltas):
            kind, sent = type(one).__name__, " of updates" if proportional else ""
            allowed = "encode: weights" if proportional else "float32, and float16 or bfloat16 with encode: weights"
            yield f"codec.{path}: {kind}{sent} cannot be cut to a client's rank; allowed: {allowed}"
        elif type(algorithm).num_downloaded is not Algorithm.num_downloaded and not proportional:
            kind = type(one).__name__
            yield f"codec.{path}: {kind} cannot be cut to some values of a tensor; allowed: float32, float16, bfloat16"
        elif _selects(algorithm) and not one.fixed_size:
            yield f"codec.{path}: {type(one).__name__} has no fixed size, by which single tensors are charged"


def _selects(algorithm: Algorithm) -> bool:
    kind = type(algorithm)
    return kind.travels is not Algorithm.travels or kind.downloads is not Algorithm.downloads


def _local_only(phase: Phase, experiment: Experiment) -> Violations:
    if phase.communicate:
        return
    without_effect = {
        "algorithm": FedAvg(),
        "personal_params": (),
        "codec": Codecs(),
        "server": Sgd(),
        "weighting": "examples",
    }
    for key, usual in without_effect.items():
        if getattr(phase, key) != usual:
            yield f"{key}: has no effect with communicate: false"


def _centralized(phase: Phase, experiment: Experiment) -> Violations:
    if not phase.centralized:
        return
    without_effect = {
        "algorithm": FedAvg(),
        "personal_params": (),
        "communicate": True,
        "codec": Codecs(),
        "weighting": "examples",
    }
    for key, usual in without_effect.items():
        if getattr(phase, key) != usual:
            yield f"{key}: has no effect with centralized: true"
    if phase.local.keep_optimizer or experiment.privacy is not None:
        yield "centralized: true, but local.keep_optimizer and privacy need clients; leave them out"


def _carry_over(phase: Phase, previous: Phase | None) -> Violations:
    if phase.carry_over and previous is None:
        yield f"carry_over: {list(phase.carry_over)} given, but this is the first phase; allowed: []"
    elif (
        previous is not None
        and "algorithm" in phase.carry_over
        and type(phase.algorithm) is not type(previous.algorithm)
    ):
        yield "carry_over: 'algorithm' needs the algorithm of the previous phase"
    elif previous is not None and "optimizer" in phase.carry_over:
        if not (phase.local.keep_optimizer and previous.local.keep_optimizer):
            yield "carry_over: 'optimizer' needs local.keep_optimizer: true in both phases"
        elif phase.local.optimizer.name != previous.local.optimizer.name:
            yield "carry_over: 'optimizer' needs the local optimizer of the previous phase"


def _weighting(phase: Phase, experiment: Experiment) -> Violations:
    if experiment.privacy and phase.weighting != "uniform":
        yield f"weighting: {phase.weighting!r} reveals how many examples a client has; allowed with privacy: uniform"
