"""Rules of virtual time: `clients.profile` and `phases[].time`."""

from __future__ import annotations

from collections.abc import Iterator

from simfl.config.registries import REGISTRIES
from simfl.experiment import Experiment, Phase
from simfl.virtual_time.settings import RoundTime


def violations(experiment: Experiment) -> Iterator[str]:
    """Yield one line per violated rule, starting with the path of the setting."""
    profile = experiment.clients.profile
    for i, phase in enumerate(experiment.phases):
        if phase.time is not None and profile is None:
            yield f"phases.{i}.time: needs clients.profile, which gives clients their devices and networks"
        if profile is not None:
            yield from (f"phases.{i}.{line}" for line in _phase(phase, experiment))
    if profile is None:
        return
    if experiment.secure_aggregation is not None:
        yield "clients.profile: the messages of secure_aggregation have no times; leave out one of them"
    if experiment.privacy is not None:
        yield from _privacy(experiment)


def _phase(phase: Phase, experiment: Experiment) -> Iterator[str]:
    settings, clients = phase.time or RoundTime(), experiment.partition.clients
    if phase.centralized:
        yield "centralized: true, so no client has a time; leave out clients.profile"
    algorithm = phase.algorithm
    kind = type(algorithm)
    if any(getattr(kind, name) is not getattr(_base(kind), name) for name in ("travels", "downloads")):
        name = REGISTRIES["algorithms"].name_of(kind)
        yield f"algorithm: {name} sends other tensors in each round, whose times are not modelled with clients.profile"
    if phase.poisson is not None:
        for key in ("over_selection", "selection"):
            if getattr(settings, key) != getattr(RoundTime(), key):
                yield f"time.{key}: has no effect with poisson, where each client is sampled independently"
    if clients is not None and phase.clients_per_round is not None:
        started = phase.clients_per_round * settings.over_selection
        if started > clients:
            yield (
                f"time.over_selection: {settings.over_selection:g} times {phase.clients_per_round} clients are more"
                f" than partition.clients, which is {clients}"
            )
    if settings.partial_work and phase.local.steps is None and phase.local.epochs < 1:
        yield "time.partial_work: needs local steps"


def _base(kind: type) -> type:
    return next(
        one for one in kind.__mro__ if one.__module__ == "simfl.algorithms.base" and one.__name__ == "Algorithm"
    )


def _privacy(experiment: Experiment) -> Iterator[str]:
    """Yield what would change who takes part: the analysis of privacy knows the sampling alone."""
    profile, privacy = experiment.clients.profile, experiment.privacy
    assert profile is not None
    assert privacy is not None
    reason = "which changes who takes part, and the privacy analysis does not cover that; leave it out with privacy"
    if not profile.availability.is_always:
        yield f"clients.profile.availability: clients come and go, {reason}"
    if profile.failure_rate:
        yield f"clients.profile.failure_rate: {profile.failure_rate:g} given, {reason}"
    if privacy.factorization is not None:
        yield "clients.profile: with privacy.factorization clients take turns in no time; leave out one of them"
    for i, phase in enumerate(experiment.phases):
        if phase.time is not None and (phase.time.loses_updates or phase.time.selection != RoundTime().selection):
            yield f"phases.{i}.time: given, {reason}"
