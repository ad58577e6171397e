"""The source of a run's private randomness: a key in the run folder, a seed for tests, or the operating system."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Set
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from typing import Any

import torch

from simfl import config
from simfl.experiment import Experiment, Phase, Privacy
from simfl.privacy.randomness import Randomness, key_at, stored_key
from simfl.runs.environment import Environment
from simfl.runs.manifest import RunManifest
from simfl.runtime.gpu_monitor import processor

DECISIVE = ("seed", "data", "partition", "model", "mentor", "phases", "privacy", "deterministic")
FIRST_SETTINGS = {  # of privacy, in every key; later ones are only where they are used, so that old keys stay
    "unit", "clip", "epsilon", "delta", "noise_multiplier", "noise", "groups_per_client", "group_rate", "min_groups",
    "min_examples", "min_clients", "adjacency", "denominator", "view", "accountant", "adaptive", "tied_weights",
    "secure", "noise_seed",
}  # fmt: skip
LATER_PHASE_SETTINGS = {"time", "asynchronous"}  # of a phase; others are in every key
ROUNDING_VARIABLES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
CPU_INFO = Path("/proc/cpuinfo")
FOR_TESTS = (
    "for tests: privacy.noise_seed is given, so the noise is known to whoever has the seed, and nothing is claimed"
)


def open_randomness(
    experiment: Experiment, manifest: RunManifest, folder: Path, step: int, on_cluster: bool
) -> Randomness:
    """Return the source for a run that starts or resumes after `step` rounds; its key is stored in the run folder.

    Args:
        experiment: The experiment.
        manifest: The manifest of the run.
        folder: The run folder.
        step: Finished rounds of the run.
        on_cluster: Whether the run may use several machines.

    Raises:
        RunError: The file of keys is damaged or cannot be written.
    """
    source = source_of(experiment, manifest)
    if source is not None:
        return source
    return stored_key(folder, step, None if on_cluster else current_platform(experiment, manifest))


def source_of(experiment: Experiment, manifest: RunManifest) -> Randomness | None:
    """Return the source that the experiment alone decides; None for a key of the run folder."""
    privacy = experiment.privacy
    if privacy is None or not privacy.adds_noise:
        return Randomness.from_seed(experiment.seed, {})  # nothing is drawn
    if privacy.secure:
        return Randomness.from_system()
    if privacy.noise_seed is None:
        return None
    return Randomness.from_seed(privacy.noise_seed, facts_of(experiment, manifest))


def facts_of(experiment: Experiment, manifest: RunManifest) -> Mapping[str, object]:
    """Return everything that the releases of a run depend on, except how client updates are executed."""
    settings = json.loads(json.dumps(config.to_mapping(experiment), default=repr))
    facts = {name: settings.get(name) for name in DECISIVE}
    if experiment.secure_aggregation is not None:
        facts["secure_aggregation"] = settings["secure_aggregation"]
    if experiment.privacy is not None:
        later = {one.name for one in fields(Privacy)} - FIRST_SETTINGS
        facts["privacy"] = _without_unused(settings["privacy"], experiment.privacy, later)
    facts["phases"] = [
        _without_unused(written, phase, LATER_PHASE_SETTINGS)
        for written, phase in zip(settings["phases"], experiment.phases, strict=True)
    ]
    return facts | {"data_sha256": manifest.data_sha256, "partition_sha256": manifest.partition_sha256}


def _without_unused(settings: Mapping[str, object], given: Privacy | Phase, later: Set[str]) -> Mapping[str, object]:
    """Return settings without those of `later` that have their default."""
    unused = {one.name for one in fields(given) if one.name in later and getattr(given, one.name) == _default(one)}
    return {key: value for key, value in settings.items() if key not in unused}


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def randomness_at(experiment: Experiment, manifest: RunManifest, folder: Path, step: int) -> Randomness:
    """Return the source with which a run trained the round after `step` finished rounds.

    Raises:
        RunError: The run folder has no key.
    """
    return source_of(experiment, manifest) or key_at(folder, step)


def current_platform(experiment: Experiment, manifest: RunManifest) -> str | None:
    """Return what the last bits of results depend on; None if they may differ between two runs of one machine."""
    if manifest.identity.device != "cpu" and not experiment.deterministic:
        return None
    environment = Environment.current()
    facts = {
        "libraries": {**environment.libraries},
        "processor": processor(torch.device(manifest.identity.device)),
        "model": _processor_model(),
        "threads": manifest.identity.threads,
        "variables": {name: os.environ.get(name) for name in ROUNDING_VARIABLES},
        "machine": asdict(environment)["machine"],
        "simfl": environment.simfl,
    }
    return json.dumps(facts, sort_keys=True)


def _processor_model() -> str:
    """Return the model of the CPU, for which libraries choose their kernels."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
