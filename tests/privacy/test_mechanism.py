"""The privacy mechanism: clip, sum, divide, add noise, encode; all other uploads are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from fakes import experiment, run
from torch.testing import assert_close

from simfl.algorithms.fedavg import FedAvg
from simfl.codecs import CODECS
from simfl.errors import ClientError, PrivacyError
from simfl.experiment import AdaptiveClip, Codecs, Privacy
from simfl.privacy import clipped, noise
from simfl.privacy.mechanism import CLIP, Mechanism, Release
from simfl.privacy.randomness import Randomness
from simfl.privacy.units import norms
from simfl.protocol import AggregatedUpdates, ClientUpdate, Parts, State, Weights
from simfl.stacking import stack_rows
from simfl.training import client_updates as group
from simfl.training.executor import NullObserver, Observer
from simfl.weights import tree_sum

SEEDED = Randomness.from_seed(0, {})
D = 200_000  # values: the standard error of a standard deviation is 1/√(2 D) = 0.16 %


def received(**more: float) -> Parts:
    return {"weights": {"w": torch.zeros(D)}} | {part: {"norm": torch.tensor([x])} for part, x in more.items()}


def along(k: int, length: float) -> Weights:
    """Return the update of a unit with this norm, orthogonal to those of other units."""
    update = torch.zeros(D)
    update[k] = length
    return {"w": update}


def release(mechanism: Mechanism, units: list[Weights], received: Parts, name: tuple = (0, 0, 0)) -> Release:
    clipped = mechanism.clipped(stack_rows(units), received) if units else None
    return mechanism.release(clipped, received, name)


def released(units: list[Weights], name: tuple = (0, 0, 0), sigma: float = 0.0, **privacy: Any) -> Weights:
    return release(Mechanism(Privacy(**privacy), sigma), units, received(), name).parts["weights"]


def test_units_are_clipped_then_summed_then_divided() -> None:
    # lengths 3 and 0.25 clipped to 0.5: 0.5 and 0.25; over M = 4
    sent = released([along(0, 3.0), along(1, 0.25)], clip=0.5, groups_per_client=4)["w"]
    assert_close(sent[:3], torch.tensor([0.5, 0.25, 0.0]) / 4)


def test_a_realised_denominator_is_the_actual_number_of_units() -> None:
    sent = released([along(0, 3.0), along(1, 0.25)], clip=0.5, groups_per_client=4, denominator="realised")["w"]
    assert_close(sent[:3], torch.tensor([0.5, 0.25, 0.0]) / 2)


@pytest.mark.parametrize("units", [0, 1, 2])
def test_the_noise_of_a_message_is_sigma_times_clip_over_m_for_any_number_of_units(units: int) -> None:
    given = [along(k, 3.0) for k in range(units)]
    bare = released(given, clip=0.5, groups_per_client=4)["w"]
    noisy = released(given, clip=0.5, groups_per_client=4, sigma=1.2)["w"]
    assert float((noisy - bare).std()) == pytest.approx(1.2 * 0.5 / 4, rel=0.01)


def test_central_noise_is_added_to_the_average_only() -> None:
    # K = 2 clients, M = 4 groups: sigma·S / (K M)
    mechanism = Mechanism(Privacy(clip=0.5, groups_per_client=4, noise="central"), 1.2)
    message = release(mechanism, [along(0, 3.0)], received()).parts
    assert int((message["weights"]["w"] != 0).sum()) == 1
    means = mechanism.averaged(AggregatedUpdates(message, {}, 2, 2, 2.0), [1, 1], 2.0, received(), (0, 0, "server"))
    assert means is not None
    rest = means.means["weights"]["w"][1:]
    assert float(rest.std()) == pytest.approx(1.2 * 0.5 / 8, rel=0.01)


@pytest.mark.parametrize("where", ["client", "central"])
def test_a_round_without_clients_releases_noise(where: Literal["client", "central"]) -> None:
    # 2 expected clients, M = 4: sigma·S / (2·4)
    mechanism = Mechanism(Privacy(clip=0.5, groups_per_client=4, noise=where), 1.2)
    means = mechanism.averaged(None, [], 2.0, received(), (0, 0, "server"))
    assert means is not None
    assert float(means.means["weights"]["w"].std()) == pytest.approx(1.2 * 0.5 / 8, rel=0.01)


def test_a_fixed_denominator_is_the_expected_number_of_clients() -> None:
    mechanism = Mechanism(Privacy(clip=0.5, groups_per_client=1), 1.0)
    one = AggregatedUpdates(
        {"weights": {"w": torch.full((D,), 6.0)}}, {}, 10, 3, 3.0
    )  # a mean over 3 where 2 are expected
    means = mechanism.averaged(one, [1, 1, 1], 2.0, received(), (0, 0, "server"))
    assert means is not None
    assert_close(means.means["weights"]["w"][:1], torch.tensor([6.0 * 3 / 2]))


def test_draws_differ_by_phase_round_client_tensor_deviation_and_key() -> None:
    def draw(*name: int, deviation: float = 1.0, tensor: str = "w", key: Randomness = SEEDED) -> tuple[float, ...]:
        tensors = {tensor: torch.zeros(3, dtype=torch.float64)}
        out = noise.noised(tensors, deviation, ("noise", *name), key)[tensor] / deviation
        return tuple(round(float(x), 9) for x in out)

    draws = [draw(p, r, c) for p in range(2) for r in range(3) for c in range(3)]
    draws += [draw(0, 0, 0, deviation=2.0), draw(0, 0, 0, tensor="v"), draw(0, 0, 0, key=Randomness.fresh())]
    values = [value for one in draws for value in one]
    assert len(set(values)) == len(values)
    assert draw(0, 1, 2) == draw(0, 1, 2)  # a repeated release is bit-identical


def test_the_noise_of_a_tensor_depends_neither_on_other_tensors_nor_on_their_order() -> None:
    a, b = torch.zeros(5), torch.zeros(7)
    alone = noise.noised({"a": a}, 1.0, ("noise",), SEEDED)["a"]
    for tensors in ({"a": a, "b": b}, {"b": b, "a": a}, {"b": b.double(), "a": a}):
        assert torch.equal(noise.noised(tensors, 1.0, ("noise",), SEEDED)["a"], alone)


@pytest.mark.parametrize("source", [SEEDED, Randomness.from_system()], ids=["key", "system"])
def test_blocks_of_a_tensor_have_different_noise(source: Randomness) -> None:
    drawn = noise.noised({"w": torch.zeros(3 * noise.BLOCK + 5)}, 1.0, ("noise",), source)["w"]
    assert len(drawn.unique()) > 0.95 * len(drawn)  # float32 has too few values near zero
    a, b, c = (drawn[k * noise.BLOCK : (k + 1) * noise.BLOCK] for k in range(3))
    for x, y in ((a, b), (b, c), (a, c)):
        assert abs(float((x * y).mean())) < 6 / math.sqrt(noise.BLOCK)


def test_noise_keeps_shapes_dtypes_and_its_input() -> None:
    given = {"a": torch.full((3, 4), 2.0).T, "b": torch.full((5,), 3.0, dtype=torch.float64), "c": torch.tensor(1.0)}
    out = noise.noised(given, 1e-9, ("noise",), SEEDED)
    assert {name: (t.dtype, t.shape) for name, t in out.items()} == {n: (t.dtype, t.shape) for n, t in given.items()}
    assert_close(out, given)
    assert out["b"].tolist() != given["b"].tolist()
    assert given["b"].tolist() == [3.0] * 5


def test_secure_noise_is_gaussian_and_not_repeatable() -> None:
    zero = {"w": torch.zeros(D)}
    a, b = (noise.noised(zero, 1.0, ("noise",), Randomness.from_system())["w"].double().numpy() for _ in range(2))
    assert np.std(a) == pytest.approx(1.0, abs=0.01)
    assert np.mean(a**4) == pytest.approx(3.0, abs=0.15)  # √(96 / D) = 0.022 is one standard error
    assert abs(np.mean(a * b)) < 6 / math.sqrt(D)
    assert not np.array_equal(a, b)


def test_tied_weights_count_in_the_norm_once_or_for_each_name() -> None:
    # embedding 3 with two further names, head 4: √(9 + 16) = 5; √(3·9 + 16) = 6.557
    updates = {"embedding": torch.tensor([[3.0]]), "head": torch.tensor([[4.0]])}
    assert norms(updates).tolist() == pytest.approx([5.0])
    assert norms(updates, {"embedding": 2}).tolist() == pytest.approx([math.sqrt(43)])
    assert_close(clipped(updates, 1.0, {"embedding": 2}).total["head"], torch.tensor([4 / math.sqrt(43)]))


@pytest.mark.parametrize("length", [0.4999999, 0.5, 0.5000001, 7.0, 1e6])
def test_the_norm_of_a_clipped_update_is_never_above_the_clip_norm(length: float) -> None:
    updates = stacked_units(1)
    updates = {name: (t.double() * (length / norms(updates))).float() for name, t in updates.items()}
    assert float(norms({name: t[None] for name, t in clipped(updates, 0.5).total.items()})) <= 0.5


SHAPES = {"scalar": (), "bias": (7,), "kernel": (16, 3, 5, 5), "wide": (300, 401)}  # the last is larger than a block


def stacked_units(n: int) -> Weights:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(n, *shape, generator=generator) for name, shape in SHAPES.items()}


def clipped_by_formula(update: Weights, limit: float) -> Weights:
    """Clip one unit as in the papers: Δ / max(1, ‖Δ‖ / S), with S reduced by a factor of 2^-22."""
    squares = sum(float(t.double().square().sum()) for t in update.values())
    factor = np.float32(limit * (1 - 2.0**-22) / math.sqrt(squares)) if squares > limit**2 else np.float32(1.0)
    return {name: t * torch.tensor(factor) for name, t in update.items()}


@pytest.mark.parametrize("clip", [None, 1.0, 350.0, 1e6])
@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_stacked_units_are_clipped_as_single_units_bit_identical(n: int, clip: float | None) -> None:
    """Products and sums are elementwise, and a float64 norm is far more precise than its float32 factor.

    With several threads the norm may differ in its last bit, but its float32 factor almost never.
    """
    updates, mechanism = stacked_units(n), Mechanism(Privacy(clip=clip), 0.0)
    together = mechanism.clipped(updates, received())
    alone = [mechanism.clipped({name: t[k : k + 1] for name, t in updates.items()}, received()) for k in range(n)]
    assert torch.equal(together.norms, torch.cat([one.norms for one in alone]))
    summed = tree_sum([one.total for one in alone])
    units = [{name: t[k] for name, t in updates.items()} for k in range(n)]
    plainly = tree_sum(units if clip is None else [clipped_by_formula(unit, clip) for unit in units])
    assert summed is not None
    assert plainly is not None
    for name, t in together.total.items():
        assert torch.equal(t, summed[name])
        assert torch.equal(t, plainly[name])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_gpu_clips_without_synchronization_and_as_a_cpu_up_to_rounding() -> None:
    updates, mechanism = stacked_units(50), Mechanism(Privacy(clip=350.0), 0.0)
    there = {name: t.cuda() for name, t in updates.items()}
    torch.cuda.set_sync_debug_mode("error")  # whatever waits for the GPU raises
    try:
        found = mechanism.clipped(there, received())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = mechanism.clipped(updates, received())
    assert_close(found.norms.cpu(), expected.norms, rtol=1e-13, atol=0.0)
    assert_close({name: t.cpu() for name, t in found.total.items()}, expected.total, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_a_gpu_get_the_noise_of_a_cpu() -> None:
    given = {name: t[0] for name, t in stacked_units(1).items()} | {"d": torch.zeros(3, dtype=torch.float64)}
    there = noise.noised({name: t.cuda() for name, t in given.items()}, 1.3, ("noise", 1), SEEDED)
    here = noise.noised(given, 1.3, ("noise", 1), SEEDED)
    assert all(t.is_cuda and torch.equal(t.cpu(), here[name]) for name, t in there.items())


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_an_update_that_is_not_finite_counts_as_zero(value: float) -> None:
    updates = stacked_units(3)
    zeroed = {name: t.clone() for name, t in updates.items()}
    updates["bias"][1, 2] = value
    for t in zeroed.values():
        t[1] = 0.0
    found = clipped(updates, 1.0)
    assert_close(found.total, clipped(zeroed, 1.0).total, rtol=0.0, atol=0.0)
    assert int(found.num_not_finite) == 1
    assert not math.isfinite(float(found.norms[1]))
    assert (
        bool(clipped(updates, None).total["bias"].isfinite().all()) is False
    )  # without a clip norm, nothing is hidden


# adaptive clipping


def test_the_clip_norm_moves_towards_the_quantile() -> None:
    # three of four units are within the clip norm: fraction 0.75, gamma 0.5, eta 0.2: times exp(−0.2·0.25)
    mechanism = Mechanism(Privacy(clip=1.0, groups_per_client=4, adaptive=AdaptiveClip()), 0.0)
    units = [along(k, length) for k, length in enumerate((0.1, 0.9, 1.0, 1.1))]
    parts = release(mechanism, units, received(clip=1.0)).parts
    assert parts[CLIP]["left_alone"].item() == pytest.approx(0.75 - 0.5)
    means = AggregatedUpdates(parts, {}, 1, 1, 1.0)
    assert mechanism.next_clip(1.0, means) == pytest.approx(math.exp(-0.2 * 0.25))


def test_releasing_the_count_requires_more_noise_on_the_updates() -> None:
    # sigma 1, count 5: z = 1/√(1 − 1/100) = 1.00504; together 1/z² + 1/(2·5)² = 0.99 + 0.01 = 1
    mechanism = Mechanism(Privacy(clip=1.0, adaptive=AdaptiveClip()), 1.0)
    z = mechanism.update_multiplier
    assert 1 / z**2 + 1 / (2 * 5.0) ** 2 == pytest.approx(1.0)
    assert z == pytest.approx(1.0050378)


def test_the_received_clip_norm_is_used() -> None:
    mechanism = Mechanism(Privacy(clip=1.0, groups_per_client=1, adaptive=AdaptiveClip()), 0.0)
    sent = release(mechanism, [along(0, 3.0)], received(clip=0.25)).parts["weights"]["w"]
    assert float(sent[0]) == pytest.approx(0.25)


# refusal


def test_a_tensor_that_the_mechanism_did_not_release_is_refused() -> None:
    released_parts = release(Mechanism(Privacy(clip=0.5, groups_per_client=1), 1.0), [along(0, 1.0)], received())
    released_parts.admit(released_parts.parts, "client 3")
    copied = {"weights": {"w": released_parts.parts["weights"]["w"].clone()}}
    with pytest.raises(PrivacyError, match="client 3: weights w was not clipped and noised"):
        released_parts.admit(copied, "client 3")
    with pytest.raises(PrivacyError, match="control w"):
        released_parts.admit({**released_parts.parts, "control": along(0, 1.0)}, "client 3")
    with pytest.raises(PrivacyError):
        Release({}).admit(released_parts.parts, "client 3")


class Leaky(FedAvg):
    """FedAvg that uploads the weights a second time, in a part of its own."""

    reduce: ClassVar = {"weights": "weighting", "notes": "clients"}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        parts = super().upload(trained, received, state, update)
        return {**parts, "notes": dict(parts["weights"])}


def test_only_released_parts_are_uploaded(tmp_path: Path) -> None:
    given = experiment(
        Leaky(), weighting="uniform", rounds=1, privacy=Privacy(clip=0.1, groups_per_client=2, noise_multiplier=1.0)
    )
    run(given, tmp_path / "run")
    import pyarrow.parquet as parquet

    assert set(parquet.read_table(tmp_path / "run" / "ledger.parquet")["part"].to_pylist()) == {"weights"}


def test_an_upload_that_bypasses_the_mechanism_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = group._train_units

    def around(*args: Any) -> group.UpdateGroup:
        done = real(*args)
        return replace(done, upload={"weights": {n: t.clone() for n, t in done.upload["weights"].items()}})

    monkeypatch.setattr(group, "_train_units", around)
    given = experiment(
        "fedavg", weighting="uniform", rounds=1, privacy=Privacy(clip=0.1, groups_per_client=2, noise_multiplier=1.0)
    )
    with pytest.raises(ClientError, match=r"client \d+: weights .* was not clipped and noised"):
        run(given, tmp_path / "run")


class MessageRecorder(Observer):
    """An observer that keeps every message before encoding and after decoding."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Weights, Weights]] = []

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        self.pairs.append((upload["weights"], arrived["weights"]))


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_codec_encodes_what_the_mechanism_released(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codec encodes the released tensors themselves, and the server decodes nothing else."""
    seen, listener, real = [], MessageRecorder(), Mechanism.release

    def noted(self: Mechanism, units: Any, received: Parts, name: Any) -> Release:
        out = real(self, units, received, name)
        seen.append(out.parts["weights"])
        return out

    monkeypatch.setattr(Mechanism, "release", noted)
    monkeypatch.setattr(NullObserver, "is_active", True)
    monkeypatch.setattr(NullObserver, "sent", lambda self, client, up, there: listener.sent(client, up, there))
    given = experiment(
        "fedavg",
        weighting="uniform",
        rounds=1,
        codec=Codecs(upload=CODECS[codec]()),
        privacy=Privacy(clip=0.1, groups_per_client=2, noise_multiplier=1.0),
    )
    run(given, tmp_path)
    assert len(seen) == len(listener.pairs) == 7
    for message, (left, arrived) in zip(seen, listener.pairs, strict=True):
        assert all(left[name].data_ptr() == message[name].data_ptr() for name in message)
        if CODECS[codec]().lossless:
            assert_close(arrived, left)
