"""FedDAT: directions of distillation, presets and ablations, evaluated models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from fakes import experiment, run
from hand import MASK, outputs, update
from torch.testing import assert_close

from simfl.algorithms.fedavg import FedAvg
from simfl.algorithms.feddat import CLIENT, FedDat
from simfl.experiment import Evaluate
from simfl.models.bottleneck import Bottleneck
from simfl.models.call_context import ModelCall, call_context
from simfl.models.mlp import Mlp
from simfl.optimizers.local import LocalOptimizer
from simfl.protocol import Outputs, Task
from simfl.runs.results import Run

Form = Literal["micro", "joint"]
Teacher = Literal["dual", "client", "received"]
KL = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)  # (.75, .25) to (.5, .5)
KL_BACK = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(2.0)
MODEL = Mlp(hidden_sizes=(16,), dropout=0.2, adapters=Bottleneck())
LATE = update(round=99)


def sure(loss: float = 0.0) -> Outputs:
    return outputs([[math.log(3.0), 0.0]], sums=loss)


def unsure(loss: float = 0.0) -> Outputs:
    return outputs([[0.0, 0.0]], sums=loss)


def total(dat: FedDat, name: str, passes: dict[str, Outputs], at=LATE) -> float:
    return getattr(dat, name)(passes, MASK, {}, {}, {}, at).total(torch.ones(1)).item()


def test_each_feddat_side_learns_the_task_and_from_the_other() -> None:
    dat = FedDat(alpha=2.0, beta=3.0)
    assert total(dat, "shared_loss", {"teacher": sure(), "shared": unsure(1.0)}) == pytest.approx(
        1.0 + 2.0 * KL, rel=1e-5
    )
    assert total(dat, "dual_loss", {"shared": sure(), "dual": unsure(1.0)}) == pytest.approx(1.0 + 3.0 * KL, rel=1e-5)
    both = total(dat, "loss", {"shared": unsure(1.0), "dual": sure(4.0)})
    assert both == pytest.approx(5.0 + 2.0 * KL + 3.0 * KL_BACK, rel=1e-5)


def test_feddat_reports_the_task_loss_alone() -> None:
    assert (
        FedDat().shared_loss({"teacher": sure(), "shared": unsure(1.0)}, MASK, {}, {}, {}, LATE).task_mean().item()
        == 1.0
    )


def test_feddat_direction_student_exchanges_the_sides_of_the_divergence() -> None:
    dat, shared = FedDat(alpha=1.0, direction="student"), unsure()
    assert total(dat, "shared_loss", {"teacher": sure(), "shared": shared}) == pytest.approx(KL_BACK, rel=1e-5)
    shared.logits.requires_grad_()
    dat.shared_loss({"teacher": sure(), "shared": shared}, MASK, {}, {}, {}, LATE).total(torch.ones(1)).backward()
    assert shared.logits.grad is not None
    assert shared.logits.grad.abs().sum() > 0


def test_feddat_preset_code_halves_softens_and_has_no_ramp() -> None:
    # at temperature 3: teacher (3^⅓, 1)/(1 + 3^⅓); ½·(CE + 9·KL) from the first round on
    p = 3 ** (1 / 3) / (1 + 3 ** (1 / 3))
    soft = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    loss = total(FedDat(preset="code"), "shared_loss", {"teacher": sure(), "shared": unsure(1.0)}, update(round=0))
    assert loss == pytest.approx(0.5 * (1.0 + 9 * soft), rel=1e-4)


def test_feddat_preset_paper_ramps_up_exponentially_over_five_rounds() -> None:
    dat = FedDat()
    ramp = [dat._ramp(update(round=r)).item() for r in (0, 2, 5, 9)]
    assert ramp == pytest.approx([math.exp(-5), math.exp(-5 * 0.36), 1.0, 1.0])
    assert dat._ramp(update(round=0, steps=4, step=2)).item() == pytest.approx(math.exp(-5 * 0.81))  # half a round


@pytest.mark.parametrize(("teacher", "steps"), [("dual", 2), ("client", 2), ("received", 1)])
def test_feddat_teacher_ablations_and_their_steps(teacher: Teacher, steps: int) -> None:
    dat = FedDat(teacher=teacher)
    assert len(dat.micro_steps()) == steps
    assert dat.micro_steps()[0].excludes == (CLIENT,)
    assert not dat.forwards()["teacher"].grad
    reads_received = any(source == "received" for _, source in dat.forwards()["dual"].sources)
    assert reads_received == (teacher != "client")


def moved(given: FedDat | FedAvg, folder: Path, **settings: Any) -> dict[str, torch.Tensor]:
    usual: dict[str, Any] = {
        "model": MODEL,
        "optimizer": LocalOptimizer("sgd"),
        "personal_params": ("*adapter_client*",),
    }
    run(experiment(given, **usual | settings), folder)
    return Run(folder).snapshot().server.weights


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
@pytest.mark.parametrize("form", ["micro", "joint"])
def test_feddat_without_distillation_trains_the_shared_adapter_as_fedavg(mode: str, form: Form, tmp_path: Path) -> None:
    silent = moved(FedDat(alpha=0.0, beta=0.0, form=form), tmp_path / "dat", mode=mode)
    plain = moved(FedAvg(), tmp_path / "avg", mode=mode)
    assert all(torch.equal(silent[name], t) for name, t in plain.items())
    assert not any("adapter_client" in name for name in silent)


@pytest.mark.parametrize("teacher", ["dual", "client", "received"])
def test_feddat_models_can_be_evaluated(teacher: Teacher, tmp_path: Path) -> None:
    scored = Evaluate(models=("global", "personal", "client", "dual"), every=0)
    heads: dict[str, Any] = {"train": ("head.*",), "personal_params": ("head.*",)}
    given = experiment(FedDat(teacher=teacher), model=MODEL, evaluate=scored, learning_rate=0.5, **heads)
    scores = run(given, tmp_path)["final"]
    assert {"personal.accuracy", "client.accuracy", "dual.accuracy"} <= set(scores)
    values = [scores[f"{name}.accuracy"] for name in ("personal", "client", "dual")]
    if teacher == "dual":
        assert len(set(values)) > 1  # they are different models
    assert all(0 <= value <= 1 for value in values)


def test_feddat_dual_teacher_is_the_shared_model_for_equal_adapters() -> None:

    module, x = MODEL.build(Task(0, 5, (12,))), torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    place = module.layers[0]
    place.adapter_client.load_state_dict(place.adapter_shared.state_dict())
    given = {}
    for branch in ("shared", "dual"):
        with call_context(ModelCall(branch=branch)):
            given[branch] = module(x).logits
    assert_close(given["dual"], given["shared"])
