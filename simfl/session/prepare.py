"""What is settled before the first round: data, partition, what numbers depend on, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from simfl import cache, config
from simfl.data.partition.manifest import Partition, manifest_sha256
from simfl.errors import ConfigError, nearest
from simfl.experiment import Experiment, Phase
from simfl.privacy.account import Account
from simfl.privacy.budget import Budget
from simfl.run_context import RunContext
from simfl.runs.manifest import manifest
from simfl.runs.mirror import Mirror
from simfl.runs.record import Record
from simfl.runtime.ray.crew import Crew
from simfl.runtime.worker import WorkerConfig
from simfl.sampling import auto_clients_per_batch, num_sampled
from simfl.tracking import trackers as tracking
from simfl.training.context import LOCAL
from simfl.training.plan import ExecutionMode
from simfl.training.tensor_optimizer import steppable
from simfl.training.vectorized import pays_on_cpu

MANY = 32  # clients a round from which cohorts of 16 leave no worker idle


@dataclass(frozen=True)
class PreparedRun:
    """A run as it stands before anything of it is written."""

    experiment: Experiment
    setting: RunContext
    partition: Partition
    holdings: bytes  # the partition's manifest
    identity: dict[str, Any]  # see `identity_of`

    @staticmethod
    def of(experiment: Experiment, backend: str, crew: Crew | None, shared: dict[str, Any] | None) -> PreparedRun:
        """Reads the data, builds the model, divides; the crew is hired when the data are in the cache.

        ConfigError and DataError for all that can be wrong with an experiment, before its folder is made.
        """
        tracking.check(experiment)
        torch.set_num_threads(experiment.execution.threads)
        device = crew.device if crew is not None else "cuda" if torch.cuda.is_available() else "cpu"
        setting = RunContext(experiment, cache.folder(), torch.device(device if backend == "inline" else "cpu"), shared)
        partition, holdings = partition_of(setting)
        if crew is not None:
            crew.hire(setting)
        check(experiment, setting, partition)
        return PreparedRun(
            experiment, setting, partition, holdings, identity_of(experiment, setting, len(partition), device)
        )

    def record(self, folder: Path, resume: bool, mirror: Mirror | None) -> Record:
        """The run's folder, new, or as it was left by the same run; `mirror`: where a copy of it is kept."""
        facts = manifest(self.identity, self.setting.dataset.sha256, manifest_sha256(self.holdings))
        mapping = config.dump(self.experiment)
        return Record.open(folder, mapping, facts, self.holdings, self.experiment.checkpoint, resume, mirror)

    def setup(self, folder: Path, account: Account, profile: bool) -> WorkerConfig:
        """What every worker is told."""
        return WorkerConfig(
            self.experiment,
            self.setting.cache,
            folder / "memory",
            len(self.partition),
            self.identity["device"],
            folder / "stacks",
            profile,
            account.noise_multiplier,
        )


def partition_of(setting: RunContext) -> tuple[Partition, bytes]:
    """Who holds which training rows, and the manifest that says so."""
    experiment = setting.experiment
    partition = experiment.partition.split(setting.split("train"), experiment.seed)
    spec = config.to_mapping(experiment)["partition"]
    return partition, partition.manifest(spec, setting.dataset.sha256, experiment.seed)


def account_of(experiment: Experiment, partition: Partition, folder: Path | None = None) -> Account:
    """The run's privacy account; one that charges nothing without `privacy`."""
    return Account(None if experiment.privacy is None else Budget.of(experiment, partition), folder)


def identity_of(experiment: Experiment, setting: RunContext, clients: int, device: str) -> dict[str, Any]:
    """What numbers depend on besides the experiment (mode, clients_per_batch, threads, kind of device), chosen once."""
    mode, roles = experiment.execution.mode, setting.roles(0)
    expected = max(float(num_sampled(p, clients) or (p.poisson or 0) * clients) for p in experiment.phases)
    if mode == "vectorized" and roles.buffers:
        raise ConfigError(
            f"execution.mode: batch, but padding would enter the running statistics ({roles.buffers[0]}); allowed: loop"
        )
    single = getattr(setting.module, "one_by_one", "")
    by_example = experiment.privacy is not None and experiment.privacy.unit == "record"
    if single and (mode == "vectorized" or by_example):
        where, allowed = (
            ("execution.mode: batch", "sequential") if mode == "vectorized" else ("privacy.unit: record", "group")
        )
        raise ConfigError(f"{where}, but {single}; allowed: {allowed}")
    pieces = experiment.execution.data_parallel
    if pieces > 1 and roles.buffers:
        raise ConfigError(
            f"execution.data_parallel: {pieces}, but running statistics ({roles.buffers[0]}) are of whole batches"
        )
    if mode == "auto":
        pays = device == "cuda" or (expected >= MANY and pays_on_cpu(setting.module, roles.trained))
        mode = "vectorized" if pays and pieces == 1 and not (roles.buffers or by_example or single) else "sequential"
    clients_per_batch = (
        experiment.execution.clients_per_batch
        if isinstance(experiment.execution.clients_per_batch, int)
        else auto_clients_per_batch(mode, expected, device)
    )
    found = {
        "mode": mode,
        "clients_per_batch": clients_per_batch,
        "threads": experiment.execution.threads,
        "device": device,
    }
    return found if device == "cpu" else found | _on_gpu(experiment, mode)


def _on_gpu(experiment: Experiment, mode: str) -> dict[str, Any]:
    """How local steps are run, and in what a GPU multiplies float32."""
    captured = mode == "vectorized" and all(steppable(phase.local) for phase in experiment.phases)
    program = experiment.execution.program if captured else "eager"
    products = "float32" if experiment.deterministic else "tf32"
    return {"program": "graph" if program == "auto" else program, "products": products}


def check(experiment: Experiment, setting: RunContext, partition: Partition) -> None:
    """What can only be known with the data and the model at hand."""
    for split in experiment.evaluate.splits:
        setting.split(split)
    for index, phase in enumerate(experiment.phases):
        setting.roles(index)
        sampled = num_sampled(phase, len(partition))
        if sampled is not None and sampled > len(partition):
            raise ConfigError(f"phases.{index}.clients_per_round: {sampled} asked, there are {len(partition)} clients")
        for model in experiment.evaluate.models:
            offered_models, name = [*phase.algorithm.offered_models, LOCAL], type(phase.algorithm).__name__
            if model not in offered_models:
                raise ConfigError(
                    f"evaluate.models: {name} offered_models no model {model!r}; {nearest(model, offered_models)}"
                )
        if experiment.privacy is not None and setting.roles(index).buffers:
            raise ConfigError(f"privacy: running statistics ({setting.roles(index).buffers[0]}, …) would leave bare")
    if experiment.privacy is not None and experiment.privacy.unit == "group" and not partition.num_groups.all():
        raise ConfigError(
            "privacy.unit: group, but the partition knows no groups; use partition.by: provider or official"
        )


def remarks(settled: PreparedRun, phase: Phase, execution_mode: ExecutionMode, workers: int) -> list[str]:
    """What a user should know of how a phase is run, and could not see."""
    said = [idle_workers(settled, phase, execution_mode.clients_per_batch, workers)]
    if settled.identity["device"] != "cpu" and execution_mode.mode == "vectorized" and not steppable(phase.local):
        name = phase.local.optimizer.name
        said.append(f"local steps run as written, since {name} with its settings has no form that a GPU could replay")
    return [text for text in said if text]


def idle_workers(settled: PreparedRun, phase: Phase, clients_per_batch: int, workers: int) -> str:
    """What to say where a round has fewer cohorts than workers, which leaves some of them waiting; empty elsewhere."""
    sampled = num_sampled(phase, len(settled.partition))
    cohorts = -(-sampled // clients_per_batch) if sampled else workers
    if cohorts >= workers or settled.experiment.execution.data_parallel > 1:
        return ""
    return (
        f"a round has {sampled} clients in {cohorts} cohort{'s' if cohorts > 1 else ''}, fewer than the"
        f" {workers} workers: the others wait while it trains, and all of them evaluate"
    )
