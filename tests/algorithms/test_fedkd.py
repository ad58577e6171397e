"""FedKD: losses of mentor and mentee by hand, a mentor of another size, communicated tensors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import experiment, run
from hand import MASK, update, w
from torch.testing import assert_close

from simfl.algorithms.fedkd import PROJECTION, FedKD
from simfl.client_state import FileClientStore
from simfl.experiment import Evaluate
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.protocol import ModelInfo, Outputs
from simfl.runs.results import Run

KL = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)  # (.75, .25) to (.5, .5)
KL_BACK = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(2.0)


def side(logits: list[float], feature: float, loss: float) -> Outputs:
    return Outputs(
        torch.tensor([logits]), torch.tensor([[feature]]), loss_sums=torch.tensor([loss]), loss_weights=torch.ones(1)
    )


def both() -> dict[str, Outputs]:
    return {"student": side([0.0, 0.0], 1.0, 3.0), "mentor": side([math.log(3.0), 0.0], 5.0, 1.0)}


@pytest.mark.parametrize(("adaptive", "doubt"), [(True, 4.0), (False, 1.0)])
def test_fedkd_losses_by_hand(adaptive: bool, doubt: float) -> None:
    # CE_s + CE_t = 3 + 1; W = 2: (5 − 2·1)² = 9, once for each side
    fedkd, trained = FedKD(adaptive=adaptive), {PROJECTION: torch.tensor([[2.0]])}
    loss = fedkd.loss(both(), MASK, trained, {}, {}, update())
    assert loss.total(torch.ones(1)).item() == pytest.approx(4.0 + (KL + KL_BACK + 18.0) / doubt, rel=1e-5)
    assert loss.task_mean().item() == 3.0  # the mentee's is reported


def test_fedkd_losses_have_no_gradient_for_the_other_side() -> None:
    outputs = both()
    for out in outputs.values():
        out.logits.requires_grad_()
        out.features.requires_grad_()
    loss = FedKD(adaptive=False).loss(outputs, MASK, {PROJECTION: torch.tensor([[2.0]])}, {}, {}, update())
    loss.total(torch.ones(1)).backward()
    student, mentor = outputs["student"], outputs["mentor"]
    assert_close(student.logits.grad, student.logits.softmax(-1).detach() - mentor.logits.softmax(-1).detach())
    assert_close(mentor.logits.grad, mentor.logits.softmax(-1).detach() - student.logits.softmax(-1).detach())
    assert_close(student.features.grad, torch.tensor([[-12.0]]))  # d(5 − 2h)²/dh at 1
    assert_close(mentor.features.grad, torch.tensor([[6.0]]))  # d(h − 2)²/dh at 5


def test_fedkd_mentor_starts_as_a_copy_and_is_kept() -> None:
    sample = side([0.0, 0.0], 1.0, 0.0)
    extra = FedKD().extra_params(ModelInfo(sample, w(1.0), sample), {}, {}, update())
    assert torch.equal(extra["mentor"]["w"], torch.tensor([1.0]))
    trained = {"w": torch.tensor([0.0]), "extra/mentor/w": torch.tensor([7.0]), PROJECTION: torch.eye(1)}
    state = FedKD().update_state({}, trained, {}, {}, update())
    assert FedKD().extra_params(ModelInfo(sample, w(1.0), sample), {}, state, update())["mentor"]["w"].item() == 7.0
    assert FedKD().eval_weights(w(1.0), state)["personal"]["w"].item() == 7.0


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_a_mentor_of_another_size_trains_and_is_evaluated(tmp_path: Path, mode: str) -> None:
    scored = Evaluate(models=("global", "personal"), every=0)
    given = experiment(
        "fedkd", mode, mentor=Mlp(hidden_sizes=(24, 8)), evaluate=scored, participation=1.0, learning_rate=0.3
    )
    summary = run(given, tmp_path / mode)
    assert summary["final"]["personal.accuracy"] > 0.4  # chance is 0.2
    assert Run(tmp_path / mode).client_model(3).layers[0].linear.weight.shape == (24, 12)
    sent = {row["part"]: row["floats"] for row in Run(tmp_path / mode).ledger().to_pylist()}
    assert sent == {"weights": 12 * 16 + 16 + 16 * 5 + 5}  # the mentee alone


def test_execution_modes_agree_with_a_full_mentor_and_adapters(tmp_path: Path) -> None:
    adapted: dict[str, Any] = {
        "model": Mlp(hidden_sizes=(16, 16), adapters=Lora(rank=2, targets=("linear",))),
        "mentor": Mlp(hidden_sizes=(24, 8)),
    }
    found = {}
    for mode in ("sequential", "vectorized"):
        run(experiment("fedkd", mode, participation=1.0, rounds=2, **adapted), tmp_path / mode)
        snapshot = Run(tmp_path / mode).snapshot()
        memory = FileClientStore(tmp_path / mode / "client_states").get(snapshot.client_state(4))
        found[mode] = (snapshot.server.weights, memory["algorithm:mentor"])
    assert_close(found["vectorized"], found["sequential"], rtol=1e-3, atol=1e-5)
