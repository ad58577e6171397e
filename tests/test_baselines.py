"""Baselines of one line each: centralized, local only, fine-tuned, and the last local models of every method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import SIZES, experiment, run, then

from simfl.client_state import EMPTY, FileClientStore
from simfl.config.rules import check
from simfl.errors import ConfigError
from simfl.experiment import Evaluate, Local
from simfl.optimizers.local import LocalOptimizer
from simfl.runs.results import Run
from simfl.training.batches import batches
from simfl.training.plan import ClientPlan, centralized

LOCAL = Local(LocalOptimizer("sgd"), 0.1, epochs=2, batch_size=8)
WHOLE: dict[str, Any] = {"participation": 1.0, "batch_size": 8}


def test_centralized_training_takes_as_many_steps_as_its_clients() -> None:
    clients = [ClientPlan(k, 1.0, (np.arange(10 * k, 10 * k + n),), EMPTY) for k, n in enumerate((3, 9))]
    whole = centralized(clients, LOCAL)
    assert whole.steps_per_unit == 2 * 1 + 2 * 2  # two epochs of ⌈3/8⌉ and ⌈9/8⌉ batches
    table = batches(whole.units[0], LOCAL, "centralized", steps=whole.steps_per_unit)
    assert table.shape == (6, 8)
    assert sorted(set(table[table >= 0].tolist())) == [0, 1, 2, *range(10, 19)]


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_centralized_training_sends_nothing_and_is_one_learner(mode: str, tmp_path: Path) -> None:
    run(experiment(mode=mode, centralized=True, rounds=2, **WHOLE), tmp_path)
    found = Run(tmp_path)
    assert found.ledger().num_rows == 0
    rounds = found.rounds().to_pylist()
    assert [row["examples"] for row in rounds] == [sum(SIZES)] * 2
    assert [row["local_steps"] for row in rounds] == [sum(-(-n // 8) for n in SIZES)] * 2
    assert set(found.snapshot().client_states.values()) <= {EMPTY}


def test_centralized_training_beats_the_mean_of_clients_that_train_alone(tmp_path: Path) -> None:
    scored: dict[str, Any] = {
        "evaluate": Evaluate(models=("global", "personal"), every=0),
        "learning_rate": 0.3,
        "rounds": 4,
    }
    alone = run(experiment(communicate=False, **WHOLE, **scored), tmp_path / "alone")["final"]
    scored["evaluate"] = Evaluate(every=0)
    centralized = run(experiment(centralized=True, **WHOLE, **scored), tmp_path / "centralized")["final"]
    assert centralized["accuracy"] > alone["personal.accuracy"] + 0.1
    assert Run(tmp_path / "alone").ledger().column("payload_bytes").to_pylist().count(0) == 2 * 4 * len(SIZES)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"algorithm": "scaffold"}, "phases.0.algorithm: has no effect with centralized: true"),
        ({"personal_params": ("head.*",)}, "phases.0.personal_params: has no effect with centralized: true"),
        ({"keep_optimizer": True, "optimizer": "adam"}, "phases.0.centralized: true, but local.keep_optimizer"),
    ],
)
def test_centralized_training_refuses_settings_of_clients(settings: dict, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        check(experiment(centralized=True, **settings))


def test_local_only_training_works_in_both_execution_modes(tmp_path: Path) -> None:
    scored: dict[str, Any] = {"evaluate": Evaluate(models=("personal",), every=0), "communicate": False}
    sequential, vectorized = (
        run(experiment(mode=mode, **WHOLE, **scored), tmp_path / mode)["final"] for mode in ("sequential", "vectorized")
    )
    assert sequential["personal.accuracy"] == vectorized["personal.accuracy"] > 0
    assert Run(tmp_path / "vectorized").ledger().column("payload_bytes").to_pylist() == [0] * (2 * 3 * len(SIZES))


def test_fine_tuning_after_the_last_round_is_a_phase_that_does_not_communicate(tmp_path: Path) -> None:
    together = experiment(evaluate=Evaluate(models=("global", "personal"), every=0), learning_rate=0.3, **WHOLE)
    tuned = experiment(communicate=False, rounds=1, epochs=3, learning_rate=0.3, **WHOLE)
    given = then(together, replace(tuned, evaluate=together.evaluate))
    run(given, tmp_path / "both")
    run(together, tmp_path / "first")
    both, first = Run(tmp_path / "both"), Run(tmp_path / "first")
    store = FileClientStore(tmp_path / "both" / "client_states")
    weights = store.get(both.snapshot().client_state(4))["personal_params:weights"]
    start = first.snapshot().model
    assert not torch.equal(weights["head.weight"], start["head.weight"])
    assert all(torch.equal(both.snapshot().model[name], t) for name, t in start.items())  # the global model stays


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "ditto"])
def test_local_models_of_any_method_can_be_evaluated(algorithm: str, tmp_path: Path) -> None:
    scored = Evaluate(models=("global", "local"), splits=("valid",), every=0)
    given = experiment(algorithm, evaluate=scored, rounds=1, clients_per_round=3, learning_rate=0.3)
    final = run(given, tmp_path)["final"]
    assert "local.accuracy" in final
    found = Run(tmp_path)
    sampled = [row["client"] for row in found.clients().to_pylist()]
    store, snapshot = FileClientStore(tmp_path / "client_states"), found.snapshot()
    for client in range(len(SIZES)):
        kept = store.get(snapshot.client_state(client))
        assert ("local:weights" in kept) == (client in sampled)
    # the mean of the stored models is the new global one
    if algorithm == "fedavg":
        weights = [SIZES[k] / sum(SIZES[j] for j in sampled) for k in sampled]
        stored = [store.get(snapshot.client_state(k))["local:weights"]["head.weight"] for k in sampled]
        mean = sum(w * t for w, t in zip(weights, stored, strict=True))
        torch.testing.assert_close(mean, snapshot.server.weights["head.weight"])


def test_the_local_model_is_stored_only_if_it_is_evaluated(tmp_path: Path) -> None:
    run(experiment(rounds=1), tmp_path)
    assert set(Run(tmp_path).snapshot().client_states.values()) <= {EMPTY}
