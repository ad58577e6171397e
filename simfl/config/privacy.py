"""Rules of the section `privacy`: what would have no effect, and what would break the promise without a word."""

from __future__ import annotations

from collections.abc import Iterator

from simfl.algorithms.base import Algorithm
from simfl.experiment import Experiment, Phase, Privacy

ZERO_OUT = "it needs adjacency: zero_out"


def complaints(experiment: Experiment) -> Iterator[str]:
    """Every broken rule of this section, one line each, beginning with the path of the setting at fault."""
    privacy = experiment.privacy
    if privacy is None:
        return
    yield from _without_effect(privacy)
    if privacy.epsilon is None and not privacy.noise_multiplier:
        return
    yield from _denominators(privacy, experiment)
    yield from _run(privacy, experiment)
    for i, phase in enumerate(experiment.phases):
        yield from (f"phases.{i}.{line}" for line in _phase(privacy, phase))


def _without_effect(privacy: Privacy) -> Iterator[str]:
    if privacy.unit != "group":
        for key in ("groups_per_client", "group_rate", "min_groups"):
            if getattr(privacy, key) is not None:
                yield f"privacy.{key}: {getattr(privacy, key)} has no effect with unit: {privacy.unit}"
    if privacy.unit == "client" and privacy.clip is None:
        yield "privacy: has no effect with unit: client and no clip"
    noise = privacy.epsilon is not None or bool(privacy.noise_multiplier)
    if (noise or privacy.unit == "record" or privacy.adaptive) and privacy.clip is None:
        yield "privacy.clip: missing; give a number above 0, to which updates are clipped before noise is added"
    if privacy.unit == "record":
        if privacy.noise == "central":
            yield "privacy.noise: central, but with unit: record every local step is noised; allowed: client"
        for key, usual in (("adaptive", None), ("denominator", "fixed"), ("tied_weights", "once")):
            if getattr(privacy, key) != usual:
                yield f"privacy.{key}: has no effect with unit: record"
    if privacy.adaptive is not None and privacy.adaptive.count_noise <= 0.5:
        given = privacy.adaptive.count_noise
        yield f"privacy.adaptive.count_noise: {given:g} leaves no noise for the updates; allowed: above 0.5"


def _denominators(privacy: Privacy, experiment: Experiment) -> Iterator[str]:
    drawn = any(phase.poisson is not None for phase in experiment.phases)
    if privacy.unit == "group" and privacy.denominator == "fixed" and privacy.groups_per_client is None:
        yield "privacy.groups_per_client: missing; sums are divided by it, unless with denominator: realised"
    counted = privacy.unit == "group" or (privacy.unit == "client" and drawn)
    if privacy.denominator == "realised" and counted and privacy.adjacency != "zero_out":
        yield f"privacy.denominator: realised tells how many {privacy.unit}s there are; {ZERO_OUT}"
    if privacy.unit == "client" and privacy.noise == "client" and privacy.adjacency != "zero_out":
        yield f"privacy.noise: client, but a client that is missing sends none; {ZERO_OUT}, or noise: central"
    if privacy.view == "messages" and privacy.noise == "central":
        yield "privacy.view: messages, but with noise: central they carry none; allowed: averages, formula"


def _run(privacy: Privacy, experiment: Experiment) -> Iterator[str]:
    if experiment.on_error == "skip":
        yield "on_error: skip, but whether a visit fails may tell of its data; allowed with privacy: stop, retry"
    if privacy.unit == "record" and experiment.execution.mode == "vectorized":
        yield "execution.mode: batch, but examples are hidden one client at a time; allowed with unit: record: auto, loop"
    if privacy.unit != "client" and "personal" in experiment.evaluate.models and _any_private(experiment):
        yield "evaluate.models: personal models hold private tensors, which privacy does not cover; allowed: global"


def _any_private(experiment: Experiment) -> bool:
    return any(phase.personal_params or phase.algorithm.personal_params for phase in experiment.phases)


def _phase(privacy: Privacy, phase: Phase) -> Iterator[str]:
    algorithm, name = phase.algorithm, type(phase.algorithm).__name__
    if not phase.communicate:
        yield "communicate: false, so that nothing is released; leave privacy out"
    if privacy.noise == "central" and not phase.codec.upload.lossless:
        yield "codec.upload: it changes what was clipped, and noise: central comes after it; allowed: float32"
    if privacy.unit == "client":
        return
    if phase.personal_params or algorithm.personal_params:
        yield f"private: tensors that a client keeps would carry a {privacy.unit} into others' updates; allowed: []"
    if phase.local.keep_optimizer and privacy.unit == "group":
        yield "local.keep_optimizer: true would carry a group into others' updates; allowed: false"
    if algorithm.observes():
        yield f"algorithm: {name} remembers bare gradients, which privacy does not cover; allowed: fedavg"
    if type(algorithm).extra is not Algorithm.extra:
        yield f"algorithm: {name} trains tensors that privacy does not cover; allowed: fedavg"
    remembers = type(algorithm).init_client is not Algorithm.init_client
    if remembers and privacy.noise == "central":
        yield f"algorithm: {name} remembers what it released, which with noise: central is bare; allowed: noise: client"
    if privacy.unit == "record" and len(algorithm.micro_steps()) > 1:
        yield f"algorithm: {name} takes several steps with one batch, which are not accounted; allowed: dp_sgd, fedavg"
