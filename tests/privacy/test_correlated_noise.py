"""Correlated noise, held to dense float64 matrices, patterns tried one by one, and dp-accounting."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from fakes import Stopping, Toy, run, scatter, then, traces
from fakes import experiment as small_experiment
from safetensors.torch import load_file

from simfl import config
from simfl.debug.replay import replay
from simfl.errors import ConfigError, PrivacyError
from simfl.experiment import Experiment, Privacy
from simfl.factorizations.banded import Banded
from simfl.factorizations.base import Factor, Participation, Workload, most_rows
from simfl.factorizations.blt import Blt
from simfl.optimizers.schedules import Cosine
from simfl.optimizers.server import Momentum, Sgd
from simfl.plans.plan import plan
from simfl.privacy import randomness
from simfl.privacy.account import Account
from simfl.privacy.budget import Budget
from simfl.privacy.correlated import Correlation, workload_of
from simfl.privacy.paid import PaidRound, append
from simfl.privacy.randomness import Randomness
from simfl.protocol import State
from simfl.runs.results import Run
from simfl.sampling import participation_of, sample_in_turns

BANDED = Banded(bands=3)
SETTINGS = (
    BANDED,
    Banded(bands=3, toeplitz=True),
    Banded(bands=3, loss="max"),
    Blt(buffers=2),
    Blt(buffers=3, loss="max"),
)


def experiment(**changes: object) -> Experiment:
    """Return 60 clients, of which each of 12 rounds has four on average."""
    settings = {
        "name": "correlated",
        "data": {"name": "digits"},
        "partition": {"by": "iid", "clients": 60},
        "model": {"name": "mlp", "hidden_sizes": [4]},
        "phases": [
            {
                "objective": "classification",
                "algorithm": "dp_fedavg",
                "rounds": 12,
                "weighting": "uniform",
                "clients_per_round": 4,
                "local": {"steps": 1, "batch_size": 4, "optimizer": "sgd", "learning_rate": 0.1},
            }
        ],
        "privacy": {
            "unit": "client",
            "noise": "central",
            "adjacency": "zero_out",
            "epsilon": 4,
            "clip": 0.5,
            "accountant": "pld",
            "factorization": {"name": "banded", "bands": 4},
        },
        "evaluate": {"every": 0},
    }
    return config.parse(config.overridden(settings, [f"{key}={value}" for key, value in changes.items()]))


def with_privacy(given: Experiment, **changes: object) -> Experiment:
    assert given.privacy is not None
    return replace(given, privacy=replace(given.privacy, **changes))  # type: ignore[arg-type]


def dense(factor: Factor) -> np.ndarray:
    """Return C as `advance` implies it: the inverse of what it makes of the rows of the identity."""
    size = factor.participation.rounds
    rows, states = np.eye(size), np.zeros((factor.num_states, size))
    for number in range(size):
        factor.advance(number, rows[number], states)
    return np.linalg.inv(rows)


def patterns(participation: Participation) -> list[tuple[int, ...]]:
    """Return every set of rounds in which a client may take part."""
    found = []
    for count in range(1, participation.participations + 1):
        for rounds in itertools.combinations(range(participation.rounds), count):
            if all(b - a >= participation.separation for a, b in itertools.pairwise(rounds)):
                found.append(rounds)
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("rounds", "gap", "most"), [(10, 3, 2), (11, 4, 3), (9, 3, 3)])
def test_noise_and_sensitivity_are_those_of_the_dense_matrix(
    settings: Banded | Blt, rounds: int, gap: int, most: int
) -> None:
    participation = Participation(rounds, gap, most)
    factor = settings.factor(participation, Workload((1.0,) * rounds))
    matrix = factor.matrix()
    np.testing.assert_allclose(dense(factor), matrix, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=0).max(), factor.column_norm, rtol=1e-12)
    for first in (1, gap, gap + 1, rounds):
        part, gram = matrix[:first, :first], matrix[:first, :first].T @ matrix[:first, :first]
        assert (gram >= -1e-12).all(), "equal updates in all rounds are the worst ones only if no product is negative"
        largest = max(np.linalg.norm(part[:, list(one)].sum(1)) for one in patterns(participation.first(first)))
        np.testing.assert_allclose(factor.sensitivity(first), largest, rtol=1e-12)


def test_unequal_updates_change_no_more_than_equal_ones() -> None:
    factor = Blt(buffers=2).factor(Participation(9, 3, 3), Workload((1.0,) * 9))
    matrix, draws = factor.matrix(), np.random.default_rng(0)
    for _ in range(300):
        updates = draws.standard_normal((3, 4))
        updates /= np.linalg.norm(updates, axis=1, keepdims=True)
        rows = [(one, matrix[:, list(one)] @ updates[: len(one)]) for one in patterns(factor.participation)]
        assert max(np.linalg.norm(change) for _, change in rows) <= factor.sensitivity(9) + 1e-12


def test_the_worst_rows_are_found_among_all_patterns() -> None:
    values = np.random.default_rng(1).random(11)
    for participation in (Participation(11, 3, 2), Participation(11, 4, 3), Participation(11, 1, 11)):
        largest = max(values[list(one)].sum() for one in patterns(participation))
        assert most_rows(values, participation) == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(
    "server",
    [Sgd(0.5), Sgd(1.0, Cosine()), Momentum(0.7, beta=0.8), Momentum(1.0, Cosine(), form="sum")],
    ids=["sgd", "cosine", "momentum", "both"],
)
def test_the_error_is_the_spread_of_models_that_the_server_optimizer_steps_to(
    settings: Banded | Blt, server: Sgd | Momentum
) -> None:
    phase = replace(experiment().phases[0], server=server)
    workload = workload_of(phase)
    factor = settings.factor(Participation(12, 4, 3), workload)
    weights, models = {"w": torch.zeros(12, dtype=torch.float64)}, []
    state: State = {}
    for number in range(12):  # the noise of round s is the s-th unit vector
        delta = {"w": torch.eye(12, dtype=torch.float64)[number]}
        weights, state = server.at(number, 12).step(weights, delta, state)
        models.append(weights["w"].numpy())
    np.testing.assert_allclose(np.stack(models), workload.matrix(), atol=1e-12)
    errors = ((np.stack(models) @ np.linalg.inv(factor.matrix())) ** 2).sum(1)
    np.testing.assert_allclose(factor.squared_errors(workload), errors, rtol=1e-9)


def test_optimized_matrices_beat_independent_noise_and_known_ones() -> None:
    """The square root of the workload is optimal to a factor; its banded form is the start of the optimization."""
    participation, workload = Participation(64, 16, 4), Workload((1.0,) * 64)

    def error(settings: Banded | Blt) -> float:
        factor = settings.factor(participation, workload)
        return math.sqrt(factor.squared_errors(workload).mean()) * factor.sensitivity(64)

    independent = error(Banded(bands=1))
    assert independent == pytest.approx(math.sqrt(4 * 32.5), rel=1e-9)  # k·(T + 1)/2
    root = np.cumprod(np.concatenate([[1.0], (2 * np.arange(1, 16) - 1) / (2 * np.arange(1, 16))]))
    rows = sum(np.diag(np.full(64 - j, c), -j) for j, c in enumerate(root))
    rows = rows / np.linalg.norm(rows, axis=0)
    square_root = math.sqrt(((workload.matrix() @ np.linalg.inv(rows)) ** 2).sum(1).mean() * 4)
    assert error(Banded(bands=16)) < square_root < 0.5 * independent
    assert error(Banded(bands=4)) < 0.6 * independent
    assert error(Banded(bands=16)) < error(Banded(bands=16, toeplitz=True)) < 1.1 * error(Banded(bands=16))
    assert error(Blt(buffers=2)) < 0.45 * independent
    worst = [
        settings.factor(participation, workload).squared_errors(workload).max()
        for settings in (Banded(bands=8), Banded(bands=8, loss="max"))
    ]
    assert worst[1] < worst[0]


@pytest.mark.parametrize(("clients", "count", "rounds"), [(60, 4, 12), (10, 3, 17), (7, 7, 5), (5, 4, 9)])
def test_clients_take_turns(clients: int, count: int, rounds: int) -> None:
    phase = replace(experiment().phases[0], rounds=rounds, clients_per_round=count)
    participation = participation_of(phase, clients, Blt())
    taken = [sample_in_turns(phase, clients, 5, 0, number, participation.separation) for number in range(rounds)]
    assert all(len(set(one)) == count for one in taken)
    for client in range(clients):
        rows = [number for number, one in enumerate(taken) if client in one]
        assert len(rows) <= participation.participations
        assert all(b - a >= participation.separation for a, b in itertools.pairwise(rows))
    assert participation.separation == clients // count
    assert taken != [sample_in_turns(phase, clients, 6, 0, number, 1) for number in range(rounds)] or count == clients


def test_bins_keep_the_separation_and_the_rate() -> None:
    phase = replace(experiment().phases[0], rounds=400, clients_per_round=None, poisson=0.1)
    participation = participation_of(phase, 60, BANDED)
    assert (participation.separation, participation.participations) == (3, 134)
    taken = [sample_in_turns(phase, 60, 5, 0, number, 3) for number in range(400)]
    for client in range(60):
        rows = {number % 3 for number, one in enumerate(taken) if client in one}
        assert len(rows) == 1, "a client belongs to one bin"
    found = sum(map(len, taken)) / (400 * 60)
    assert abs(found - 0.1) < 5 * math.sqrt(0.1 * 0.9 / 24000)
    more = [sample_in_turns(phase, 61, 5, 0, number, 3) for number in range(400)]
    assert [[k for k in one if k < 60] for one in more] == taken, "another client changes nobody else's rounds"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy.factorization.bands": 16}, "16 bands need a separation of at least 16 rounds, but it is 15"),
        ({"privacy.factorization.separation": 16}, "separation: 16 given, but 4 of 60 clients"),
        ({"phases.0.rounds": 40, "privacy.factorization.participations": 2}, "participations: 2 given, but in 40"),
        ({"phases.0.rounds": 4000}, "bands: 4 given, but with 4000 rounds at most 1 can be optimized"),
    ],
)
def test_participation_that_sampling_cannot_keep_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Budget.of(experiment(**changes), None, 60)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("privacy.noise=client", "privacy.noise: client, but the server adds correlated noise"),
        ("privacy.secure=true", "privacy.secure: true, but the noise of later rounds"),
        ("privacy.view=formula", "privacy.view: formula, but"),
        ("privacy.denominator=realised", "privacy.denominator: realised, but"),
        ("privacy.adaptive={}", "privacy.adaptive: set, but"),
        ("privacy.adjacency=add_remove", "another client would change whose turn it is"),
        ("privacy.factorization.name=band", "unknown 'band'"),
    ],
)
def test_settings_without_a_known_sensitivity_are_refused(change: str, message: str) -> None:
    key, _, value = change.partition("=")
    with pytest.raises(ConfigError, match=message):
        experiment(**{key: value})


@pytest.mark.parametrize("name", ["banded", "blt"])
@pytest.mark.parametrize("charged", [1, 7, 40])
def test_epsilon_is_that_of_one_gaussian_mechanism(name: str, charged: int) -> None:
    made = experiment(**{"phases.0.rounds": 40, "privacy.factorization": f"{{name: {name}}}"})
    budget = Budget.of(made, None, 60)
    factor = budget.scheme.correlation(0).factor
    part = factor.matrix()[:charged, :charged]
    largest = max(np.linalg.norm(part[:, list(one)].sum(1)) for one in patterns(factor.participation.first(charged)))
    loss = pld.from_gaussian_mechanism(budget.noise_multiplier * factor.column_norm / largest)
    expected = loss.get_epsilon_for_delta(budget.privacy.delta)
    assert budget.epsilon({0: charged}) == pytest.approx(expected, rel=1e-3)
    assert budget.epsilon({0: charged}) >= expected - 1e-4
    assert budget.epsilon({0: 40}) == pytest.approx(4.0, rel=1e-4)


@pytest.mark.slow
def test_bins_sampled_at_a_rate_give_the_composition_of_sampled_gaussians() -> None:
    made = experiment(**{"phases.0.clients_per_round": "null", "phases.0.poisson": 0.05, "phases.0.rounds": 22})
    budget = Budget.of(made, None, 60)
    single = pld.from_gaussian_mechanism(budget.noise_multiplier, sampling_prob=0.2)  # 4 bins at 0.05 on average
    expected = single.self_compose(6).get_epsilon_for_delta(budget.privacy.delta)
    assert budget.epsilon({0: 22}) == pytest.approx(expected, rel=2e-3)
    blt = with_privacy(made, factorization=Blt())
    ((event, times),) = Budget.of(blt, None, 60).scheme.histories(1.0, {0: 22}, "averages")[0]
    assert (event.sampling_rate, times) == (1.0, 1), "no theorem covers BLT with sampling"


def test_a_group_that_replaces_another_one_changes_a_sum_by_twice_the_clip_norm() -> None:
    fixed = experiment(**{"privacy.epsilon": "null", "privacy.noise_multiplier": 1})
    made = with_privacy(fixed, unit="group", groups_per_client=2, min_groups=5, adjacency="add_remove")
    ((event, _),) = Budget.of(made, None, 60).scheme.histories(1.0, {0: 12}, "averages")[0]
    assert event.noise_multiplier == pytest.approx(0.5)  # one participation in 12 rounds
    zero_out = with_privacy(made, adjacency="zero_out")
    ((event, _),) = Budget.of(zero_out, None, 60).scheme.histories(1.0, {0: 12}, "averages")[0]
    assert event.noise_multiplier == pytest.approx(1.0)


@pytest.mark.parametrize("settings", [Banded(bands=4), Blt(buffers=2)], ids=["banded", "blt"])
def test_the_noise_that_is_added_has_the_scale_of_the_account(settings: Banded | Blt) -> None:
    made = with_privacy(experiment(**{"phases.0.rounds": 40}), factorization=settings)
    budget = Budget.of(made, None, 60)
    ((event, _),) = budget.scheme.histories(1.0, {0: 40}, "averages")[0]
    correlation = budget.scheme.correlation(0)
    tensors = {"a": torch.zeros(20_000, dtype=torch.float64)}
    noise = [correlation.noised(tensors, 1.0, ("x",), number, Randomness.from_seed(1, {}))["a"] for number in range(40)]
    white = correlation.factor.matrix() @ torch.stack(noise).numpy()
    assert white.std() / correlation.factor.sensitivity(40) == pytest.approx(event.noise_multiplier, rel=0.01)
    covariance = np.cov(white)
    assert np.abs(covariance / white.std() ** 2 - np.eye(40)).max() < 6 / math.sqrt(20_000)
    models = np.cumsum(torch.stack(noise).numpy(), axis=0)
    assert np.sqrt((models**2).mean()) == pytest.approx(correlation.error(), rel=0.01)


@pytest.mark.parametrize("settings", [BANDED, Blt(buffers=2)], ids=["banded", "blt"])
def test_noise_is_a_row_of_the_dense_product_and_follows_from_key_and_round(settings: Banded | Blt) -> None:
    participation, workload = Participation(9, 3, 3), Workload((1.0,) * 9)
    tensors = {"a": torch.zeros(2, 3, dtype=torch.float64), "b": torch.zeros(40_000, dtype=torch.float64)}
    key = Randomness.from_seed(1, {})

    def noise(correlation: Correlation, number: int) -> torch.Tensor:
        made = correlation.noised(tensors, 0.3, ("x",), number, key)
        return torch.cat([t.reshape(-1) for t in made.values()])

    one, plain = Correlation(settings, participation, workload), Correlation(Banded(bands=1), participation, workload)
    rows = torch.stack([noise(one, number) for number in range(9)])
    drawn = torch.stack([noise(plain, number) for number in range(9)]).numpy() * one.factor.column_norm
    np.testing.assert_allclose(rows.numpy(), np.linalg.inv(one.factor.matrix()) @ drawn, atol=1e-11)
    resumed = Correlation(settings, participation, workload)
    assert torch.equal(noise(resumed, 6), rows[6]), "the rows before it are made again"
    assert torch.equal(noise(resumed, 7), rows[7])
    assert torch.equal(noise(resumed, 2), rows[2]), "a replayed round"


def test_a_new_key_continues_the_noise_of_the_old_one() -> None:
    correlation = Correlation(BANDED, Participation(6, 3, 2), Workload((1.0,) * 6), first_step=2)
    tensors, name = {"a": torch.zeros(4, dtype=torch.float64)}, ("x",)
    both = Randomness("key", b"b" * 32, stored=((0, b"a" * 32), (5, b"b" * 32)))
    old = [correlation.noised(tensors, 1.0, name, number, Randomness("key", b"a" * 32))["a"] for number in range(3)]
    new = [correlation.noised(tensors, 1.0, name, number, both)["a"] for number in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(old, new[:3], strict=True))
    white = correlation.factor.matrix()[:4, :4] @ torch.stack(new).numpy()
    other = Correlation(Banded(bands=1), Participation(6, 3, 2), Workload((1.0,) * 6))
    drawn = other.noised(tensors, 1.0, name, 3, Randomness("key", b"b" * 32))["a"]
    np.testing.assert_allclose(white[3], drawn.numpy(), atol=1e-12)


def test_a_lost_round_of_another_key_ends_the_run(tmp_path: Path) -> None:
    budget = Budget.of(experiment(), None, 60)
    new = Randomness("key", b"b" * 32, stored=((0, b"a" * 32), (3, b"b" * 32)))
    old = Randomness("key", b"a" * 32).key_id
    for number in (1, 2, 3):
        append(tmp_path, PaidRound(0, number, old), {"epsilon": 1.0})
    account = Account(budget, tmp_path, new)
    assert account.charge({0: 3}, 0, 3) == {0: 4}, "all rounds of the old key count, and none is lost"
    append(tmp_path, PaidRound(0, 4, old), {"epsilon": 1.0})
    with pytest.raises(PrivacyError, match="round 4 of phase 0 was paid for with a key of another platform"):
        account.charge({0: 3}, 0, 3)


RUNS = {
    "banded": Privacy(unit="client", noise="central", factorization=Banded(bands=2)),
    "blt": Privacy(unit="client", noise="central", factorization=Blt(buffers=2)),  # 3 clients take their turn
    "groups": Privacy(noise="central", groups_per_client=2, factorization=Banded(bands=2)),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_bit_identical_scattered_over_workers_and_resumed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    privacy = replace(RUNS[name], clip=0.05, noise_multiplier=0.7, adjacency="zero_out", noise_seed=0)
    sampled: dict[str, Any] = {"poisson": 0.4, "participation": None} if name == "banded" else {"clients_per_round": 3}
    sampled |= {"rounds": 5, "weighting": "uniform", "data": Toy(sizes=(12, 9, 6, 12, 9, 7))}
    algorithm = "group_dp" if name == "groups" else "dp_fedavg"
    mode = "vectorized" if name == "blt" else "sequential"
    given = small_experiment(algorithm, mode, privacy=privacy, **sampled)
    run(given, tmp_path / "whole")
    run(given, tmp_path / "resumed", display=Stopping(3))
    run(given, tmp_path / "resumed", resume=True)
    assert traces(tmp_path / "whole") == traces(tmp_path / "resumed")
    scatter(monkeypatch)
    run(given, tmp_path / "scattered")
    assert traces(tmp_path / "whole") == traces(tmp_path / "scattered")
    made = Run(tmp_path / "whole")
    row = made.clients().to_pylist()[-1]
    assert replay(made, row["round"], row["client"]).equal
    text = " ".join((tmp_path / "whole" / "privacy.md").read_text().split())
    assert "Clients take turns, which sampling enforces" in text
    assert ("Sampling amplifies privacy" in text) == (name == "banded")


def test_a_resumed_run_makes_the_noise_of_its_phase_again_from_the_stored_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(randomness.secrets, "token_bytes", lambda size: bytes(range(size)))
    privacy = replace(RUNS["blt"], clip=0.05, noise_multiplier=0.7, adjacency="zero_out")
    shared: dict[str, Any] = {
        "weighting": "uniform",
        "clients_per_round": 2,
        "privacy": privacy,
        "data": Toy(sizes=(5, 6, 7, 8, 9)),
    }
    first, second = (small_experiment("dp_fedavg", rounds=rounds, **shared) for rounds in (3, 4))
    given = then(first, second)
    run(given, tmp_path / "whole")
    run(given, tmp_path / "resumed", display=Stopping(5))
    assert not any("noise" in name for name in load_file(next((tmp_path / "resumed").rglob("*.safetensors"))))
    run(given, tmp_path / "resumed", resume=True)
    assert traces(tmp_path / "whole") == traces(tmp_path / "resumed")


def test_thousands_of_rounds_are_optimized_in_seconds() -> None:
    participation, workload = Participation(4000, 500, 8), Workload((1.0,) * 4000)
    independent = math.sqrt(8 * 2000.5)
    for settings in (Banded(bands=32, toeplitz=True), Blt(buffers=4)):
        factor = settings.factor(participation, workload)
        error = math.sqrt(factor.squared_errors(workload).mean()) * factor.sensitivity(4000)
        assert error < 0.3 * independent


def test_a_plan_compares_the_error_with_independent_noise_at_equal_epsilon(tmp_path: Path) -> None:
    made = experiment(**{"phases.0.rounds": 40})
    found = plan(made, tmp_path).privacy
    assert found is not None
    assert found.correlation is not None
    assert (found.correlation.separation, found.correlation.participations) == (15, 3)
    deviation = found.noise_multiplier * 0.5 / 4  # sigma·S over the clients of a round
    matrix = np.tril(np.ones((40, 40))) @ np.linalg.inv(Budget.of(made, None, 60).scheme.correlation(0).factor.matrix())
    expected = deviation * math.sqrt((matrix**2).sum(1).mean())
    assert found.correlation.model_error == pytest.approx(expected, rel=1e-9)
    plain = plan(with_privacy(made, factorization=None, epsilon=found.epsilon), tmp_path).privacy
    assert plain is not None
    independent = plain.noise_multiplier * 0.5 / 4 * math.sqrt(20.5)
    assert found.correlation.independent_error == pytest.approx(independent, rel=1e-3)
    assert found.correlation.model_error < 0.6 * independent


@pytest.mark.parametrize("server", ["adam", "momentum"])
def test_every_server_optimizer_has_a_workload(server: str) -> None:
    made = experiment(**{"phases.0.server.optimizer": server})
    assert Budget.of(made, None, 60).model_error(0) > 0.0
