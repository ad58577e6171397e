"""Personal models and mentors of clients that are first sampled late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import experiment, run
from torch.testing import assert_close

from simfl.algorithms.ditto import Ditto
from simfl.algorithms.fedkd import FedKD
from simfl.experiment import Evaluate
from simfl.models.mlp import Mlp
from simfl.runs.results import Run

ALONE = [Ditto(strength=0.0), FedKD(distill=0.0, hidden=0.0)]


def models(given: Any, folder: Path) -> tuple[dict[int, int], dict[int, dict[str, Any]]]:
    """Return the first round of each sampled client, and the final tensors of its own model."""
    run(given, folder)
    found, rows = Run(folder), Run(folder).clients().to_pylist()
    first = {row["client"]: row["round"] for row in reversed(rows)}
    return first, {k: dict(found.client_model(k).named_parameters()) for k in first}


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
@pytest.mark.parametrize("algorithm", ALONE, ids=["ditto", "fedkd"])
def test_a_model_without_a_pull_is_that_of_a_client_alone_whenever_it_is_first_sampled(
    tmp_path: Path, algorithm: Any, mode: str
) -> None:
    settings: dict[str, Any] = {"mode": mode, "model": Mlp(hidden_sizes=(6,)), "clients_per_round": 4}
    settings["participation"] = None
    scored = Evaluate(models=("personal",), every=0)
    first, own = models(experiment(algorithm, evaluate=scored, **settings), tmp_path / "own")
    scored = Evaluate(models=("local",), every=0)
    again, alone = models(experiment(communicate=False, evaluate=scored, **settings), tmp_path / "alone")
    assert first == again
    assert set(first.values()) == {1, 2, 3}
    for client in first:
        assert_close(own[client], alone[client], rtol=1e-4, atol=1e-5)


def test_a_personal_model_can_start_at_the_received_model(tmp_path: Path) -> None:
    scored = Evaluate(models=("personal",), every=0)
    found = {
        start: models(experiment(Ditto(start=start), evaluate=scored), tmp_path / start)
        for start in ("initial", "received")
    }
    (first, initial), (_, received) = found["initial"], found["received"]
    assert set(first.values()) > {1}
    for client, number in first.items():
        equal = all(bool((initial[client][name] == received[client][name]).all()) for name in initial[client])
        assert equal == (number == 1)
