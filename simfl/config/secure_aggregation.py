"""Rules of the section `secure_aggregation`: what needs single uploads is refused, and ranges are checked."""

from __future__ import annotations

from collections.abc import Iterator

from simfl.algorithms.base import Algorithm
from simfl.codecs.casts import Float32
from simfl.experiment import Experiment, Phase, Privacy, SecureAggregation

LEAST_BITS, MOST_BITS = 8, 60


def violations(experiment: Experiment) -> Iterator[str]:
    """Yield one line per violated rule of this section, starting with the path of the setting."""
    secure, privacy = experiment.secure_aggregation, experiment.privacy
    if privacy is not None:
        yield from _noise(privacy, secure)
    if secure is None:
        return
    yield from (f"secure_aggregation.{line}" for line in _ranges(secure))
    yield from _clips(secure, experiment)
    if experiment.on_error == "skip":
        yield "on_error: skip, but secure_aggregation plans who leaves a round; allowed: stop, retry, and dropout"
    if experiment.ledger.tied_weights != "once":
        given = experiment.ledger.tied_weights
        yield f"ledger.tied_weights: {given}, but a masked vector has no names of tensors; allowed: once"
    for i, phase in enumerate(experiment.phases):
        yield from (f"phases.{i}.{line}" for line in _phase(secure, phase))
    if privacy is not None:
        yield from _privacy(privacy, experiment)


def _ranges(secure: SecureAggregation) -> Iterator[str]:
    if not LEAST_BITS <= secure.bits <= MOST_BITS:
        yield f"bits: {secure.bits} given; allowed: {LEAST_BITS} to {MOST_BITS}"
    if not 2 <= secure.value_bits < secure.bits:
        yield f"value_bits: {secure.value_bits} given; allowed: 2 to {secure.bits - 1}, below bits"
    for key in ("dropout", "late_dropout"):
        if getattr(secure, key) >= 1.0:
            yield f"{key}: {getattr(secure, key):g} given; allowed: at least 0 and below 1"
    if secure.neighbors is not None and (secure.neighbors < 2 or secure.neighbors % 2):
        yield f"neighbors: {secure.neighbors} given; allowed: an even number of at least 2, or null"
    if secure.neighbors is not None and secure.threshold is not None and secure.threshold > secure.neighbors + 1:
        yield f"threshold: {secure.threshold} given, but {secure.neighbors + 1} clients hold shares of a secret"


def _clips(secure: SecureAggregation, experiment: Experiment) -> Iterator[str]:
    privacy = experiment.privacy
    if privacy is not None and privacy.noise == "distributed":
        for key, usual in (("clip", None), ("rounding", "stochastic")):
            if getattr(secure, key) != usual:
                yield (
                    f"secure_aggregation.{key}: has no effect with privacy.noise: distributed, which clips norms and"
                    " rounds at random"
                )
        return
    if secure.clip is None:
        yield "secure_aggregation.clip: missing; give a number above 0, the largest absolute value of an update"
    summed = [phase.algorithm for phase in experiment.phases if not phase.algorithm.has_contributions()]
    parts = {part for algorithm in summed for part in algorithm.reduce} - {"weights"}  # others are refused below
    for part in sorted(parts - set(secure.part_clips)):
        yield f"secure_aggregation.part_clips.{part}: missing; give the largest absolute value of this part"
    for part in sorted(set(secure.part_clips) - parts):
        allowed = ", ".join(sorted(parts)) or "none"
        yield f"secure_aggregation.part_clips.{part}: no algorithm uploads this part; allowed: {allowed}"


def _phase(secure: SecureAggregation, phase: Phase) -> Iterator[str]:
    name = type(phase.algorithm).__name__
    if not phase.communicate:
        yield "communicate: false, so nothing is uploaded; leave out secure_aggregation"
    if phase.centralized:
        yield "centralized: true, so nothing is uploaded; leave out secure_aggregation"
    if "gather" in phase.algorithm.reduce.values():
        yield f"algorithm: {name} needs single uploads, which secure_aggregation hides; allowed: those that need sums"
    if phase.algorithm.client_ranks() is not None:
        yield "algorithm.rank: clients of different ranks send vectors of different lengths; allowed: equal ranks"
    elif phase.algorithm.products() == "needed" or phase.algorithm.has_contributions():
        yield (
            f"algorithm: {name} combines A and B of single clients, which secure_aggregation hides; allowed: fedit,"
            " ffa_lora, rolora, fedsa_lora with equal ranks"
        )
    uploads = {"upload": phase.codec.upload}
    uploads |= {f"parts.{part}.upload": own.upload for part, own in phase.codec.parts.items() if own.upload}
    for path, codec in uploads.items():
        if codec != Float32():
            kind = type(codec).__name__
            yield f"codec.{path}: {kind} cannot be added up under masks; allowed with secure_aggregation: float32"
    for key in ("threshold", "min_survivors"):
        if phase.clients_per_round is not None and (getattr(secure, key) or 0) > phase.clients_per_round:
            yield (
                f"clients_per_round: {phase.clients_per_round} given, but secure_aggregation.{key} is"
                f" {getattr(secure, key)}, so that no round could be finished"
            )
    if phase.poisson is not None and secure.threshold is None:
        yield "poisson: rounds differ in their numbers of clients, so give secure_aggregation.threshold"


def _noise(privacy: Privacy, secure: SecureAggregation | None) -> Iterator[str]:
    """Yield what does not fit together in the settings of noise."""
    is_integer = privacy.mechanism != "gaussian"
    if privacy.noise != "distributed":
        if is_integer:
            yield f"privacy.mechanism: {privacy.mechanism} is noise of integers; allowed with it: noise: distributed"
        return
    if not is_integer:
        yield "privacy.mechanism: gaussian, but noise: distributed adds integers; allowed: discrete_gaussian, skellam"
    if secure is None:
        yield "privacy.noise: distributed, but single uploads would have little noise; give secure_aggregation"
    for key, allowed in (
        ("unit", ("client",)),
        ("adjacency", ("zero_out",)),
        ("accountant", ("rdp", "rdp_fine")),
        ("view", ("averages", "messages")),
    ):
        if getattr(privacy, key) not in allowed:
            given = getattr(privacy, key)
            yield f"privacy.{key}: {given}, but noise: distributed is accounted with {' or '.join(allowed)}"
    if privacy.secure:
        yield "privacy.secure: true, but integer noise is drawn from a key; allowed with noise: distributed: false"
    if privacy.tied_weights != "once":
        yield "privacy.tied_weights: always, but integer noise is accounted for one copy; allowed: once"


def _privacy(privacy: Privacy, experiment: Experiment) -> Iterator[str]:
    if privacy.adaptive is not None:
        yield "privacy.adaptive: its count is not encoded under secure_aggregation; allowed: null"
    if privacy.noise == "central" and privacy.adds_noise:
        yield (
            "privacy.noise: central, but secure_aggregation rounds updates before the noise is added; allowed: client,"
            " distributed"
        )
    for i, phase in enumerate(experiment.phases):
        has_state = type(phase.algorithm).init_client is not Algorithm.init_client
        if privacy.noise == "distributed" and has_state:
            name = type(phase.algorithm).__name__
            yield f"phases.{i}.algorithm: {name} stores its uploads, which have no noise of their own; allowed: fedavg"
