"""FedNova: normalized deltas, so that clients with more steps do not count more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hand import update, w
from quadratics import Federation, client, minimum
from torch.testing import assert_close

from simfl.algorithms.fedavg import FedAvg
from simfl.algorithms.fednova import FedNova
from simfl.optimizers.local import LocalOptimizer
from simfl.protocol import AggregatedUpdates, Server

EQUAL = [client([1.0], [2.0]), client([1.0], [-1.0])]


def test_a_fednova_round_by_hand() -> None:
    # one client goes 0.8 in 4 steps, another 0.3 in 1: means of 0.2 and 0.3 and of 4 and 1 are 0.25 and 2.5
    nova, received = FedNova(), {"weights": w(1.0)}
    sent = [nova.upload(w(1.8), received, {}, update(steps=4)), nova.upload(w(1.3), received, {}, update(steps=1))]
    assert [s["steps"]["steps"].item() for s in sent] == pytest.approx([4.0, 1.0])
    parts = {part: {n: 0.5 * (sent[0][part][n] + sent[1][part][n]) for n in sent[0][part]} for part in sent[0]}
    delta, _ = nova.aggregate(Server(w(1.0)), AggregatedUpdates(parts, {}, 2, 2, 2.0))
    assert delta["w"].item() == pytest.approx(0.625)


def test_fednova_counts_a_client_without_examples_as_no_step() -> None:
    sent = FedNova().upload(w(1.0), {"weights": w(1.0)}, {}, update(steps=0))
    assert (sent["weights"]["w"].item(), sent["steps"]["steps"].item()) == (0.0, 0.0)


def test_fednova_reaches_the_minimum_where_fedavg_favours_clients_with_more_steps() -> None:
    # small steps: fixed points are where Σ p_k·a_k·f_k′ = 0 for FedAvg and Σ p_k·f_k′ = 0 for FedNova
    settings: dict[str, Any] = {"steps": [8, 1], "rate": 0.01}
    assert_close(Federation(FedNova(), EQUAL, **settings).rounds(300).weights, minimum(EQUAL), rtol=0, atol=0.05)
    assert (
        Federation(FedAvg(), EQUAL, **settings).rounds(300).weights.item() > 1.5
    )  # towards the first client's centre of 2


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5}, {"momentum": 0.9, "nesterov": True}],
)
def test_total_rate_is_the_distance_of_sgd_along_a_constant_gradient(settings: dict) -> None:
    optimizer, rates = LocalOptimizer("sgd", settings), np.array([0.1, 0.1, 0.05])
    weight = torch.zeros(1, dtype=torch.float64)
    torch_one = optimizer.build([weight], 0.1)
    for rate in rates:
        torch_one.param_groups[0]["lr"], weight.grad = float(rate), torch.ones_like(weight)
        torch_one.step()
    assert optimizer.total_rate(rates) == pytest.approx(-weight.item())


def test_total_rate_with_momentum_is_the_closed_form_of_fednova() -> None:
    # a = (τ − ρ(1 − ρ^τ)/(1 − ρ))/(1 − ρ) with τ = 5, ρ = .9
    length = LocalOptimizer("sgd", {"momentum": 0.9}).total_rate(np.full(5, 0.2))
    assert length / 0.2 == pytest.approx((5 - 0.9 * (1 - 0.9**5) / 0.1) / 0.1)
