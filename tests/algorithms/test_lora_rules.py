"""Algorithms for low-rank adapters against an independent float64 server, which reads what clients trained."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from lora_runs import LAYERS, RANK, Round, effective, experiment, factors_of, rounds_of, run, start_of

import simfl
from simfl import config
from simfl.aggregation.round import FACTORS, CohortResult, RoundAggregator
from simfl.aggregation.tree import PartSums
from simfl.algorithms.low_rank import DOWN, UP
from simfl.algorithms.slora import chosen
from simfl.data.partition.ranks import by_share
from simfl.errors import ConfigError
from simfl.low_rank import LowRankPair
from simfl.models.low_rank import low_rank_pairs
from simfl.plans.plan import plan
from simfl.protocol import Task
from simfl.runs.results import Run
from simfl.transport.broadcast import Broadcast
from simfl.transport.low_rank import LowRankMessages
from simfl.transport.upload import MessageSpec
from simfl.virtual_time.profiles import client_devices

S = 2.0  # alpha / rank


def slow(*names: object) -> list[object]:
    """Parameters that only the slow tests take."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@cache
def two_rounds(algorithm: str) -> tuple[list[Round], dict[str, object]]:
    """Two rounds of all five clients, and the initial tensors."""
    given = experiment(algorithm)
    with TemporaryDirectory() as folder:
        return rounds_of(Path(folder), given, 2), start_of(given)


def near(found: np.ndarray, expected: np.ndarray, limit: float = 1e-6) -> None:
    assert np.linalg.norm(found - expected) <= limit * max(1.0, np.linalg.norm(expected))


def served(one: Round, start: dict[str, object]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return factors_of({**start, **one.after.model})


@pytest.mark.parametrize("algorithm", ["fedex_lora", "flora", "ffa_lora", "rolora"])
def test_exact_rules_reach_the_mean_of_the_products_after_every_round(algorithm: str) -> None:
    rounds, start = two_rounds(algorithm)
    for one in rounds:
        weights = {**start, **one.before.model}
        found = effective(one.after, start)
        for layer, product in one.mean_products.items():
            before = weights[f"{layer}.base_layer.weight"].detach().double().numpy()  # type: ignore[attr-defined]
            near(found[layer], before + S * product)


def test_fedit_averages_factors_and_logs_its_deviation() -> None:
    rounds, start = two_rounds("fedit")
    for one in rounds:
        found, deviations = served(one, start), []
        for layer in LAYERS:
            near(found[layer][0], one.mean(layer, 0))
            near(found[layer][1], one.mean(layer, 1))
            exact = one.mean_products[layer]
            deviations.append(np.linalg.norm(exact - one.mean(layer, 1) @ one.mean(layer, 0)) / np.linalg.norm(exact))
            assert one.row[f"metric:deviation/{layer}"] == pytest.approx(deviations[-1], rel=1e-4)
        assert one.row["metric:deviation"] == pytest.approx(np.mean(deviations), rel=1e-4)
        assert 0.01 < np.mean(deviations) < 1


def test_flora_starts_anew_in_every_round_with_other_factors_for_each_client() -> None:
    rounds, start = two_rounds("flora")
    for one in rounds:
        down, up = served(one, start)["head"]
        near(down, factors_of(start)["head"][0], 0.0)
        assert not up.any()
        drawn = [one.clients[k]["head"][0] for k in (0, 1)]
        assert np.abs(drawn[0] - drawn[1]).mean() > 0.1


def test_rolora_trains_one_factor_in_each_round() -> None:
    (first, second), start = two_rounds("rolora")
    a, b = factors_of(start)["head"]
    near(served(first, start)["head"][0], a, 0.0)
    assert np.abs(served(first, start)["head"][1] - b).max() > 1e-3
    near(served(second, start)["head"][1], served(first, start)["head"][1], 0.0)
    assert np.abs(served(second, start)["head"][0] - a).max() > 1e-4
    assert first.row["metric:deviation"] < 1e-6


def test_fedsa_keeps_b_on_the_clients() -> None:
    (one, _), _ = two_rounds("fedsa_lora")
    assert all("lora_A" in name for name in one.after.server.weights)
    near(one.after.server.weights["head.lora_A.default.weight"].double().numpy(), one.mean("head", 0))
    assert np.abs(one.clients[1]["head"][1] - one.clients[3]["head"][1]).max() > 1e-3


@pytest.mark.parametrize(
    "algorithm",
    ["flora", "flexlora", "hetlora", *slow("fedit", "fedex_lora", "ffa_lora", "rolora", "lora_fair", "rbla")],
)
def test_one_client_is_aggregated_to_its_own_model_by_every_rule(algorithm: str, tmp_path: Path) -> None:
    given = experiment(algorithm, sizes=(20,))
    start = start_of(given)
    (one,) = rounds_of(tmp_path, given, 1)
    for layer, (down, up) in one.clients[0].items():
        weights = {**start, **one.before.model}
        before = weights[f"{layer}.base_layer.weight"].detach().double().numpy()  # type: ignore[attr-defined]
        near(effective(one.after, start)[layer], before + S * up @ down)


def test_flexlora_serves_the_best_approximation_of_the_mean_product() -> None:
    rounds, start = two_rounds("flexlora")
    for one in rounds:
        for layer, product in one.mean_products.items():
            u, s, v = np.linalg.svd(product)
            down, up = served(one, start)[layer]
            near(up @ down, (u[:, :RANK] * s[:RANK]) @ v[:RANK])
            near(down @ down.T, np.eye(RANK))
            averaged = one.mean(layer, 1) @ one.mean(layer, 0)
            deviation = np.linalg.norm(product - averaged) / np.linalg.norm(product)
            assert one.row[f"metric:deviation/{layer}"] == pytest.approx(deviation, rel=1e-4)


def test_flexlora_without_truncation_is_fedex(tmp_path: Path) -> None:
    found = []
    for algorithm in ("flexlora", "fedex_lora"):
        given = experiment(algorithm, local={"optimizer": "sgd", "learning_rate": 0.05, "batch_size": 8})
        given["model"]["adapters"]["rank"] = 12
        (one,) = rounds_of(tmp_path / algorithm, given, 1)
        found.append(effective(one.after, start_of(given), 8.0 / 12))
    for layer in LAYERS:
        near(found[0][layer], found[1][layer])


def test_lora_fair_corrects_b_by_the_ridge_solution() -> None:
    rounds, start = two_rounds("lora_fair")
    for one in rounds:
        for layer, product in one.mean_products.items():
            a, b = one.mean(layer, 0), one.mean(layer, 1)
            correction = (product - b @ a) @ a.T @ np.linalg.inv(a @ a.T + 0.01 * np.eye(RANK))
            near(served(one, start)[layer][0], a)
            near(served(one, start)[layer][1], b + correction)
            assert np.linalg.norm(product - (b + correction) @ a) < np.linalg.norm(product - b @ a)


def test_slora_starts_adapters_from_what_clients_have_learned_sparsely(tmp_path: Path) -> None:
    settings = {"name": "slora", "sparse_rounds": 1, "density": 0.25}
    given = experiment(settings, train=["*.base_layer.weight"], rounds=2)
    start = start_of(given)
    first, second = rounds_of(tmp_path / "run", given, 2)
    for layer in LAYERS:
        name = f"{layer}.base_layer.weight"
        own = {k: weights[name].detach().double().numpy() for k, weights in first.trained.items()}  # type: ignore[attr-defined]
        before = start[name].detach().double().numpy()  # type: ignore[attr-defined]
        mean = sum(p * (own[k] - before) for k, p in first.shares.items())
        places = chosen(name, start[name], 0.25).numpy()  # type: ignore[arg-type]
        sparse = np.zeros(before.size)
        sparse[places] = np.asarray(mean).ravel()[places]
        assert len(places) == len(set(places.tolist())) == round(0.25 * before.size)
        u, s, v = np.linalg.svd(sparse.reshape(before.shape))
        down, up = served(first, start)[layer]
        near(S * up @ down, (u[:, :RANK] * s[:RANK]) @ v[:RANK])
        near(first.after.server.weights[name].double().numpy(), before, 1e-7)
        near(served(second, start)[layer][0], second.mean(layer, 0))
        near(second.after.server.weights[name].double().numpy(), before, 1e-7)
    own_run = Run(tmp_path / "run")
    floats = {(row["round"], row["direction"]): row["floats"] for row in own_run.ledger().to_pylist()}
    sparse_values = round(0.25 * 12 * 16) + round(0.25 * 16 * 5)
    assert floats == {
        (1, "download"): sparse_values + VALUES, (1, "upload"): sparse_values,
        (2, "download"): VALUES, (2, "upload"): VALUES,
    }  # fmt: skip
    assert own_run.summary["plan"] == plan_matches(given, own_run, tmp_path)


RANKS = (1, 4, 2, 2, 4)  # of the clients


@pytest.mark.parametrize("algorithm", ["hetlora", "rbla", "flexlora", *slow("fedit", "fedex_lora", "flora")])
def test_clients_of_different_ranks_are_aggregated_as_each_rule_says(algorithm: str, tmp_path: Path) -> None:
    given = experiment({"name": algorithm, "rank": list(RANKS)})
    start = start_of(given)
    for one in rounds_of(tmp_path, given, 2):
        for k, own in one.clients.items():
            assert all(not a[RANKS[k] :].any() and not b[:, RANKS[k] :].any() for a, b in own.values())
            assert all(a[: RANKS[k]].any() and b[:, : RANKS[k]].any() for a, b in own.values())
        check_served(algorithm, one, start)


def check_served(algorithm: str, one: Round, start: dict[str, object]) -> None:
    """Compare the server's factors, or its products, with those of a float64 version."""
    weights = {**start, **one.before.model}
    norms = {k: np.sqrt(sum(np.linalg.norm(b @ a) ** 2 for a, b in own.values())) for k, own in one.clients.items()}
    shares = {k: n / sum(norms.values()) for k, n in norms.items()} if algorithm == "hetlora" else one.shares
    for layer, product in one.mean_products.items():
        down, up = served(one, start)[layer]
        if algorithm in ("fedex_lora", "flora"):
            before = weights[f"{layer}.base_layer.weight"].detach().double().numpy()  # type: ignore[attr-defined]
            near(effective(one.after, start)[layer], before + S * product)
        elif algorithm == "flexlora":
            u, s, v = np.linalg.svd(product)
            near(up @ down, (u[:, :RANK] * s[:RANK]) @ v[:RANK])
        else:
            a, b = one.mean(layer, 0, shares), one.mean(layer, 1, shares)
            if algorithm == "rbla":
                rows = np.array([sum(p for k, p in shares.items() if RANKS[k] > i) for i in range(RANK)])
                a, b = a / rows[:, None], b / rows
            near(down, a)
            near(up, b)


def test_bytes_of_each_client_are_those_of_its_rank_in_plan_and_ledger(tmp_path: Path) -> None:
    given = experiment({"name": "fedit", "rank": list(RANKS)}, rounds=1)
    own = run(tmp_path / "run", given)
    for row in own.ledger().to_pylist():
        values = RANKS[row["client"]] * (12 + 16 + 16 + 5)
        assert (row["floats"], row["payload_bytes"]) == (values, 4 * values)
    assert own.summary["plan"] == plan_matches(given, own, tmp_path)


def test_ranks_follow_shares_lists_and_columns(tmp_path: Path) -> None:
    shares = by_share({4: 0.5, 16: 0.3, 64: 0.2}, 10, 7, "rank")
    assert sorted(shares.tolist()) == [4] * 5 + [16] * 3 + [64] * 2
    assert (by_share({4: 0.5, 16: 0.3, 64: 0.2}, 10, 7, "rank") == shares).all()
    assert sorted(by_share({1: 0.5, 2: 0.5}, 5, 1, "rank").tolist()) in ([1, 1, 1, 2, 2], [1, 1, 2, 2, 2])
    for setting, message in (
        ({4: 0.5}, "the shares add up to 0.5"),
        ([4, 4], "2 ranks given, but there are 5 clients"),
        ("provider", "column 'provider' has"),
        ("speed", "no column"),
        ({9: 1.0}, "9 given, but the largest adapter of the model has rank 4"),
    ):
        with pytest.raises(ConfigError, match=f"phases.0.algorithm.rank: .*{message}"):
            run(tmp_path / "refused", experiment({"name": "fedit", "rank": setting}))
        assert not (tmp_path / "refused").exists()


def test_a_column_gives_the_ranks(tmp_path: Path) -> None:
    given = experiment({"name": "fedit", "rank": "rank"}, rounds=1)
    given["data"] = {"name": "lora_runs:WithRanks", "sizes": [3, 20, 5, 33, 9]}
    own = run(tmp_path / "run", given)
    assert {row["client"]: row["floats"] // 49 for row in own.ledger().to_pylist()} == {0: 1, 1: 2, 2: 3, 3: 4, 4: 1}
    assert own.summary["plan"] == plan_matches(given, own, tmp_path)


def test_flora_refuses_adapters_that_do_not_start_at_zero(tmp_path: Path) -> None:
    given = experiment("flora")
    settings = {"r": 2, "target_modules": ["linear"], "init_lora_weights": False}
    given["model"]["adapters"] = {"kind": "peft", "method": "lora", "settings": settings}
    with pytest.raises(ConfigError, match="flora merges adapters that start at zero"):
        run(tmp_path / "run", given)
    assert not (tmp_path / "run").exists()


def test_downloads_that_cannot_be_cut_to_a_rank_are_refused() -> None:
    given = experiment({"name": "fedit", "rank": list(RANKS)}, codec={"download": "nf4"})
    with pytest.raises(ConfigError, match=r"codec\.download: Nf4 cannot be cut to a client's rank"):
        config.parse(given)
    given = experiment({"name": "fedit", "rank": list(RANKS)}, codec={"download": "float16"})
    with pytest.raises(
        ConfigError, match=r"Float16 of updates cannot be cut to a client's rank; allowed: encode: weights"
    ):
        config.parse(given)
    config.parse(
        experiment({"name": "fedit", "rank": list(RANKS)}, codec={"download": {"name": "float16", "encode": "weights"}})
    )
    with pytest.raises(ConfigError, match=r"codec\.download: Int8 cannot be cut to some values of a tensor"):
        config.parse(experiment({"name": "slora", "sparse_rounds": 1}, codec={"download": "int8"}))


@pytest.mark.parametrize("mode", [*slow("sequential"), "vectorized"])
def test_uploads_are_encoded_per_factor_at_the_rank_of_the_client(mode: str, tmp_path: Path) -> None:
    given = experiment(
        {"name": "rbla", "rank": list(RANKS)}, codec={"upload": {"name": "int8", "error_feedback": True}}
    )
    given["execution"] = {"mode": mode, "clients_per_batch": 4}
    own = run(tmp_path / "run", given)
    sizes = {row["client"]: row["payload_bytes"] for row in own.ledger().to_pylist() if row["direction"] == "upload"}
    assert sizes[0] < sizes[2] == sizes[3] < sizes[1] == sizes[4]
    losses = [row["loss"] for row in own.rounds().to_pylist()]
    assert losses[-1] < losses[0]


VALUES = 4 * (12 + 16) + 4 * (16 + 5)  # of both pairs
BASE = 12 * 16 + 16 * 5


@pytest.mark.parametrize("algorithm", ["fedex_lora", "flora", *slow("fedit", "ffa_lora", "fedsa_lora")])
def test_bytes_are_those_of_the_formula_in_plan_and_ledger(algorithm: str, tmp_path: Path) -> None:
    given = experiment(algorithm)
    own, counted = run(tmp_path / "run", given), plan(config.parse(given), tmp_path)
    up = {"ffa_lora": 4 * (16 + 5), "fedsa_lora": 4 * (12 + 16)}.get(algorithm, VALUES) * 3
    down = 0 if algorithm == "flora" else up
    for rank in {"fedex_lora": [16, 16], "flora": [20, 20]}.get(algorithm, []):  # in the second and third round
        down += min(rank * (12 + 16), 12 * 16) + min(rank * (16 + 5), 16 * 5)
    assert own.summary["bytes"] == {"download": 20 * down, "upload": 20 * up, "total": 20 * (down + up)}
    assert counted.bytes == own.summary["bytes"]
    assert own.summary["plan"] == "matches"


def test_a_client_of_rolora_downloads_what_has_changed_since_its_last_round(tmp_path: Path) -> None:
    given = experiment("rolora", clients_per_round=2, participation=None, rounds=6)
    own = run(tmp_path / "run", given)
    rows, last = own.ledger().to_pylist(), dict[int, int]()
    halves = {0: 4 * (12 + 16), 1: 4 * (16 + 5)}  # A, B
    for row in sorted(rows, key=lambda row: (row["round"], row["direction"])):
        number, client = row["round"], row["client"]
        if row["direction"] == "upload":
            assert row["floats"] == halves[number % 2]
        else:
            missed = number - last[client] if client in last else 0
            assert row["floats"] == (halves[1 - number % 2] if missed == 1 else VALUES)
            last[client] = number
    assert own.summary["plan"] == plan_matches(given, own, tmp_path)


def plan_matches(given: dict[str, object], own: object, folder: Path) -> str:
    assert plan(config.parse(given), folder).bytes == own.summary["bytes"]  # type: ignore[attr-defined]
    return "matches"


def test_a_client_that_missed_rounds_downloads_every_change_of_the_base_or_all_of_it(tmp_path: Path) -> None:
    given = experiment("flora", clients_per_round=1, participation=None, rounds=6)
    own = run(tmp_path / "run", given)
    last: dict[int, int] = {}
    for row in own.ledger().to_pylist():
        if row["part"] == "base":
            changes = row["round"] - last.get(row["client"], 1)
            packet = 4 * (12 + 16) + 16 * 5  # that of the head is shorter whole
            assert row["floats"] == min(changes * packet, BASE)
            last[row["client"]] = row["round"]
    assert own.summary["plan"] == plan_matches(given, own, tmp_path)


def test_stacked_factors_have_the_same_bits_however_clients_are_divided() -> None:
    torch.manual_seed(0)
    pair = LowRankPair("layer", "w", "a", "b", 1.0, 2, (3, 5))
    stacked = {"a": torch.randn(7, 2, 5), "b": torch.randn(7, 3, 2)}
    weights, found = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], []
    for sizes in ([7], [4, 3], [1] * 7, [2, 2, 2, 1]):
        total, first = RoundAggregator({}, 7), 0
        for number, size in enumerate(sizes):
            sums = PartSums({FACTORS: "stack"})
            for k in range(first, first + size):
                sums.add({FACTORS: {name: t[k : k + 1] for name, t in stacked.items()}}, weights[k : k + 1], 1, False)
            result = CohortResult(number, size)
            result.sums, result.gathered = sums.totals()[0], sums.gathered
            total.take(result)
            first += size
        found.append(_products(total, pair, weights))
    assert all(torch.equal(one, found[0]) for one in found)
    shares = torch.tensor(weights).double() / 28
    expected = torch.einsum("k,kor,kri->oi", shares, stacked["b"].double(), stacked["a"].double())
    assert torch.allclose(found[0], expected, rtol=1e-12)


def _products(total: RoundAggregator, pair: LowRankPair, weights: list[float]) -> torch.Tensor:
    from simfl.aggregation.columns import Columns

    total.results[0].clients = Columns.of([{"weight": weight, "client": k} for k, weight in enumerate(weights)])
    updates = total.mean(pairs=(pair,))
    assert updates is not None
    assert not updates.gathered
    return updates.products["layer"]


def test_products_are_summed_where_all_factors_together_are_larger(tmp_path: Path) -> None:
    given = experiment("fedex_lora", sizes=(4,) * 12, rounds=1)
    start = start_of(given)
    (one,) = rounds_of(tmp_path, given, 1)  # 12 clients of rank 4 stack to more numbers than the product has
    found = effective(one.after, start)
    for layer, product in one.mean_products.items():
        before = start[f"{layer}.base_layer.weight"].detach().double().numpy()  # type: ignore[attr-defined]
        near(found[layer], before + S * product)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "fedex_lora", "privacy": True}, "ffa_lora, whose update is linear"),
        ({"algorithm": "flora", "secure": True}, "which secure_aggregation hides; allowed: fedit"),
        (
            {"algorithm": {"name": "ffa_lora", "rank": {4: 1.0}}, "privacy": True},
            "algorithm.rank: .*allowed: equal ranks",
        ),
        ({"algorithm": {"name": "fedit", "rank": {4: 1.0}}, "secure": True}, "algorithm.rank: .*allowed: equal ranks"),
        ({"algorithm": "hetlora", "secure": True}, "HetLora combines A and B of single clients, which secure_aggreg"),
    ],
)
def test_what_needs_single_products_is_refused(settings: dict[str, object], message: str) -> None:
    given = experiment(settings["algorithm"], weighting="uniform")  # type: ignore[arg-type]
    if "privacy" in settings:
        given["privacy"] = {"unit": "client", "clip": 1.0, "noise_multiplier": 1.0, "min_clients": 5}
    else:
        given["secure_aggregation"] = {"clip": 1.0}
    with pytest.raises(ConfigError, match=message):
        config.parse(given)


def test_models_without_plain_pairs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no low-rank adapters; allowed: model\.adapters of kind lora"):
        low_rank_pairs(torch.nn.Linear(2, 2), "phases.0.algorithm")
    given = experiment("fedex_lora")
    settings = {"r": 2, "target_modules": ["linear"], "use_dora": True}
    given["model"]["adapters"] = {"kind": "peft", "method": "lora", "settings": settings}
    module = config.parse(given).model.build(Task(1, 5, (12,)))
    with pytest.raises(ConfigError, match="no plain product B A"):
        low_rank_pairs(module, "phases.0.algorithm")


@pytest.mark.parametrize("algorithm", ["rolora", *slow("fedit", "ffa_lora", "fedsa_lora")])
def test_rules_that_need_sums_alone_work_under_secure_aggregation(algorithm: str, tmp_path: Path) -> None:
    given = experiment(algorithm, weighting="uniform", rounds=2)
    given |= {"secure_aggregation": {"clip": 1.0, "masks": "all"}, "evaluate": {"every": 0}}
    own = run(tmp_path / "run", given)
    first, last = (row["loss"] for row in own.rounds().to_pylist())
    assert last < first
    assert own.summary["plan"] == plan_matches(given, own, tmp_path)
    assert "metric:deviation" not in own.rounds().column_names  # no one sees single uploads


@pytest.mark.parametrize("algorithm", ["ffa_lora", *slow("fedit", "rolora")])
def test_rules_without_products_train_under_privacy(algorithm: str, tmp_path: Path) -> None:
    given = experiment(algorithm, weighting="uniform", participation=None, clients_per_round=3, rounds=2)
    given["privacy"] = {"unit": "client", "clip": 1.0, "noise_multiplier": 0.1, "min_clients": 5, "noise": "central"}
    own = run(tmp_path / "run", given)
    assert own.summary["plan"] == plan_matches(given, own, tmp_path)
    assert own.rounds().column_names.count("signal_to_noise") or "metric:signal_to_noise" in own.rounds().column_names


@pytest.mark.parametrize("kind", ["lora", *slow("peft")])
def test_a_changed_base_of_a_model_of_transformers_is_kept_and_exported(kind: str, tmp_path: Path) -> None:
    """GPT-2 stores its weights transposed; the exported model computes with the base as the server has changed it."""
    adapters = {"kind": "lora", "rank": 2, "targets": ["c_attn"]}
    if kind == "peft":
        adapters = {"kind": "peft", "method": "lora", "settings": {"r": 2, "target_modules": ["c_attn"]}}
    config_of = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 96}
    rows = [{"question": f"what is {k} ?", "answers": [str(k)], "shop": f"s{k % 3}"} for k in range(12)]
    own = simfl.run(
        {
            "name": "gpt2",
            "data": {"train": rows, "valid": rows[:3]},
            "partition": {"by": "natural", "column": "shop"},
            "model": {"name": "hf", "config": config_of, "adapters": adapters},
            "phases": [
                {
                    "objective": "chat",
                    "algorithm": "fedex_lora",
                    "rounds": 2,
                    "participation": 1.0,
                    "local": {"optimizer": "adamw", "learning_rate": 0.05, "steps": 3, "batch_size": 4},
                }
            ],
            "evaluate": {"every": 0},
        },
        out=tmp_path / "run",
        backend="inline",
    )
    trained = own.model()
    (name,) = own.snapshot().server.base
    start = dict(own.experiment.model.build(Task(42)).named_parameters())[name]
    assert float((own.snapshot().server.base[name] - start).abs().max()) > 1e-5
    assert torch.equal(dict(trained.named_parameters())[name], own.snapshot().server.base[name])
    assert own.summary["plan"] == "matches"
    own.export(tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(4, 12).reshape(2, 4)
    assert torch.allclose(loaded(input_ids=ids).logits, trained(input_ids=ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("codec", [{}, *slow({"download": {"name": "float16", "encode": "weights"}})])
def test_clients_that_join_slora_late_download_the_adapters_alone(codec: dict[str, object], tmp_path: Path) -> None:
    settings = {"name": "slora", "sparse_rounds": 2, "density": 0.25}
    given = experiment(settings, train=["*.base_layer.weight"], rounds=5, codec=codec)
    given["phases"][0] |= {"participation": None, "clients_per_round": 2}
    own = run(tmp_path / "run", given)
    sparse, seen, newcomers = round(0.25 * 12 * 16) + round(0.25 * 16 * 5), set[int](), 0
    downloads = [row for row in own.ledger().to_pylist() if row["direction"] == "download"]
    for row in sorted(downloads, key=lambda row: row["round"]):
        is_new = row["client"] not in seen
        newcomers += is_new and row["round"] > 2
        assert row["floats"] == (VALUES if row["round"] > 2 else sparse + VALUES * is_new)
        seen.add(row["client"])
    assert newcomers
    assert own.summary["plan"] == plan_matches(given, own, tmp_path)


@pytest.mark.parametrize("codec", ["float16", {"name": "int8", "encode": "update"}, {"name": "int8"}])
def test_tensors_that_are_not_sent_keep_the_values_that_clients_have(codec: object, tmp_path: Path) -> None:
    """A lossy codec would otherwise improve the factor at rest without a byte, or draw it again."""
    phase = config.parse(experiment("rolora", codec={"download": codec})).phases[0]
    spec = MessageSpec(phase.codec, 1, 0, 4, low_rank=LowRankMessages(phase.algorithm))
    down, up = "head.lora_A.default.weight", "head.lora_B.default.weight"
    torch.manual_seed(0)
    weights, broadcast = {down: torch.randn(4, 16), up: torch.randn(5, 4)}, Broadcast()
    received = dict(weights)
    for number in range(4):
        before, (parts, rows, broadcast) = received, broadcast.send(spec, number, {"weights": weights}, [0])
        received = parts["weights"]
        if number:
            sent, kept = (up, down) if number % 2 else (down, up)
            assert torch.equal(received[kept], before[kept])
            assert not torch.equal(received[sent], before[sent])
            assert rows.items_of("floats") == [weights[sent].numel()]
        changed = up if number % 2 == 0 else down
        weights = {**weights, changed: weights[changed] + 0.1 * torch.randn_like(weights[changed])}


@pytest.mark.parametrize("server", [{"optimizer": "momentum", "form": "sum"}, *slow({"optimizer": "adam"})])
def test_a_factor_at_rest_is_not_moved_by_the_server_optimizer(server: dict[str, object], tmp_path: Path) -> None:
    given = experiment("rolora", server={**server, "learning_rate": 0.5})
    start = start_of(given)
    first, second, third = rounds_of(tmp_path, given, 3)
    for layer in LAYERS:
        a, b = zip(*(served(one, start)[layer] for one in (first, second, third)), strict=True)
        near(a[0], factors_of(start)[layer][0], 0.0)
        near(b[1], b[0], 0.0)
        near(a[2], a[1], 0.0)
        assert min(np.abs(a[1] - a[0]).max(), np.abs(b[2] - b[1]).max()) > 1e-4
        if server["optimizer"] == "momentum":  # of B, over the rounds in which it is trained
            deltas = [one.mean(layer, 1) - served_before for one, served_before in ((first, 0.0), (third, b[1]))]
            near(b[2], b[1] + 0.5 * (0.9 * deltas[0] + deltas[1]), 1e-5)


@pytest.mark.parametrize("algorithm", ["flexlora", "slora"])
def test_rules_that_set_weights_refuse_other_server_steps(algorithm: str) -> None:
    for server in ({"optimizer": "adam"}, {"optimizer": "sgd", "learning_rate": 0.5}):
        with pytest.raises(ConfigError, match=rf"phases.0.server: {algorithm} sets weights.*sgd at learning_rate 1"):
            config.parse(experiment(algorithm, server=server, rounds=6))


def test_devices_of_the_profile_give_the_ranks(tmp_path: Path) -> None:
    ranks = {"phone_low": 1, "laptop": 4}
    given = experiment({"name": "fedit", "rank": ranks}, rounds=1)
    given["clients"] = {"profile": {"devices": {"phone_low": 0.4, "laptop": 0.6}, "flops_per_example": 1e6}}
    own = run(tmp_path / "run", given)
    found = {row["client"]: row["floats"] // 49 for row in own.ledger().to_pylist() if row["direction"] == "upload"}
    profile = config.parse(given).clients.profile
    assert profile is not None
    assert found == {k: ranks[name] for k, name in enumerate(client_devices(profile, 5, 42, {}))}
    assert set(found.values()) == {1, 4}
    assert own.summary["plan"] == plan_matches(given, own, tmp_path)


@pytest.mark.parametrize(
    ("rank", "devices", "message"),
    [
        ({"phone_lo": 1, "laptop": 4}, "laptop", "unknown device 'phone_lo'; did you mean 'phone_low'"),
        ({"laptop": 4}, {"phone_low": 0.6, "laptop": 0.4}, "clients have the device 'phone_low', for which no rank"),
        ({"laptop": 4}, None, "'laptop' given; names of devices need clients.profile"),
        ({"laptop": 9}, "laptop", "9 given, but the largest adapter of the model has rank 4"),
        ({"laptop": 0}, "laptop", "0 given for 'laptop'; allowed: ranks, whole numbers of at least 1"),
        ({"phone_low": 1, 4: 0.5}, "laptop", r"allowed: {rank: share of clients} or {device: rank}"),
        ({}, "laptop", r"{} given; allowed: {rank: share of clients} or {device: rank}"),
        ({4: 50}, None, "50 given as the share of rank 4; allowed: above 0 up to 1"),
        ([4, 0, 4, 4, 4], None, "0 is not a rank; allowed: whole numbers of at least 1"),
    ],
)
def test_devices_without_a_rank_are_refused(rank: object, devices: object, message: str, tmp_path: Path) -> None:
    given = experiment({"name": "fedit", "rank": rank})
    if devices is not None:
        given["clients"] = {"profile": {"devices": devices}}
    with pytest.raises(ConfigError, match=f"phases.0.algorithm.rank.*{message}"):
        run(tmp_path / "refused", given)
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(
    ("algorithm", "phase", "message"),
    [
        (
            "flora",
            {"frozen": [DOWN]},
            r"Flora aggregates products B A, but layers\.0\.linear\.lora_A\.default\.weight is",
        ),
        (
            "flexlora",
            {"personal_params": [UP]},
            r"FlexLora aggregates products B A, but .*lora_B.* is frozen or personal",
        ),
        (
            "fedit",
            {"frozen": [UP]},
            r"phases\.0: .*lora_B.* is zero and not trained, so that .*lora_A.* has no gradient",
        ),
        ("fedavg", {"frozen": [UP]}, r"phases\.0: .*lora_B.* is zero and not trained"),
    ],
)
def test_factors_from_which_nothing_is_learned_are_refused(
    algorithm: str, phase: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = experiment(algorithm, **phase)
    given["evaluate"] = {"every": 0, "models": ["local"]}
    with pytest.raises(ConfigError, match=f"(?i){message}"):
        run(tmp_path / "run", given)
    assert not (tmp_path / "run").exists()


def test_a_phase_too_short_for_the_second_stage_of_slora_is_refused() -> None:
    settings = {"name": "slora", "sparse_rounds": 3}
    with pytest.raises(ConfigError, match="rounds: 3 given, but the stages of slora take at least 4 rounds"):
        config.parse(experiment(settings, train=["*.base_layer.weight"]))


def test_a_global_model_with_initial_factors_is_reported(tmp_path: Path) -> None:
    given = experiment("fedsa_lora", rounds=1)
    given["evaluate"] = {"every": 0, "models": ["global", "personal"]}
    own = run(tmp_path / "run", given)
    assert "the global model has the initial" in (own.folder / "log.jsonl").read_text()
