"""What is released: clipped, then noised, then encoded; divided by what the accounts assume; refused if it is not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import experiment, run
from torch.testing import assert_close

from simfl.algorithms.fedavg import FedAvg
from simfl.codecs import CODECS
from simfl.cohort import group
from simfl.cohort.observer import Observer
from simfl.errors import ClientError, PrivacyError
from simfl.experiment import AdaptiveClip, Codecs, Privacy
from simfl.privacy import clip_update, noise
from simfl.privacy.mechanism import CLIP, Mechanism, Release
from simfl.privacy.units import norm
from simfl.protocol import Means, Parts, State, Visit, Weights

D = 200_000  # values: a standard deviation is known to 1/√(2 D) = 0.16 %


def received(**more: float) -> Parts:
    return {"weights": {"w": torch.zeros(D)}} | {part: {"norm": torch.tensor([x])} for part, x in more.items()}


def along(k: int, length: float) -> Weights:
    """A unit's update of this length, at right angles to all others."""
    update = torch.zeros(D)
    update[k] = length
    return {"w": update}


def released(units: list[Weights], name: tuple = (0, 0, 0), sigma: float = 0.0, **privacy: Any) -> Weights:
    return Mechanism(Privacy(**privacy), sigma).release(units, received(), name).parts["weights"]


def test_each_unit_is_clipped_before_they_are_summed_and_divided() -> None:
    # lengths 3 and 0.25 clipped to 0.5: 0.5 and 0.25; over M = 4
    sent = released([along(0, 3.0), along(1, 0.25)], clip=0.5, groups_per_client=4)["w"]
    assert_close(sent[:3], torch.tensor([0.5, 0.25, 0.0]) / 4)


def test_with_realised_denominators_the_units_at_hand_divide() -> None:
    sent = released([along(0, 3.0), along(1, 0.25)], clip=0.5, groups_per_client=4, denominator="realised")["w"]
    assert_close(sent[:3], torch.tensor([0.5, 0.25, 0.0]) / 2)


@pytest.mark.parametrize("units", [0, 1, 2])
def test_a_message_carries_sigma_times_clip_over_m_however_many_units_there_were(units: int) -> None:
    given = [along(k, 3.0) for k in range(units)]
    bare = released(given, clip=0.5, groups_per_client=4)["w"]
    noisy = released(given, clip=0.5, groups_per_client=4, sigma=1.2)["w"]
    assert float((noisy - bare).std()) == pytest.approx(1.2 * 0.5 / 4, rel=0.01)


def test_central_noise_leaves_messages_bare_and_is_of_the_average() -> None:
    # K = 2 clients, M = 4 groups: sigma·S / (K M)
    mechanism = Mechanism(Privacy(clip=0.5, groups_per_client=4, noise="central"), 1.2)
    message = mechanism.release([along(0, 3.0)], received(), (0, 0, 0)).parts
    assert int((message["weights"]["w"] != 0).sum()) == 1
    means = mechanism.averaged(Means(message, {}, 2, 2, 2.0), [1, 1], 2.0, received(), (0, 0, "server"))
    assert means is not None
    rest = means.parts["weights"]["w"][1:]
    assert float(rest.std()) == pytest.approx(1.2 * 0.5 / 8, rel=0.01)


@pytest.mark.parametrize("where", ["client", "central"])
def test_a_round_without_anybody_releases_noise(where: str) -> None:
    # expected clients 2, M = 4: as one message of nobody's, sigma·S / (2·4)
    mechanism = Mechanism(Privacy(clip=0.5, groups_per_client=4, noise=where), 1.2)
    means = mechanism.averaged(None, [], 2.0, received(), (0, 0, "server"))
    assert means is not None
    assert float(means.parts["weights"]["w"].std()) == pytest.approx(1.2 * 0.5 / 8, rel=0.01)


def test_a_fixed_denominator_is_the_expected_number_of_clients() -> None:
    mechanism = Mechanism(Privacy(clip=0.5, groups_per_client=1), 1.0)
    one = Means({"weights": {"w": torch.full((D,), 6.0)}}, {}, 10, 3, 3.0)  # a mean over 3 where 2 are expected
    means = mechanism.averaged(one, [1, 1, 1], 2.0, received(), (0, 0, "server"))
    assert means is not None
    assert_close(means.parts["weights"]["w"][:1], torch.tensor([6.0 * 3 / 2]))


def test_draws_differ_by_phase_round_client_tensor_and_by_what_they_are_added_to() -> None:
    def draw(*name: int, base: float = 0.0, tensor: str = "w", seed: int = 1) -> tuple[float, ...]:
        tensors = {tensor: torch.full((3,), base, dtype=torch.float64)}
        out = noise.noised(tensors, 1.0, ("noise", seed, *name))[tensor] - base
        return tuple(round(float(x), 9) for x in out)

    draws = [draw(p, r, c) for p in range(2) for r in range(3) for c in range(3)]
    draws += [draw(0, 0, 0, base=1.0), draw(0, 0, 0, tensor="v"), draw(0, 0, 0, seed=2)]
    values = [value for one in draws for value in one]
    assert len(set(values)) == len(values)
    assert draw(0, 1, 2) == draw(0, 1, 2)  # the same release made again is the same to the bit


def test_a_retry_that_comes_out_otherwise_has_noise_of_its_own() -> None:
    first = released([along(0, 3.0)], clip=0.5, groups_per_client=1, sigma=1.0)["w"]
    again = released([along(0, 3.0)], clip=0.5, groups_per_client=1, sigma=1.0)["w"]
    other = released([along(1, 3.0)], clip=0.5, groups_per_client=1, sigma=1.0)["w"]
    assert torch.equal(first, again)
    correlation = float((first[2:] * other[2:]).mean() / (first[2:].std() * other[2:].std()))
    assert abs(correlation) < 6 / math.sqrt(D)


def test_secure_noise_is_gaussian_and_never_the_same() -> None:
    zero = {"w": torch.zeros(D)}
    a, b = (noise.noised(zero, 1.0, ("noise",), secure=True)["w"].double().numpy() for _ in range(2))
    assert np.std(a) == pytest.approx(1.0, abs=0.01)
    assert np.mean(a**4) == pytest.approx(3.0, abs=0.15)  # √(96 / D) = 0.022 is one standard error
    assert abs(np.mean(a * b)) < 6 / math.sqrt(D)
    assert not np.array_equal(a, b)


def test_tied_weights_count_in_the_norm_once_or_for_each_name() -> None:
    # embedding 3 with two further names, head 4: √(9 + 16) = 5; √(3·9 + 16) = 6.557
    update = {"embedding": torch.tensor([3.0]), "head": torch.tensor([4.0])}
    assert norm(update) == pytest.approx(5.0)
    assert norm(update, {"embedding": 2}) == pytest.approx(math.sqrt(43))
    assert_close(clip_update(update, 1.0, {"embedding": 2})["head"], torch.tensor([4 / math.sqrt(43)]))


def test_what_was_clipped_is_never_longer_than_the_clip() -> None:
    generator = torch.Generator().manual_seed(3)
    for length in (0.4999999, 0.5, 0.5000001, 7.0, 1e6):
        update = {"a": torch.randn(1000, generator=generator), "b": torch.randn(50, generator=generator)}
        update = {name: t * (length / norm(update)) for name, t in update.items()}
        assert norm(clip_update(update, 0.5)) <= 0.5


# adaptive clipping


def test_the_clip_moves_towards_the_quantile() -> None:
    # three of four units were left alone: share 0.75, gamma 0.5, eta 0.2: times exp(−0.2·0.25)
    mechanism = Mechanism(Privacy(clip=1.0, groups_per_client=4, adaptive=AdaptiveClip()), 0.0)
    units = [along(k, length) for k, length in enumerate((0.1, 0.9, 1.0, 1.1))]
    parts = mechanism.release(units, received(clip=1.0), (0, 0, 0)).parts
    assert parts[CLIP]["left_alone"].item() == pytest.approx(0.75 - 0.5)
    means = Means(parts, {}, 1, 1, 1.0)
    assert mechanism.next_clip(1.0, means) == pytest.approx(math.exp(-0.2 * 0.25))


def test_the_count_is_paid_for_by_more_noise_on_the_updates() -> None:
    # sigma 1, count 5: z = 1/√(1 − 1/100) = 1.00504; together 1/z² + 1/(2·5)² = 0.99 + 0.01 = 1
    mechanism = Mechanism(Privacy(clip=1.0, adaptive=AdaptiveClip()), 1.0)
    z = mechanism.update_multiplier
    assert 1 / z**2 + 1 / (2 * 5.0) ** 2 == pytest.approx(1.0)
    assert z == pytest.approx(1.0050378)


def test_the_clip_received_is_the_clip_used() -> None:
    mechanism = Mechanism(Privacy(clip=1.0, groups_per_client=1, adaptive=AdaptiveClip()), 0.0)
    sent = mechanism.release([along(0, 3.0)], received(clip=0.25), (0, 0, 0)).parts["weights"]["w"]
    assert float(sent[0]) == pytest.approx(0.25)


# refusal


def test_a_tensor_that_did_not_come_from_the_mechanism_may_not_leave() -> None:
    release = Mechanism(Privacy(clip=0.5, groups_per_client=1), 1.0).release([along(0, 1.0)], received(), (0, 0, 0))
    release.admit(release.parts, "client 3")
    copied = {"weights": {"w": release.parts["weights"]["w"].clone()}}
    with pytest.raises(PrivacyError, match="client 3: weights w was not clipped and noised"):
        release.admit(copied, "client 3")
    with pytest.raises(PrivacyError, match="control w"):
        release.admit({**release.parts, "control": along(0, 1.0)}, "client 3")
    with pytest.raises(PrivacyError):
        Release({}).admit(release.parts, "client 3")


class Leaky(FedAvg):
    """Sends what it learnt in a part that it does not declare."""

    def upload(self, trained: Weights, received: Parts, state: State, visit: Visit) -> Parts:
        parts = super().upload(trained, received, state, visit)
        return {**parts, "notes": dict(parts["weights"])}


def test_the_engine_sends_only_what_was_released_whatever_the_algorithm_says(tmp_path: Path) -> None:
    given = experiment(
        Leaky(), weighting="uniform", rounds=1, privacy=Privacy(clip=0.1, groups_per_client=2, noise_multiplier=1.0)
    )
    run(given, tmp_path / "run")
    import pyarrow.parquet as parquet

    assert set(parquet.read_table(tmp_path / "run" / "ledger.parquet")["part"].to_pylist()) == {"weights"}


def test_an_upload_that_went_around_the_mechanism_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = group._hidden

    def around(*args: Any) -> group.Group:
        done = real(*args)
        return replace(done, upload={"weights": {n: t.clone() for n, t in done.upload["weights"].items()}})

    monkeypatch.setattr(group, "_hidden", around)
    given = experiment(
        "fedavg", weighting="uniform", rounds=1, privacy=Privacy(clip=0.1, groups_per_client=2, noise_multiplier=1.0)
    )
    with pytest.raises(ClientError, match=r"client \d+: weights .* was not clipped and noised"):
        run(given, tmp_path / "run")


class Order(Observer):
    """Keeps every message as it left and as it arrived."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Weights, Weights]] = []

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        self.pairs.append((upload["weights"], arrived["weights"]))


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_with_every_codec_what_is_encoded_was_clipped_and_noised_before(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message that goes into the codec is the mechanism's own, and what arrives is that codec's of it alone."""
    from simfl.cohort import stage as stages

    seen, listener, real = [], Order(), Mechanism.release

    def noted(self: Mechanism, units: Any, received: Parts, name: Any) -> Release:
        out = real(self, units, received, name)
        seen.append(out.parts["weights"])
        return out

    monkeypatch.setattr(Mechanism, "release", noted)
    monkeypatch.setattr(stages.Deaf, "listens", True)
    monkeypatch.setattr(stages.Deaf, "sent", lambda self, client, up, there: listener.sent(client, up, there))
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
