"""Each planted bug of a privacy mechanism is found by `simfl check-privacy`; the correct mechanism passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Normalised, Toy, experiment

from simfl import rounds as rounds_module
from simfl.algorithms.dp_clgecl import DpClgecl
from simfl.data.partition.manifest import Partition
from simfl.debug import privacy_noise, privacy_rounds
from simfl.debug.noise_statistics import Measurement
from simfl.debug.privacy_noise import check_noise
from simfl.debug.privacy_rounds import PrivacyTestRounds
from simfl.debug.privacy_samples import check_samples, check_units
from simfl.debug.privacy_sensitivity import check_account, check_cohorts, check_sensitivity, check_states
from simfl.experiment import AdaptiveClip, Privacy
from simfl.models.mlp import Mlp
from simfl.privacy import mechanism, noise, scheme
from simfl.privacy.mechanism import CLIP, Mechanism, Release
from simfl.privacy.randomness import Draw, Randomness
from simfl.privacy.units import Clipped, factors, norms
from simfl.protocol import Weights
from simfl.training import batches, client_updates, dp_records
from simfl.training import context as context_module
from simfl.weights import scale, stack_sum

Patch = pytest.MonkeyPatch
Checks = Callable[[PrivacyTestRounds], Iterator[Measurement]]

G = Privacy(clip=0.05, groups_per_client=2, noise_multiplier=1.0)
CASES: dict[str, tuple[str, Privacy, dict[str, Any]]] = {
    "group": ("group_dp", G, {}),
    "central": ("group_dp", replace(G, noise="central"), {}),
    "duals": ("dp_clgecl", G, {}),
    "rate": ("group_dp", replace(G, group_rate=0.4), {}),
    "adaptive": ("group_dp", replace(G, adaptive=AdaptiveClip()), {}),
    "secure": ("group_dp", replace(G, secure=True), {}),
    "poisson": ("group_dp", G, {"participation": None, "poisson": 0.6}),
    "poisson central": ("group_dp", replace(G, noise="central"), {"participation": None, "poisson": 0.6}),
    "client": ("dp_fedavg", Privacy(unit="client", clip=0.05, noise_multiplier=1.0, noise="central"), {}),
    "record": ("dp_sgd", Privacy(unit="record", clip=0.5, noise_multiplier=1.0), {}),
    "wide": ("group_dp", replace(G, noise="central"), {"model": Mlp(hidden_sizes=(160, 120), dropout=0.0)}),
}


@dataclass(frozen=True)
class Bug:
    """A planted bug: how it is planted, in which case, and by which check it is found."""

    plant: Callable[[Patch], None]
    checks: Checks
    case: str = "group"
    settings: dict[str, Any] = field(default_factory=dict)


def prepared(case: str, folder: Path, monkeypatch: Patch, **settings: Any) -> PrivacyTestRounds:
    monkeypatch.setattr(privacy_noise, "VALUES", 6000)
    algorithm, privacy, own = CASES[case]
    defaults = {"participation": 0.6, "data": Toy(sizes=(12, 9, 6, 12, 9)), "weighting": "uniform"}
    model = {"model": Mlp(hidden_sizes=(12, 12), dropout=0.0)}
    given = experiment(algorithm, privacy=privacy, **{**defaults, **model, **own, **settings})
    return PrivacyTestRounds(given, folder / "cache", folder)


# noise


Noised = Callable[[Weights, float, tuple[Any, ...], Randomness], Weights]
REAL_NOISED, REAL_CLIP, REAL_NORMALS = noise.noised, mechanism.clipped, noise.normals


def noised(change: Callable[..., Weights]) -> Callable[[Patch], None]:
    """Return a bug in which `change(tensors, deviation, name, randomness)` adds the noise."""
    return lambda patch: patch.setattr(mechanism, "noised", change)


def scaled(factor: float) -> Callable[[Patch], None]:
    return noised(lambda tensors, deviation, *rest: REAL_NOISED(tensors, deviation * factor, *rest))


def silent(chosen: Callable[[Weights], list[str]]) -> Callable[[Patch], None]:
    """Return a bug that leaves some tensors without noise."""
    return noised(
        lambda tensors, *rest: REAL_NOISED(tensors, *rest) | {name: tensors[name] for name in chosen(tensors)}
    )


def without(position: int) -> Callable[[Patch], None]:
    """Return a bug in which the name of a draw lacks an entry: 5 is the round, 6 the client."""
    return noised(
        lambda tensors, deviation, name, source: REAL_NOISED(
            tensors, deviation, (*name[:position], *name[position + 1 :]), source
        )
    )


def drawn(change: Callable[[np.ndarray], None]) -> Callable[[Patch], None]:
    """Return a bug in which the normals of a block are changed in place."""

    def normals(source: Randomness, *name: Any) -> Draw:
        real = REAL_NORMALS(source, *name)

        def draw(tensor: str, index: int, out: np.ndarray) -> None:
            real(tensor, index, out)
            change(out)

        return draw

    return lambda patch: patch.setattr(noise, "normals", normals)


def uniform(out: np.ndarray) -> None:
    from scipy.special import ndtr

    out[:] = (2 * ndtr(out) - 1) * math.sqrt(3)


def laplace(out: np.ndarray) -> None:
    from scipy.special import ndtr

    p = ndtr(out) - 0.5
    out[:] = -np.sign(p) * np.log1p(-2 * np.abs(p)) / math.sqrt(2)


def cut_off(out: np.ndarray) -> None:
    out[:] = np.clip(out, -2.9, 2.9)


def mirrored(out: np.ndarray) -> None:
    half = len(out) // 2
    out[len(out) - half :] = -out[:half][::-1]


def tiled(out: np.ndarray) -> None:
    out[:] = np.resize(out[: max(1, len(out) // 2)], len(out))


def quiet_row(tensors: Weights, deviation: float, *rest: Any) -> Weights:
    out = REAL_NOISED(tensors, deviation, *rest)
    name = max(out, key=lambda one: out[one].numel())
    out[name][3] = tensors[name][3] + (out[name][3] - tensors[name][3]) / 2
    return out


def quiet_scalar(tensors: Weights, deviation: float, *rest: Any) -> Weights:
    out = REAL_NOISED(tensors, deviation, *rest)
    name = max(out, key=lambda one: out[one].numel())
    out[name].view(-1)[7] = tensors[name].reshape(-1)[7]
    return out


def noised_sum_clipped(patch: Patch) -> None:
    """Clip the noised sum in place of the units."""
    real = Mechanism.release

    def release(self: Mechanism, *args: Any) -> Release:
        found = real(self, *args).parts
        stacked = {name: t[None] for name, t in found["weights"].items()}
        return Release({**found, "weights": REAL_CLIP(stacked, self.privacy.clip).total})

    patch.setattr(Mechanism, "release", release)
    patch.setattr(mechanism, "clipped", lambda updates, limit, copies=None: REAL_CLIP(updates, None))


def noise_before_clip(patch: Patch) -> None:
    def clip(updates: Weights, limit: float, copies: Any = None) -> Clipped:
        return REAL_CLIP(REAL_NOISED(updates, limit, ("noise",), Randomness.fresh()), limit)

    patch.setattr(mechanism, "clipped", clip)
    noised(lambda tensors, *rest: tensors)(patch)


def same_for_all(tensor: bool) -> Callable[[Patch], None]:
    """Return a bug in which all tensors of one draw, or all blocks of a tensor, have the same noise."""

    def normals(source: Randomness, *name: Any) -> Draw:
        real = REAL_NORMALS(source, *name)
        return lambda key, index, out: real("" if tensor else key, index if tensor else 0, out)

    return lambda patch: patch.setattr(noise, "normals", normals)


def frozen_tensor_uploaded(patch: Patch) -> None:
    real = Mechanism.release

    def release(self: Mechanism, units: Any, received: Any, name: Any) -> Release:
        parts = real(self, units, received, name).parts
        received["weights"]["frozen"] = torch.zeros(8)
        return Release({**parts, "weights": {**parts["weights"], "frozen": torch.randn(8)}})

    patch.setattr(Mechanism, "release", release)


def count_without_noise(patch: Patch) -> None:
    noised(
        lambda tensors, dev, name, source: tensors if name[2] == "count" else REAL_NOISED(tensors, dev, name, source)
    )(patch)


def secure_ignored(patch: Patch) -> None:
    noised(lambda tensors, dev, name, source: REAL_NOISED(tensors, dev, name, Randomness.from_seed(0, {})))(patch)


def noise_in_first_step_only(patch: Patch) -> None:
    noised(lambda tensors, dev, name, source: REAL_NOISED(tensors, dev if name[-1] == 0 else 0.0, name, source))(patch)


# clipping


def norm_over(chosen: Callable[[Weights], Weights]) -> Callable[[Patch], None]:
    """Return a bug in which the norm is taken over some tensors only."""

    def clip(updates: Weights, limit: float, copies: Any = None) -> Clipped:
        lengths = norms(chosen(updates))
        scales = factors(lengths, limit)
        shaped = {name: t * scales.reshape(-1, *[1] * (t.dim() - 1)) for name, t in updates.items()}
        return Clipped(stack_sum(shaped), norms(updates))

    return lambda patch: patch.setattr(mechanism, "clipped", clip)


def clip_each_tensor(patch: Patch) -> None:
    def clip(updates: Weights, limit: float, copies: Any = None) -> Clipped:
        each = {name: REAL_CLIP({name: t}, limit).total[name] for name, t in updates.items()}
        return Clipped(each, norms(updates))

    patch.setattr(mechanism, "clipped", clip)


def clip_by_largest_value(patch: Patch) -> None:
    def clip(updates: Weights, limit: float, copies: Any = None) -> Clipped:
        largest = torch.stack([t.reshape(len(t), -1).abs().amax(1) for t in updates.values()]).amax(0)
        scales = factors(largest.double(), limit)
        shaped = {name: t * scales.reshape(-1, *[1] * (t.dim() - 1)) for name, t in updates.items()}
        return Clipped(stack_sum(shaped), norms(updates))

    patch.setattr(mechanism, "clipped", clip)


def batch_clipped(patch: Patch) -> None:
    def clipped_sum(gradients: Weights, clip: float) -> Weights:
        total = {name: g.sum(0) for name, g in gradients.items()}
        count = len(next(iter(gradients.values())))
        return scale(total, float(factors(norms({name: t[None] for name, t in total.items()}), clip * count)[0]))

    patch.setattr(dp_records, "clipped_sum", clipped_sum)


def record_norm_without_biases(patch: Patch) -> None:
    def clipped_sum(gradients: Weights, clip: float) -> Weights:
        scales = factors(norms({name: g for name, g in gradients.items() if g.dim() > 2}), clip)
        return {name: torch.einsum("b,b...->...", scales.to(g.dtype), g) for name, g in gradients.items()}

    patch.setattr(dp_records, "clipped_sum", clipped_sum)


def count_of_norms(patch: Patch) -> None:
    """Release the sum of the norms in place of the count."""
    patch.setattr(
        Mechanism, "_count", lambda self, lengths, clip, own, divisor, name: {"left_alone": lengths.sum()[None].float()}
    )
    assert CLIP == "clip"


def statistics_uploaded(patch: Patch) -> None:
    """Do not refuse running statistics, and let them leave."""
    patch.setattr(privacy_rounds, "check", lambda *args: None)
    patch.setattr(Mechanism, "admit", lambda self, *args: None)


# units and samples


def groups_overlap(patch: Patch) -> None:
    real = Partition.groups

    def groups(self: Partition, client: int) -> list[tuple[str, np.ndarray]]:
        found = real(self, client)
        return [(name, np.append(rows, found[k - 1][1][0])) for k, (name, rows) in enumerate(found)]

    patch.setattr(Partition, "groups", groups)


def provider_twice(patch: Patch) -> None:
    """Divide the first provider of each client into two groups without a common example."""
    real = Partition.groups

    def groups(self: Partition, client: int) -> list[tuple[str, np.ndarray]]:
        (name, rows), *rest = real(self, client)
        return [(name, rows[:1]), (f"{name} again", rows[1:]), *rest]

    patch.setattr(Partition, "groups", groups)


def one_client_more(patch: Patch) -> None:
    real = context_module.sample_clients

    def sample(phase: Any, num_clients: int, *rest: Any) -> list[int]:
        found = real(phase, num_clients, *rest)
        return sorted({*found, next(k for k in range(num_clients) if k not in found)})

    patch.setattr(context_module, "sample_clients", sample)


def same_clients(patch: Patch) -> None:
    real = context_module.sample_clients
    patch.setattr(context_module, "sample_clients", lambda a, b, c, d, number, *rest: real(a, b, c, d, 0, *rest))


def same_groups(patch: Patch) -> None:
    real = rounds_module.sample_groups
    patch.setattr(rounds_module, "sample_groups", lambda n, privacy, *rest: list(range(len(real(n, privacy, *rest)))))


def group_twice(patch: Patch) -> None:
    real = rounds_module.sample_groups
    patch.setattr(rounds_module, "sample_groups", lambda *args: [real(*args)[0]] * 2)


def group_rate_doubled(patch: Patch) -> None:
    real = rounds_module.sample_groups
    patch.setattr(
        rounds_module, "sample_groups", lambda n, p, *rest: real(n, replace(p, group_rate=2 * p.group_rate), *rest)
    )


def records_shuffled(patch: Patch) -> None:
    def draw(rows: np.ndarray, local: Any, *name: Any, **settings: Any) -> np.ndarray:
        return batches.batches(rows, local, *name)

    patch.setattr(batches, "poisson_batches", draw)


def record_rate_doubled(patch: Patch) -> None:
    real = batches.poisson_batches
    patch.setattr(
        batches,
        "poisson_batches",
        lambda rows, local, *name, **settings: real(
            rows, replace(local, batch_size=2 * local.batch_size), *name, **settings | {"steps": 2}
        ),
    )


# account, cohorts, states


def half_sigma_as(factor: float) -> Callable[[Patch], None]:
    """Return a bug that accounts samples of a fixed size with a smaller change than 2 S."""
    real = scheme._sampled

    def sampled(privacy: Privacy, sigma: float, *rest: Any) -> scheme.Event:
        event = real(privacy, sigma, *rest)
        return replace(event, noise_multiplier=sigma * factor) if event.noise_multiplier == sigma / 2 else event

    return lambda patch: patch.setattr(scheme, "_sampled", sampled)


def joint_client_as_rate(patch: Patch) -> None:
    real = scheme.Scheme._event

    def event(self: scheme.Scheme, *args: Any) -> scheme.Event:
        found = real(self, *args)
        return replace(found, sampling_rate=found.sampling_rate * found.client_rate, client_rate=1.0)

    patch.setattr(scheme.Scheme, "_event", event)


def uploads_forgotten(patch: Patch) -> None:
    patch.setattr(scheme, "_keeps_no_upload", lambda phase: True)


def mean_of_those_who_came(patch: Patch) -> None:
    real = Mechanism.averaged

    def averaged(self: Mechanism, means: Any, units: Any, expected: float, *rest: Any) -> Any:
        return real(self, means, units, float(len(units) or expected), *rest)

    patch.setattr(Mechanism, "averaged", averaged)


def noise_of_those_who_came(patch: Patch) -> None:
    real = Mechanism.averaged

    def averaged(self: Mechanism, means: Any, units: Any, expected: float, *rest: Any) -> Any:
        own = replace(self, sigma=self.sigma * expected / max(1, len(units)))
        return real(own, means, units, expected, *rest)

    patch.setattr(Mechanism, "averaged", averaged)


def duals_of_bare_updates(patch: Patch) -> None:
    """Store the update without noise."""
    kept: dict[str, Weights] = {}
    real = Mechanism.release

    def release(self: Mechanism, units: Any, received: Any, name: Any) -> Release:
        kept["bare"] = units.total
        return real(self, units, received, name)

    def update_state(self: Any, sent: Any, trained: Any, received: Any, state: Any, update: Any) -> Any:
        last = {name: received["weights"][name] + t for name, t in kept["bare"].items()}
        return {"dual": state["dual"], "last": last}

    patch.setattr(Mechanism, "release", release)
    patch.setattr(DpClgecl, "update_state", update_state)
    assert client_updates is not None


BLOCKS = Mlp(hidden_sizes=(260, 200), dropout=0.0)  # a tensor of two blocks
FAST = (  # one or two for each check; the others are tested with the slow tests
    "noise of the mean on the sum",
    "noise 5 percent short",
    "small tensors silent",
    "noise reused over rounds",
    "noise shared by tensors",
    "uniform noise",
    "count without noise",
    "secure ignored",
    "noise in the first step only",
    "clip by the largest value",
    "norm without the last tensor",
    "records clipped as a batch",
    "one provider in two groups",
    "the same clients in every round",
    "records shuffled",
    "fixed sample accounted with S",
    "joint clients as a rate",
    "duals of bare updates",
    "noise of those who came",
)
BUGS: dict[str, Bug] = {
    "noise of the mean on the sum": Bug(scaled(1 / 2), check_noise),
    "noise over the square root of 2": Bug(scaled(1 / math.sqrt(2)), check_noise),
    "noise 5 percent short": Bug(scaled(0.95), check_noise, "wide"),
    "noised sum clipped": Bug(noised_sum_clipped, check_noise),
    "first tensor silent": Bug(silent(lambda tensors: list(tensors)[:1]), check_noise),
    "last tensor silent": Bug(silent(lambda tensors: list(tensors)[-1:]), check_noise),
    "small tensors silent": Bug(silent(lambda tensors: [n for n, t in tensors.items() if t.numel() <= 8]), check_noise),
    "first tensor silent in records": Bug(silent(lambda tensors: list(tensors)[:1]), check_noise, "record"),
    "one value silent": Bug(noised(quiet_scalar), check_noise),
    "one row quiet": Bug(noised(quiet_row), check_noise, "central"),
    "noise reused over rounds": Bug(without(5), check_noise),
    "noise shared by clients": Bug(without(6), check_noise),
    "noise shared by phases": Bug(without(4), check_noise),
    "noise shared by tensors": Bug(same_for_all(tensor=True), check_noise),
    "noise shared by blocks": Bug(same_for_all(tensor=False), check_noise, "wide", {"model": BLOCKS}),
    "noise before the clip": Bug(noise_before_clip, check_noise),
    "frozen tensor uploaded": Bug(frozen_tensor_uploaded, check_sensitivity),
    "noise shared by steps": Bug(without(7), check_noise, "record"),
    "uniform noise": Bug(drawn(uniform), check_noise),
    "Laplace noise": Bug(drawn(laplace), check_noise),
    "noise without tails": Bug(drawn(cut_off), check_noise),
    "mirrored noise": Bug(drawn(mirrored), check_noise),
    "tiled noise": Bug(drawn(tiled), check_noise),
    "count without noise": Bug(count_without_noise, check_noise, "adaptive"),
    "secure ignored": Bug(secure_ignored, check_noise, "secure"),
    "one key for all runs": Bug(secure_ignored, check_noise),
    "noise in the first step only": Bug(noise_in_first_step_only, check_noise, "record"),
    "clip of each tensor": Bug(clip_each_tensor, check_account),
    "clip by the largest value": Bug(clip_by_largest_value, check_account),
    "norm without biases": Bug(norm_over(lambda t: {n: x for n, x in t.items() if x.dim() > 2}), check_sensitivity),
    "norm without the last tensor": Bug(norm_over(lambda t: dict(list(t.items())[:-1])), check_sensitivity),
    "records clipped as a batch": Bug(batch_clipped, check_sensitivity, "record"),
    "norm of records without biases": Bug(record_norm_without_biases, check_sensitivity, "record"),
    "norms in place of the count": Bug(count_of_norms, check_sensitivity, "adaptive"),
    "running statistics uploaded": Bug(statistics_uploaded, check_sensitivity, "group", {"model": Normalised()}),
    "groups overlap": Bug(groups_overlap, check_units),
    "one provider in two groups": Bug(provider_twice, check_units),
    "one client more": Bug(one_client_more, check_samples),
    "the same clients in every round": Bug(same_clients, check_samples),
    "the same groups in every round": Bug(same_groups, check_samples),
    "a group twice": Bug(group_twice, check_samples),
    "rate of groups doubled": Bug(group_rate_doubled, check_samples, "rate"),
    "records shuffled": Bug(records_shuffled, check_samples, "record"),
    "rate of records doubled": Bug(record_rate_doubled, check_samples, "record"),
    "fixed sample accounted with S": Bug(half_sigma_as(1.0), check_account),
    "fixed sample accounted with the square root of 2": Bug(half_sigma_as(1 / math.sqrt(2)), check_account),
    "fixed sample of clients accounted with S": Bug(half_sigma_as(1.0), check_account, "client"),
    "joint clients as a rate": Bug(joint_client_as_rate, check_samples),
    "stored uploads forgotten": Bug(uploads_forgotten, check_states, "duals"),
    "duals of bare updates": Bug(duals_of_bare_updates, check_states, "duals"),
    "mean of those who came": Bug(mean_of_those_who_came, check_cohorts, "poisson"),
    "noise of those who came": Bug(noise_of_those_who_came, check_cohorts, "poisson central"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in BUGS])
def test_a_planted_bug_fails_the_check(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    bug = BUGS[name]
    bug.plant(monkeypatch)
    rounds = prepared(bug.case, tmp_path, monkeypatch, **bug.settings)
    found = list(bug.checks(rounds))
    assert [one for one in found if not one.holds], found


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("group", "record"))) for name in CASES]
)
def test_the_correct_mechanism_passes_every_check(case: str, tmp_path: Path, monkeypatch: Patch) -> None:
    rounds = prepared(case, tmp_path, monkeypatch)
    every = (check_units, check_samples, check_sensitivity, check_account, check_cohorts, check_states, check_noise)
    assert [one for checks in every for one in checks(rounds) if not one.holds] == []
