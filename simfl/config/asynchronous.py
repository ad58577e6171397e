"""Rules of asynchronous training: `phases[].asynchronous`."""

from __future__ import annotations

from collections.abc import Iterator

from simfl.algorithms.base import Algorithm
from simfl.config.registries import REGISTRIES
from simfl.errors import nearest
from simfl.experiment import Asynchronous, Experiment, Phase
from simfl.optimizers.sliding_window import SlidingWindow


def violations(experiment: Experiment) -> Iterator[str]:
    """Yield one line per violated rule, starting with the path of the setting."""
    for i, phase in enumerate(experiment.phases):
        if phase.asynchronous is not None:
            for rule in (_clients, _phase, _algorithm, _codecs, _others):
                yield from (f"phases.{i}.{line}" for line in rule(phase, phase.asynchronous, experiment))


def _clients(phase: Phase, settings: Asynchronous, experiment: Experiment) -> Iterator[str]:
    if experiment.clients.profile is None:
        yield "asynchronous: needs clients.profile, which gives clients their devices and networks"
    for key in ("participation", "clients_per_round", "poisson"):
        if getattr(phase, key) is not None:
            yield f"{key}: has no effect with asynchronous, where asynchronous.concurrency clients are at work"
    known = experiment.partition.clients
    for key in ("concurrency", "buffer"):
        if known is not None and getattr(settings, key) > known:
            yield f"asynchronous.{key}: {getattr(settings, key)} is more than partition.clients, which is {known}"


def _phase(phase: Phase, settings: Asynchronous, experiment: Experiment) -> Iterator[str]:
    """Yield settings that mean something in synchronous rounds alone."""
    if phase.time is not None:
        yield "time: rules of synchronous rounds have no effect with asynchronous; allowed: asynchronous.deadline"
    if phase.centralized:
        yield "centralized: true, but asynchronous needs clients; leave out one of them"
    if not phase.communicate:
        yield "communicate: false, so no update is sent that could be stale; leave out asynchronous"
    if phase.rounding != "floor":
        yield f"rounding: {phase.rounding!r} has no effect without participation"


def _algorithm(phase: Phase, settings: Asynchronous, experiment: Experiment) -> Iterator[str]:
    algorithm, name = phase.algorithm, REGISTRIES["algorithms"].name_of(type(phase.algorithm))
    if reason := algorithm.why_synchronous():
        known = [key for key, kind in REGISTRIES["algorithms"].components.items() if runs_asynchronously(kind)]
        yield f"algorithm: {name} {reason}, so it is not carried by asynchronous; {nearest(str(name), known)}"
    if settings.mix == "models" and type(algorithm).upload is not Algorithm.upload:
        yield f"asynchronous.mix: models, but {name} uploads other tensors than changes of the model; allowed: deltas"
    if isinstance(phase.server, SlidingWindow) and settings.mix != "models":
        yield "asynchronous.mix: deltas, but server is sliding_window, which averages models; allowed: models"


def runs_asynchronously(kind: type[Algorithm]) -> bool:
    """Return whether an algorithm with its usual settings can run asynchronously."""
    try:
        return not kind().why_synchronous()
    except TypeError:  # it has settings without a default
        return False


def _codecs(phase: Phase, settings: Asynchronous, experiment: Experiment) -> Iterator[str]:
    used = {"download": phase.codec.download, "upload": phase.codec.upload}
    for part, own in phase.codec.parts.items():
        used |= {f"parts.{part}.{side}": codec for side, codec in vars(own).items() if codec is not None}
    for path, codec in used.items():
        kind = type(codec).__name__
        if path.endswith("download") and codec.broadcasts_deltas:
            yield (
                f"codec.{path}: {kind} sends changes that every client follows, but asynchronous clients receive whole"
                " versions; allowed: encode: weights"
            )
        elif path.endswith("download") and settings.reads_versions and not codec.lossless:
            what = "mix: models" if settings.mix == "models" else "staleness: distance"
            yield (
                f"codec.{path}: {kind} is lossy, but with asynchronous.{what} the server compares versions with its"
                " own model; allowed: float32"
            )
        elif path.endswith("upload") and settings.max_staleness is not None and not codec.fixed_size:
            yield (
                f"codec.{path}: {kind} has no fixed size, by which updates are charged that arrive too late for"
                " asynchronous.max_staleness; leave out one of them"
            )


def _others(phase: Phase, settings: Asynchronous, experiment: Experiment) -> Iterator[str]:
    if experiment.privacy is not None:
        yield (
            "asynchronous: privacy is given, but who takes part depends on the speed of devices, and no accountant here"
            " covers that; leave out one of them"
        )
    if experiment.secure_aggregation is not None:
        yield (
            "asynchronous: secure_aggregation needs one group of clients that start together with the same version;"
            " leave out one of them"
        )
    if experiment.execution.data_parallel > 1:
        yield "asynchronous: execution.data_parallel is not carried; allowed: data_parallel: 1"
