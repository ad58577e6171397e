"""Preparation of a run before its first round: data, partition, model, and all checks of the experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from simfl import config, files
from simfl.data.base import HELD_OUT, TRAIN
from simfl.data.partition.heterogeneity import count_values
from simfl.data.partition.holdout import assign
from simfl.data.partition.manifest import Partition, manifest_sha256
from simfl.errors import ConfigError, nearest
from simfl.evaluation.scoring import missing_scores
from simfl.experiment import Experiment, Phase
from simfl.low_rank import is_down, rank_axis, up_name
from simfl.models.grouped_layers import why_sequential
from simfl.models.hf_processor import uneven_pages
from simfl.plans.client_times import set_times
from simfl.privacy.account import Account
from simfl.privacy.budget import Budget
from simfl.protocol import EXTRA
from simfl.run_context import RunContext
from simfl.runs.folder import CLIENT_STATES
from simfl.runs.manifest import RunIdentity, RunManifest
from simfl.runs.mirror import Mirror
from simfl.runs.record import Record
from simfl.runtime.ray.metrics import exports_metrics
from simfl.runtime.ray.worker_group import WorkerGroup
from simfl.runtime.worker import WorkerConfig
from simfl.sampling import auto_clients_per_batch, num_sampled
from simfl.secure_aggregation.channel import weighted_parts
from simfl.secure_aggregation.fixed_point import check_modulus
from simfl.session.check_batches import check_batches
from simfl.session.check_data import check_data
from simfl.tracking import trackers
from simfl.training.context import LOCAL
from simfl.training.draws import draws_refused, why_not_keyed
from simfl.training.plan import ExecutionMode
from simfl.training.tensor_optimizer import has_tensor_form
from simfl.training.vectorized import pays_on_cpu
from simfl.weights import select_names

MANY_CLIENTS = 32  # clients per round from which batches of 16 clients leave no worker idle


@dataclass(frozen=True)
class PreparedRun:
    """A checked experiment with its data, model and partition, before anything is written."""

    experiment: Experiment
    run_context: RunContext
    partition: Partition
    partition_manifest: bytes
    identity: RunIdentity
    notes: tuple[str, ...] = ()  # on the data, reported once

    def record(self, folder: Path, resume: bool, mirror: Mirror | None) -> Record:
        """Open the run folder, new or of the run to resume; `mirror` is the folder's copy at a URL."""
        data, partition = self.run_context.dataset.sha256, manifest_sha256(self.partition_manifest)
        manifest = RunManifest.create(self.identity, data, partition)
        experiment = config.dump(self.experiment)
        record = Record.open(
            folder, experiment, manifest, self.partition_manifest, self.experiment.checkpoint, resume, mirror
        )
        if not record.has_value_counts:
            record.write_value_counts(count_values(self.run_context.split(TRAIN), self.partition))
        return record

    def worker_config(self, folder: Path, account: Account, profile: bool) -> WorkerConfig:
        """Return the configuration that every worker is built from."""
        return WorkerConfig(
            self.experiment,
            self.run_context.cache,
            folder / CLIENT_STATES,
            len(self.partition),
            self.identity.device,
            folder / "stacks",
            profile,
            account.noise_multiplier,
            account.randomness,
            effects=dict(self.run_context.effects),
        )


def prepare_run(
    experiment: Experiment, backend: str, workers: WorkerGroup | None, shared: dict[str, Any] | None
) -> PreparedRun:
    """Read the data, build the model, divide the data, and check the experiment.

    Args:
        experiment: The experiment.
        backend: `ray` or `inline`.
        workers: The Ray workers, which start once the data are in the cache; None with `inline`.
        shared: Data and models that consecutive runs of this process share.

    Raises:
        ConfigError, DataError: Anything is wrong with the experiment; no run folder exists yet.
    """
    trackers.check(experiment, exports_metrics())
    torch.set_num_threads(experiment.execution.threads)
    device = workers.device if workers is not None else "cuda" if torch.cuda.is_available() else "cpu"
    if experiment.execution.model_parallel > 1 and device == "cpu":
        raise ConfigError(f"execution.model_parallel: {experiment.execution.model_parallel} needs GPUs; allowed: 1")
    driver_device = torch.device(device if backend == "inline" else "cpu")
    context = RunContext(experiment, files.cache_folder(), driver_device, shared)
    notes = check_data(experiment, context)
    partition, partition_manifest = partition_of(context)
    if workers is not None:
        workers.launch(context)
    check(experiment, context, partition)
    set_times(context, partition)
    notes = (*notes, *missing_scores(context, partition), *mask_notes(context, len(partition)))
    identity = identity_of(experiment, context, len(partition), device)
    return PreparedRun(experiment, context, partition, partition_manifest, identity, notes)


def partition_of(context: RunContext) -> tuple[Partition, bytes]:
    """Divide the training rows among clients; return the partition and its manifest."""
    experiment = context.experiment
    partition = assign(experiment.partition, context.split("train"), experiment.seed)
    spec = config.to_mapping(experiment)["partition"]
    return partition, partition.manifest(spec, context.dataset.sha256, experiment.seed)


def mask_notes(context: RunContext, num_clients: int) -> list[str]:
    """Return a line for each phase whose masks of secure aggregation are left out; equal lines once."""
    found = (context.mask_note(index, num_clients) for index in range(len(context.experiment.phases)))
    return [text for text in dict.fromkeys(found) if text]


def account_of(experiment: Experiment, partition: Partition, num_values: Sequence[int] = ()) -> Account:
    """Return the privacy account of an experiment, without a folder; without `privacy` it charges nothing.

    `num_values`: numbers that a client uploads in each phase, for integer noise.
    """
    return Account(None if experiment.privacy is None else Budget.of(experiment, partition, num_values=num_values))


def identity_of(experiment: Experiment, context: RunContext, clients: int, device: str) -> RunIdentity:
    """Choose what results depend on besides the experiment: execution mode, clients per batch, threads and device.

    Raises:
        ConfigError: The requested execution mode cannot train this model.
    """
    _check_execution_mode(experiment, context)
    _check_draws(experiment, context)
    mode, expected = experiment.execution.mode, _expected_clients(experiment, clients)
    if mode == "auto":
        mode = "vectorized" if _vectorizes(experiment, context, expected, device) else "sequential"
    size = experiment.execution.clients_per_batch
    if not isinstance(size, int):
        size = auto_clients_per_batch(mode, expected, device)
    identity = RunIdentity(mode, size, experiment.execution.threads, device)
    return identity if device == "cpu" else _gpu_identity(experiment, identity)


def _check_execution_mode(experiment: Experiment, context: RunContext) -> None:
    mode, changed = experiment.execution.mode, changed_in_passes(experiment, context)
    if mode == "vectorized" and changed:
        raise ConfigError(
            f"execution.mode: vectorized, but training passes change running statistics or the like ({changed[0]});"
            " allowed: sequential"
        )
    for given in (f"execution.mode: {mode}",) if mode == "vectorized" else _data_parallel(experiment):
        if _mixes_examples(experiment, context):
            raise ConfigError(
                f"{given}, but in training the model's results for an example depend on the others of its batch, which"
                " this mode pads or cuts; allowed: execution.mode: sequential, execution.data_parallel: 1"
            )
    reason = _why_sequential(experiment, context)
    if reason and (mode == "vectorized" or _unit_is_record(experiment)):
        where, allowed = (
            ("execution.mode: vectorized", "sequential") if mode == "vectorized" else ("privacy.unit: record", "group")
        )
        raise ConfigError(f"{where}, but {reason}; allowed: {allowed}")
    if experiment.execution.model_parallel > 1 and changed:
        raise ConfigError(
            f"execution.model_parallel: {experiment.execution.model_parallel}, but training passes change running"
            f" statistics or the like ({changed[0]}), which stay on one GPU; allowed: 1"
        )
    pieces = experiment.execution.data_parallel
    if pieces > 1 and changed:
        raise ConfigError(
            f"execution.data_parallel: {pieces}, but running statistics or the like ({changed[0]}) need whole batches;"
            " allowed: 1"
        )


def _why_sequential(experiment: Experiment, context: RunContext) -> str:
    """Return why the model trains one client, or one example, at a time; empty if it need not."""
    phases = range(len(experiment.phases))
    found = (why_sequential(context.module, context.parameter_groups(index).trained) for index in phases)
    examples: str = getattr(context.module, "grouped_only", "") if _unit_is_record(experiment) else ""
    uneven = (_uneven(experiment, context, index) for index in phases)
    return next(filter(None, found), examples) or next(filter(None, uneven), "")


def _uneven(experiment: Experiment, context: RunContext, index: int) -> str:
    """Return why pages of different sizes are read for one client at a time in a phase; empty if they need not be."""
    objective, trained = experiment.phases[index].objective, context.parameter_groups(index).trained
    return uneven_pages(context.module, trained, lambda: context.examples(objective, TRAIN).rows)


def _data_parallel(experiment: Experiment) -> tuple[str, ...]:
    pieces = experiment.execution.data_parallel
    return (f"execution.data_parallel: {pieces}",) if pieces > 1 else ()


def _mixes_examples(experiment: Experiment, context: RunContext) -> bool:
    """Return whether results of an example depend on the others of its batch, of the model or the mentor."""
    if any(context.parameter_groups(index).mixes_examples for index in range(len(experiment.phases))):
        return True
    return any(effects.mixes_examples for key, effects in context.effects.items() if key[0] == "mentor")


def _check_draws(experiment: Experiment, context: RunContext) -> None:
    """Raise ConfigError if training draws from random generators where the draws cannot be keyed."""
    execution = experiment.execution
    refusal = why_not_keyed(execution.mode, execution.data_parallel, _unit_is_record(experiment))
    for index in range(len(experiment.phases)) if refusal else ():
        if names := context.draws(index):
            raise ConfigError(draws_refused(index, names, refusal))


def changed_in_passes(experiment: Experiment, context: RunContext) -> tuple[str, ...]:
    """Return what training passes change in the model or the mentor besides the trained parameters, in any phase."""
    changed = [
        name for index in range(len(experiment.phases)) for name in context.parameter_groups(index).changed_in_passes
    ]
    return tuple(dict.fromkeys([*changed, *(context.mentor.carried if context.mentor is not None else ())]))


def _vectorizes(experiment: Experiment, context: RunContext, expected: float, device: str) -> bool:
    """Return whether vectorized training is possible, and faster by rule."""
    faster = device == "cuda" or (
        expected >= MANY_CLIENTS and pays_on_cpu(context.module, context.parameter_groups(0).trained)
    )
    sequential_only = bool(_why_sequential(experiment, context)) or _unit_is_record(experiment)
    sequential_only = sequential_only or any(context.draws(index) for index in range(len(experiment.phases)))
    return (
        faster
        and experiment.execution.data_parallel == 1
        and not (changed_in_passes(experiment, context) or _mixes_examples(experiment, context) or sequential_only)
    )


def _unit_is_record(experiment: Experiment) -> bool:
    return experiment.privacy is not None and experiment.privacy.unit == "record"


def _expected_clients(experiment: Experiment, clients: int) -> float:
    """Return the expected number of clients per round, of the phase with the most."""
    return max(float(num_sampled(p, clients) or (p.poisson or 0) * clients) for p in experiment.phases)


def _gpu_identity(experiment: Experiment, identity: RunIdentity) -> RunIdentity:
    """Add how local steps run on a GPU, and in which precision it multiplies float32."""
    whole = experiment.execution.model_parallel == 1  # a graph holds the kernels of one GPU
    captured = (
        whole
        and identity.mode == "vectorized"
        and all(has_tensor_form(phase.local) and phase.transform is None for phase in experiment.phases)
    )
    program = experiment.execution.program if captured else "eager"
    products = "float32" if experiment.deterministic else "tf32"
    return replace(identity, program="graph" if program == "auto" else program, products=products)


def check(experiment: Experiment, context: RunContext, partition: Partition) -> None:
    """Check what depends on the data and the model.

    Raises:
        ConfigError: A split, a model to score, a number of clients or a unit of privacy does not exist.
    """
    _check_splits(context, partition)
    for index, phase in enumerate(experiment.phases):
        _check_phase(experiment, context, partition, index, phase)
    privacy = experiment.privacy
    if privacy is not None and privacy.unit == "group" and not partition.num_groups.all():
        raise ConfigError(
            "privacy.unit: group, but the partition has no groups; allowed: partition.by: provider or official"
        )
    account_of(experiment, partition, context.num_values)  # raises if the budget cannot be met


def _check_splits(context: RunContext, partition: Partition) -> None:
    """Raise ConfigError if an evaluated split does not exist, or has no column `evaluate.two_step`."""
    if partition.holds_out and HELD_OUT in context.dataset.splits:
        raise ConfigError(f"partition.holdout: the data has a split {HELD_OUT!r}, a name that held-out examples need")
    for split in context.experiment.evaluate.splits:
        context.split(split)
        if split == HELD_OUT and split not in context.dataset.splits and not partition.holds_out:
            raise ConfigError(f"evaluate.splits: {HELD_OUT!r} needs partition.holdout, which holds out examples")
        _check_two_step(context, split)


def _check_two_step(context: RunContext, split: str) -> None:
    """Raise ConfigError if a split has no column `evaluate.two_step`."""
    found, name = context.split(split), context.experiment.evaluate.two_step
    known = found.examples.column_names + (found.documents.column_names if found.documents is not None else [])
    if name is not None and name not in known:
        raise ConfigError(f"evaluate.two_step: split {split} has no column {name!r}; {nearest(name, known)}")


def _check_phase(experiment: Experiment, context: RunContext, partition: Partition, index: int, phase: Phase) -> None:
    context.check_transform(index)
    context.check_features(index)
    groups, sampled = context.parameter_groups(index), num_sampled(phase, len(partition))
    if sampled is not None and sampled > len(partition):
        raise ConfigError(
            f"phases.{index}.clients_per_round: {sampled} requested, but the partition has {len(partition)} clients"
        )
    _check_num_uploads(phase, sampled, f"phases.{index}")
    _check_low_rank(context, index, len(partition))
    _check_zero_factors(context, index)
    _check_secure_aggregation(experiment, partition, index, phase)
    for model in experiment.evaluate.models:
        models, name = [*phase.algorithm.eval_models, LOCAL], type(phase.algorithm).__name__
        if model not in models:
            raise ConfigError(f"evaluate.models: {name} has no model {model!r}; {nearest(model, models)}")
        if model == "global" and groups.personal_buffers and phase.communicate:
            raise ConfigError(
                f"evaluate.models: global, but clients keep its {groups.personal_buffers[0]} (phases.{index}.buffers),"
                f" so that it has none to be scored with; allowed: {', '.join(sorted({*models} - {'global'}))}"
            )
    check_batches(experiment, context, partition, index)
    _check_epsilon(context, index)
    if experiment.secure_aggregation is not None and groups.averaged_buffers:
        raise ConfigError(
            f"secure_aggregation: running statistics or the like ({groups.averaged_buffers[0]}, …) have no known range;"
            f" allowed: phases.{index}.buffers.personal or frozen"
        )
    if experiment.privacy is not None and groups.averaged_buffers:
        raise ConfigError(
            f"privacy: running statistics or the like ({groups.averaged_buffers[0]}, …) would be sent without noise"
        )
    for micro in phase.algorithm.micro_steps():
        trains, excludes = (
            [glob for glob in globs if not glob.startswith(f"{EXTRA}/")] for globs in (micro.trains, micro.excludes)
        )
        select_names(context.parameter_groups(index).trained, trains, excludes, f"phases.{index}.algorithm")


def _check_low_rank(context: RunContext, index: int, num_clients: int) -> None:
    """Raise ConfigError if the model lacks the low-rank pairs that an algorithm needs, or clients' ranks do not fit."""
    algorithm = context.experiment.phases[index].algorithm
    if algorithm.needs_pairs:
        context.ranks(index, num_clients)
        stage = context.phase_context(index, num_clients)
        algorithm.init_server(stage.network.tensors(stage.parameter_groups.shared), context.task)


def _check_zero_factors(context: RunContext, index: int) -> None:
    """Raise ConfigError for a low-rank factor A that has no gradient, since its B is zero and not trained."""
    trained = [set(context.parameter_groups(phase).trained) for phase in range(index + 1)]
    tensors = dict(context.module.named_parameters())
    for down in filter(is_down, trained[index]):
        up = tensors.get(name := up_name(down))
        if up is None or up.is_meta or any(name in names for names in trained) or bool(up.any()):
            continue
        raise ConfigError(f"phases.{index}: {name} is zero and not trained, so that {down} has no gradient; train both")


def _check_secure_aggregation(experiment: Experiment, partition: Partition, index: int, phase: Phase) -> None:
    """Raise ConfigError if sums may exceed the modulus, or if too few clients can survive a round."""
    secure, clients = experiment.secure_aggregation, num_sampled(phase, len(partition)) or len(partition)
    if secure is None:
        return
    if experiment.privacy is None or experiment.privacy.noise != "distributed":  # whose budget checks the modulus
        largest = int(partition.sizes.max()) if weighted_parts(phase.algorithm.reduce, phase.weighting) else 1
        check_modulus(secure, clients, largest)
    for key in ("threshold", "min_survivors"):
        if (getattr(secure, key) or 0) > clients:
            raise ConfigError(
                f"secure_aggregation.{key}: {getattr(secure, key)} given, but a round of phases.{index} has"
                f" {clients} clients"
            )


def _check_epsilon(context: RunContext, index: int) -> None:
    """Raise ConfigError if the optimizer's eps is zero in the dtype of a trained parameter, which then becomes NaN."""
    optimizer = context.experiment.phases[index].local.optimizer
    eps = optimizer.setting("eps")
    trained = set(context.parameter_groups(index).trained)
    for name, parameter in context.module.named_parameters() if isinstance(eps, float) and eps > 0 else ():
        if name in trained and not torch.tensor(eps, dtype=parameter.dtype).item():
            raise ConfigError(
                f"phases.{index}.local.optimizer.eps: {eps:g} is 0 in {parameter.dtype}, the dtype of {name};"
                " set it to about 1e-4, or train in bfloat16 or float32"
            )


def _check_num_uploads(phase: Phase, sampled: int | None, where: str) -> None:
    """Raise ConfigError if a round can have fewer uploads than the algorithm needs."""
    name, least = type(phase.algorithm).__name__, phase.algorithm.least_uploads()
    if sampled is not None and sampled < least:
        raise ConfigError(
            f"{where}.algorithm: {name} needs at least {least} clients per round, but {sampled} are sampled"
        )
    if sampled is None and least > 0:
        raise ConfigError(
            f"{where}.poisson: a round can have any number of clients, but {name} needs at least {least};"
            " allowed: clients_per_round, participation"
        )


def remarks(prepared: PreparedRun, phase: Phase, mode: ExecutionMode, workers: int) -> list[str]:
    """Return messages about how a phase is executed that a user could not see otherwise."""
    found = [_idle_workers(prepared, phase, mode.clients_per_batch, workers), _initial_factors(prepared, phase)]
    if prepared.identity.device != "cpu" and mode.mode == "vectorized" and not has_tensor_form(phase.local):
        name = phase.local.optimizer.name
        found.append(f"local steps run eagerly: {name} with its settings cannot be captured as a CUDA graph")
    return [text for text in found if text]


def _initial_factors(prepared: PreparedRun, phase: Phase) -> str:
    """Return a message if the global model is scored with factors of adapters that clients train for themselves."""
    experiment, context = prepared.run_context.experiment, prepared.run_context
    personal = context.parameter_groups(experiment.phases.index(phase)).personal_params
    factor = next((name for name in personal if rank_axis(name) is not None), None)
    if factor is None or not phase.communicate or "global" not in experiment.evaluate.models:
        return ""
    return f"evaluate.models: the global model has the initial {factor}, which clients keep; score the model personal"


def _idle_workers(prepared: PreparedRun, phase: Phase, clients_per_batch: int, workers: int) -> str:
    """Return a message where a round has fewer cohorts than workers, so that some are idle; else an empty string."""
    sampled = num_sampled(phase, len(prepared.partition))
    cohorts = -(-sampled // clients_per_batch) if sampled else workers
    if cohorts >= workers or prepared.experiment.execution.data_parallel > 1:
        return ""
    return (
        f"each round has {sampled} clients in {cohorts} cohort{'s' if cohorts > 1 else ''}, fewer than the"
        f" {workers} workers: the other workers are idle during training and take part in evaluation"
    )
