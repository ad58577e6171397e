"""FedSAM, FedRep and Per-FedAvg by hand on quadratic losses, and FedExP's step size."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from fakes import experiment, run
from hand import update, w
from quadratics import Federation, client
from torch.testing import assert_close

from simfl.algorithms.fedexp import FedExP
from simfl.algorithms.fedrep import FedRep
from simfl.algorithms.fedsam import FedSam
from simfl.algorithms.per_fedavg import PerFedAvg
from simfl.errors import ConfigError
from simfl.protocol import AggregatedUpdates, Server

RATE = 0.1


def test_fedsam_takes_the_gradient_rho_uphill() -> None:
    # f = ½·(3(θ₁ − 1)² + 4(θ₂ − 1)²) at 0: g = (−3, −4), ‖g‖ = 5, θ̂ = .5·g/5 = (−.3, −.4), ∇f(θ̂) = (−3.9, −5.6)
    federation = Federation(FedSam(rho=0.5), [client([3.0, 4.0], [1.0, 1.0])], rate=RATE).rounds(1)
    assert_close(federation.weights, torch.tensor([0.39, 0.56], dtype=torch.float64))


def test_fedsam_with_a_zero_gradient_stays_finite() -> None:
    federation = Federation(FedSam(), [client([1.0], [0.0])], rate=RATE).rounds(2)
    assert federation.weights.tolist() == [0.0]


def test_first_order_per_fedavg_takes_the_gradient_after_one_inner_step() -> None:
    # f = ½·2(θ − 1)² at 0: g = −2, θ̃ = .1·2 = .2, ∇f(θ̃) = 2·(.2 − 1) = −1.6
    federation = Federation(PerFedAvg(alpha=0.1), [client([2.0], [1.0])], rate=RATE).rounds(1)
    assert_close(federation.weights, torch.tensor([0.16], dtype=torch.float64))


def test_hessian_free_per_fedavg_multiplies_by_one_minus_alpha_times_the_hessian() -> None:
    # as above, times 1 − alpha·2 = .8; the finite difference of a quadratic is exact
    algorithm = PerFedAvg(alpha=0.1, hessian="free")
    federation = Federation(algorithm, [client([2.0], [1.0])], rate=RATE).rounds(1)
    assert_close(federation.weights, torch.tensor([0.128], dtype=torch.float64))


def test_per_fedavg_reaches_the_minimum_of_the_losses_after_one_inner_step() -> None:
    # F = Σ ½·a(1 − alpha·a)²(θ − c)²: weights a(1 − alpha·a)² = 1·.81 and 4·.36
    clients = [client([1.0], [0.0]), client([4.0], [1.0])]
    federation = Federation(PerFedAvg(alpha=0.1, hessian="free"), clients, rate=0.05).rounds(400)
    assert_close(federation.weights, torch.tensor([1.44 / (0.81 + 1.44)], dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("step", "head", "body"), [(0, 1.0, 0.0), (1, 1.0, 0.0), (2, 0.0, 1.0), (5, 0.0, 1.0)])
def test_fedrep_trains_the_head_first_and_then_the_body(step: int, head: float, body: float) -> None:
    first, second = FedRep(head_steps=2).micro_steps()
    assert (first.trains, second.excludes) == (("head.*",), ("head.*",))
    assert first.active is not None
    assert second.active is not None
    assert (float(first.active(update(step=step))), float(second.active(update(step=step)))) == (head, body)


def test_joint_fedrep_trains_head_and_body_after_the_head_steps() -> None:
    _, second = FedRep(head_steps=2, joint=True).micro_steps()
    assert (second.trains, second.excludes) == (("*",), ())
    with pytest.raises(ConfigError, match="head_steps: 0 never trains the head"):
        FedRep(head_steps=0)


def test_a_glob_of_a_micro_step_that_matches_nothing_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^phases\.0\.algorithm: 'layers\.1\*' matches no tensor; nearest: 'layers\.0"
    ):
        run(experiment(FedRep(head="layers.1*", head_steps=2)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fedexp_extrapolates_by_the_ratio_of_squared_norms() -> None:
    # deltas 3 and −1: mean 1, mean of squares 5, eta_g = 5/(2·(1 + .25)) = 2
    aggregated = AggregatedUpdates(
        {"weights": w(1.0), "squared_norm": {"squared_norm": torch.tensor(5.0)}}, {}, 2, 2, 2.0
    )
    algorithm = FedExP(eps=0.25)
    delta, _ = algorithm.aggregate(Server(w(0.0)), aggregated)
    assert delta["w"].item() == 2.0
    assert float(algorithm.metrics(Server(w(0.0)), aggregated)["server_step_size"]) == 2.0


def test_fedexp_never_steps_less_than_fedavg() -> None:
    federation = Federation(FedExP(), [client([1.0], [1.0])], rate=RATE).rounds(1)
    assert math.isclose(federation.weights.item(), RATE)


def test_fedexp_is_faster_than_fedavg_when_clients_disagree() -> None:
    # orthogonal deltas of three clients: ‖Δ‖² is a third of the mean of ‖Δ_k‖², so eta_g = 1.5
    axes = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    federation = Federation(FedExP(eps=1e-9), [client(axis, axis) for axis in axes], rate=RATE).rounds(5)
    assert_close(federation.weights, torch.full((3,), 1 - (1 - 1.5 * RATE / 3) ** 5, dtype=torch.float64))
