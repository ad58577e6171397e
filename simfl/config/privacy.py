"""Rules of the section `privacy`: settings without effect, and settings that would silently break the guarantee."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simfl.algorithms.base import Algorithm
from simfl.experiment import Experiment, Phase, Privacy

ZERO_OUT = "use adjacency: zero_out"


def violations(experiment: Experiment) -> Iterator[str]:
    """Yield one line per violated rule of this section, starting with the path of the setting."""
    privacy = experiment.privacy
    if privacy is None:
        return
    yield from _without_effect(privacy, experiment)
    yield from _factorization(privacy, experiment)
    yield from _deployment(privacy)
    yield from _parts(privacy, experiment)
    if privacy.epsilon is None and not privacy.noise_multiplier:
        return
    yield from _denominators(privacy, experiment)
    yield from _run(privacy, experiment)
    for i, phase in enumerate(experiment.phases):
        yield from (f"phases.{i}.{line}" for line in _phase(privacy, phase))


def _without_effect(privacy: Privacy, experiment: Experiment) -> Iterator[str]:
    if privacy.unit != "group":
        for key in ("groups_per_client", "group_rate", "min_groups"):
            if getattr(privacy, key) is not None:
                yield f"privacy.{key}: {getattr(privacy, key)} has no effect with unit: {privacy.unit}"
    for key, unit in (("min_examples", "record"), ("min_clients", "client")):
        if getattr(privacy, key) is not None and privacy.unit != unit:
            yield f"privacy.{key}: {getattr(privacy, key)} has no effect with unit: {privacy.unit}"
    if privacy.min_clients is not None and not all(p.clients_per_round or p.poisson for p in experiment.phases):
        yield "privacy.min_clients: participation is a share of all clients; allowed: clients_per_round, poisson"
    if privacy.noise_seed is not None and privacy.secure:
        yield "privacy.noise_seed: has no effect with secure: true, which draws from the operating system"
    if privacy.unit == "client" and privacy.clip is None:
        yield "privacy: has no effect with unit: client and no clip"
    noise = privacy.epsilon is not None or bool(privacy.noise_multiplier)
    if (noise or privacy.unit == "record" or privacy.adaptive) and privacy.clip is None:
        yield "privacy.clip: missing; give a number above 0, the largest norm of an update"
    if privacy.unit == "record":
        if privacy.noise == "central":
            yield "privacy.noise: central, but with unit: record noise is added in every local step; allowed: client"
        for key, usual in (("adaptive", None), ("denominator", "fixed"), ("tied_weights", "once")):
            if getattr(privacy, key) != usual:
                yield f"privacy.{key}: has no effect with unit: record"
    if privacy.adaptive is not None and privacy.adaptive.count_noise <= 0.5:
        given = privacy.adaptive.count_noise
        yield f"privacy.adaptive.count_noise: {given:g} leaves no noise for the updates; allowed: above 0.5"


def _factorization(privacy: Privacy, experiment: Experiment) -> Iterator[str]:
    """Yield what correlated noise excludes: its sensitivity needs one clip norm, divisor and order of the clients."""
    if privacy.factorization is None:
        return
    if privacy.unit == "record":
        yield "privacy.factorization: noise of local steps is independent; allowed: unit: client, unit: group"
        return
    for key, needed, reason in (
        ("noise", "central", "the server adds correlated noise"),
        ("adaptive", None, "correlated noise needs one clip norm for all rounds"),
        ("denominator", "fixed", "correlated noise needs one divisor for all rounds"),
        ("view", "averages", "the account of correlated noise is that of an observer of the averages"),
        ("secure", False, "the noise of later rounds is made from that of earlier ones, which needs a key"),
    ):
        if getattr(privacy, key) != needed:
            given = getattr(privacy, key)
            shown = str(given).lower() if isinstance(given, (str, bool)) else "set"
            usual = str(needed).lower() if needed is not None else "null"
            yield f"privacy.{key}: {shown}, but {reason}; allowed with factorization: {usual}"
    fixed = not all(phase.poisson for phase in experiment.phases)
    if privacy.unit == "client" and fixed and (privacy.adjacency != "zero_out" or privacy.min_clients is not None):
        yield (
            f"privacy.factorization: another client would change whose turn it is; {ZERO_OUT} without min_clients,"
            " or poisson"
        )


def _parts(privacy: Privacy, experiment: Experiment) -> Iterator[str]:
    """Yield parts without a clip, clips without a part, and what a mechanism of several parts excludes."""
    used = {part for phase in experiment.phases for part in phase.algorithm.reduce} - {"weights"}
    for part in sorted(set(privacy.parts) - used):
        yield f"privacy.parts.{part}: no algorithm uploads this part; allowed: {', '.join(sorted(used)) or 'none'}"
    for i, phase in enumerate(experiment.phases):
        others, name = sorted(set(phase.algorithm.reduce) - {"weights"}), type(phase.algorithm).__name__
        for part in others if privacy.unit == "record" else ():
            yield f"phases.{i}.algorithm: {name} uploads {part!r}, which local steps do not noise; allowed: dp_sgd"
        for part in () if privacy.unit == "record" else others:
            if part not in privacy.parts:
                need = f"which needs a clip norm; give privacy.parts.{part}.clip"
                yield f"phases.{i}.algorithm: {name} uploads {part!r}, {need}"
        if others and phase.poisson is not None:
            yield f"phases.{i}.poisson: a round may have no clients, and {name} then has no {others[0]!r} to release"
    if not privacy.parts:
        return
    shares = [one.share for one in privacy.parts.values()]
    if None in shares and len(set(shares)) > 1:
        yield "privacy.parts: some have a share and some have none; give all of them one, or none"
    elif None not in shares and math.fsum(filter(None, shares)) >= 1.0:
        total = math.fsum(filter(None, shares))
        yield f"privacy.parts: shares add up to {total:g}, which leaves nothing for the weights; allowed: below 1"
    for key, usual in (("adaptive", None), ("factorization", None)):
        if getattr(privacy, key) != usual:
            yield f"privacy.{key}: set, but several parts need a constant clip and independent noise; allowed: null"
    if privacy.noise == "distributed":
        yield "privacy.noise: distributed, but its integers are those of weights; allowed with parts: client, central"


def _deployment(privacy: Privacy) -> Iterator[str]:
    """Yield what an estimate for larger cohorts excludes: only the server's noise becomes smaller with the cohort."""
    if privacy.deployment is None:
        return
    if not privacy.adds_noise:
        yield "privacy.deployment: has no effect without noise; give privacy.epsilon or privacy.noise_multiplier"
    if privacy.unit == "record":
        yield "privacy.deployment: noise of local steps does not depend on cohorts; allowed: unit: client, unit: group"
        return
    if privacy.deployment.clients < privacy.deployment.clients_per_round:
        least = privacy.deployment.clients_per_round
        yield f"privacy.deployment.clients: {privacy.deployment.clients} given; allowed: at least {least}"
    for key, needed, reason in (
        ("noise", "central", "only the noise of a server is divided by the cohort"),
        ("denominator", "fixed", "noise is divided by the cohort of the deployment"),
        ("view", "averages", "the estimate is that of an observer of the averages"),
        ("min_clients", None, "deployment.clients is the public number of clients"),
    ):
        if (given := getattr(privacy, key)) != needed:
            yield f"privacy.{key}: {given}, but {reason}; allowed with deployment: {needed or 'null'}"
    sampled = privacy.unit == "group" and privacy.groups_per_client is not None and privacy.group_rate is None
    if sampled and privacy.min_groups is None:
        yield "privacy.min_groups: missing; it bounds the groups of the clients of privacy.deployment"


def _denominators(privacy: Privacy, experiment: Experiment) -> Iterator[str]:
    poisson = any(phase.poisson is not None for phase in experiment.phases)
    if privacy.unit == "group" and privacy.denominator == "fixed" and privacy.groups_per_client is None:
        yield "privacy.groups_per_client: missing; it is the divisor of sums, unless denominator is realised"
    counted = privacy.unit == "group" or (privacy.unit == "client" and poisson)
    if privacy.denominator == "realised" and counted and privacy.adjacency != "zero_out":
        yield f"privacy.denominator: realised reveals the number of {privacy.unit}s; {ZERO_OUT}"
    if privacy.unit == "client" and privacy.noise != "central" and privacy.adjacency != "zero_out":
        yield f"privacy.noise: {privacy.noise}, but an absent client adds no noise; {ZERO_OUT}, or noise: central"
    if privacy.view == "messages" and privacy.noise == "central":
        yield "privacy.view: messages, but with noise: central messages carry no noise; allowed: averages, formula"


def _run(privacy: Privacy, experiment: Experiment) -> Iterator[str]:
    if experiment.on_error == "skip":
        yield "on_error: skip, but a failed client update may reveal its data; allowed with privacy: stop, retry"
    if privacy.unit == "record" and experiment.execution.mode == "vectorized":
        yield "execution.mode: vectorized, but unit: record trains one client at a time; allowed: auto, sequential"
    if privacy.unit != "client" and "personal" in experiment.evaluate.models and _has_personal_params(experiment):
        yield "evaluate.models: personal models contain personal_params, which privacy does not cover; allowed: global"


def _has_personal_params(experiment: Experiment) -> bool:
    return any(phase.personal_params or phase.algorithm.personal_params for phase in experiment.phases)


def _phase(privacy: Privacy, phase: Phase) -> Iterator[str]:
    algorithm, name = phase.algorithm, type(phase.algorithm).__name__
    if not phase.communicate:
        yield "communicate: false, so nothing is uploaded; leave out privacy"
    if privacy.noise == "central" and not phase.codec.upload.lossless:
        yield "codec.upload: a lossy codec changes the clipped update before noise: central is added; allowed: float32"
    if privacy.unit == "client":
        return
    if phase.personal_params or algorithm.personal_params:
        yield f"personal_params: they would carry data of one {privacy.unit} into the updates of others; allowed: []"
    if phase.local.keep_optimizer and privacy.unit == "group":
        yield "local.keep_optimizer: true would carry data of one group into the updates of others; allowed: false"
    if algorithm.needs_after_step():
        yield f"algorithm: {name} stores gradients without noise, which privacy does not cover; allowed: fedavg"
    if type(algorithm).extra_params is not Algorithm.extra_params:
        yield f"algorithm: {name} trains extra parameters, which privacy does not cover; allowed: fedavg"
    has_state = type(algorithm).init_client is not Algorithm.init_client
    if has_state and privacy.noise == "central":
        yield f"algorithm: {name} stores its uploads, which have no noise with noise: central; allowed: noise: client"
    steps = algorithm.micro_steps()
    if privacy.unit == "record" and (len(steps) > 1 or any(one.at or one.active for one in steps)):
        yield f"algorithm: {name} takes several steps per batch, which is not accounted; allowed: dp_sgd, fedavg"
