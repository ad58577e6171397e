"""FedDyn against its formulas, and against FedAvg where their fixed points differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hand import MASK, outputs, update, w
from quadratics import Federation, client, minimum
from torch.testing import assert_close

from simfl.algorithms.fedavg import FedAvg
from simfl.algorithms.feddyn import FedDyn
from simfl.protocol import AggregatedUpdates, Server

UNEVEN = [
    client([4.0, 1.0], [1.0, 0.0]),
    client([1.0, 2.0], [-1.0, 3.0]),
    client([0.5, 1.0], [2.0, -2.0], examples=4.0),
]


def test_feddyn_loss_is_a_linear_and_a_proximal_term() -> None:
    # θ = 3, w = 1, h = 0.5, alpha 0.2: 0.5·0.2·2² − 3·0.5 = 0.4 − 1.5
    out, received = {"student": outputs([[0.0]])}, {"weights": w(1.0)}
    loss = FedDyn(alpha=0.2).loss(out, MASK, w(3.0), received, {"gradient": w(0.5)}, update())
    assert loss.total(torch.ones(1)).item() == pytest.approx(-1.1)


def test_feddyn_client_state_is_the_gradient_at_its_solution() -> None:
    # exact solution of θ ↦ ½(θ − 5)² + ½·alpha·θ² from w = 0, h = 0, alpha 0.25: θ = 5/1.25 = 4, f′(4) = −1 = −alpha·4
    sent = {"weights": w(4.0)}
    state = FedDyn(alpha=0.25).update_state(sent, w(4.0), {"weights": w(0.0)}, {"gradient": w(0.0)}, update())
    assert_close(state["gradient"]["w"], torch.tensor([-1.0]))


def test_feddyn_server_step_by_hand() -> None:
    # alpha 0.5, 2 of 10 clients moved by 1 on average: h = 0.1 − 0.5·0.2·1 = 0; delta = 1 − 0/0.5
    means = AggregatedUpdates({"weights": w(1.0)}, {}, num_clients=10, num_sampled=2, total_weight=2.0)
    delta, state = FedDyn(alpha=0.5).aggregate(Server(w(0.0), {"gradient": w(0.1)}), means)
    assert_close((delta["w"], state["gradient"]["w"]), (torch.tensor([1.0]), torch.tensor([0.0])))


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_feddyn_reaches_the_minimum_of_the_sum_where_fedavg_does_not(weighting: str) -> None:
    goal = minimum(UNEVEN, weighted=weighting == "examples")
    settings: dict[str, Any] = {"steps": 10, "rate": 0.2, "weighting": weighting}
    assert_close(Federation(FedDyn(alpha=0.5), UNEVEN, **settings).rounds(40).weights, goal, rtol=0, atol=1e-4)
    assert (Federation(FedAvg(), UNEVEN, **settings).rounds(40).weights - goal).norm() > 0.1


def test_feddyn_server_gradient_is_the_clients_mean_with_partial_participation() -> None:
    game = Federation(FedDyn(alpha=0.5), UNEVEN, steps=5).rounds(2, [0, 1]).rounds(3, [1]).rounds(1, [2, 0])
    mean = sum(game.client_states[k]["gradient"]["w"] for k in range(3)) / 3
    assert_close(game.server.state["gradient"]["w"], mean)
