"""Durations of the client updates of a run: messages and operations of the model, divided by speeds of the profiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from simfl.config.fields import shown
from simfl.data.base import TRAIN
from simfl.data.partition.manifest import Partition
from simfl.data.partition.ranks import client_values
from simfl.data.placeholder import placeholder_dataset
from simfl.errors import ConfigError
from simfl.experiment import Experiment, Local, Privacy
from simfl.models.meta_device import drop_remote_weights
from simfl.plans.flops import flops_per_example
from simfl.plans.messages import PhaseMessages, phase_messages
from simfl.run_context import RunContext
from simfl.training.plan import batches_per_epoch, num_steps
from simfl.virtual_time.profiles import ClientProfiles, Columns, Profile, client_profiles
from simfl.virtual_time.times import ClientTimes, deadline_is_met

WHERE = "clients.profile"


def profile_of(experiment: Experiment) -> Profile | None:
    """Return the profile of the clients; None without virtual time."""
    return experiment.clients.profile


def set_times(context: RunContext, partition: Partition) -> None:
    """Compute the times of all phases of a run and keep them in its context; nothing without profiles.

    Raises:
        ConfigError, DataError: The profile does not fit the clients, or no client can meet a deadline.
    """
    profile = profile_of(context.experiment)
    if profile is None or context.client_times:
        return
    for index in range(len(context.experiment.phases)):
        context.parameter_groups(index)  # probes the model, which decides what is sent
    columns = column_values(context, partition, profile)
    profiles = client_profiles(profile, len(partition), context.experiment.seed, columns, WHERE)
    meta = RunContext(
        replace(context.experiment, model=drop_remote_weights(context.experiment.model)), Path(), torch.device("meta")
    )
    meta.dataset = placeholder_dataset(context.dataset)
    meta.effects.update(context.effects)
    meta.known_ranks.update(context.known_ranks)
    for index in range(len(context.experiment.phases)):
        messages = phase_messages(meta.phase_context(index, len(partition)))
        context.client_times[index] = client_times(
            messages, meta, profiles, partition.sizes.astype(np.float64), partition.num_groups
        )


def client_times(
    messages: PhaseMessages, context: RunContext, profiles: ClientProfiles, sizes: np.ndarray, groups: np.ndarray
) -> ClientTimes:
    """Return the times of a phase.

    Args:
        messages: The messages of the phase.
        context: The run on the meta device.
        profiles: Profiles of the clients.
        sizes: Numbers of examples of the clients, [K].
        groups: Numbers of groups of the clients, [K].

    Raises:
        ConfigError: Operations cannot be counted, or no client can meet the deadline.
    """
    stage, profile = messages.stage, profile_of(context.experiment)
    assert profile is not None
    counted = 0.0
    if profile.capacity is None:
        counted = profile.flops_per_example or flops_per_example(messages, context)
    steps, examples = work_of(sizes, groups, stage.phase.local, context.experiment.privacy)
    clients = list(range(stage.num_clients))
    uploads = messages.uploads(clients, 0) if stage.phase.communicate else {}
    distinct = list({id(one): one for one in uploads.values()}.values())
    position = {id(one): k for k, one in enumerate(distinct)}
    of = np.array([position[id(uploads[client])] for client in clients], np.int64) if len(distinct) > 1 else None
    sent = np.array([sum(int(row["payload_bytes"]) for row in one) for one in distinct] or [0], np.int64)
    download = messages.download_bytes() if stage.phase.communicate else 0
    received = np.broadcast_to(np.asarray(download, np.int64), (stage.num_clients,))
    upload = sent[0 if of is None else of]
    times = ClientTimes(
        profiles=profiles,
        phase=stage.index,
        flops=counted,
        download=received,
        upload=np.broadcast_to(upload, (stage.num_clients,)),
        steps=steps,
        examples=examples,
        uploads=distinct,
        upload_of=of,
    )
    _check(times, context.experiment, stage.index)
    if stage.phase.asynchronous is not None:
        replace(stage, times=times).events(0)  # checks the slots and the buffer
    return times


def _check(times: ClientTimes, experiment: Experiment, index: int) -> None:
    """Raise ConfigError for a deadline that no client can meet, or a selection that does not fit."""
    settings = experiment.phases[index].time
    if settings is None:
        return
    try:
        settings.selection.check(len(times.profiles))
    except ConfigError as error:
        raise ConfigError(f"phases.{index}.time.selection.{error}") from None
    if settings.deadline is not None and not deadline_is_met(times, settings.deadline, settings.partial_work):
        work = "one local step" if settings.partial_work else "its local steps"
        raise ConfigError(
            f"phases.{index}.time.deadline: {shown(settings.deadline)} s given, but the fastest of"
            f" {len(times.profiles):,} clients needs {times.seconds.min():.4g} s for download, {work} and upload"
        )


def work_of(
    sizes: np.ndarray, groups: np.ndarray, local: Local, privacy: Privacy | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the local steps and the examples of one update of each client, int64 [K] and float64 [K].

    Where groups are trained one after another, each has its client's mean size.
    """
    public = None if privacy is None else privacy.min_examples
    counts = np.ceil(sizes).astype(np.int64) if public is None else np.full(len(sizes), public, np.int64)
    units = np.ones(len(sizes))
    if privacy is not None and privacy.unit == "group":
        own = np.maximum(groups, 1)
        units = own * privacy.group_rate if privacy.group_rate is not None else own.astype(np.float64)
        if privacy.groups_per_client is not None:
            units = np.minimum(own, privacy.groups_per_client).astype(np.float64)
        counts = -(-counts // own)
    steps = num_steps(counts, local)
    per_epoch = batches_per_epoch(counts, local)
    full = float(local.batch_size)
    per_step = np.full(len(counts), full) if local.drop_last else counts / np.maximum(per_epoch, 1)
    return np.ceil(steps * units).astype(np.int64), steps * units * np.minimum(per_step, full)


def column_values(context: RunContext, partition: Partition, profile: Profile) -> Columns:
    """Return the value of each client in the columns that a profile names.

    Raises:
        ConfigError: There is no such column, or it has several values for one client.
    """
    found: dict[str, list[str]] = {}
    for name in profile.columns:
        found[name] = [str(value) for value in client_values(name, context.split(TRAIN), partition, WHERE)]
    return found
