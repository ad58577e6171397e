"""FedDC against its formulas."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from hand import MASK, outputs, update, w
from quadratics import Federation, client, minimum
from torch.testing import assert_close

from simfl.algorithms.fedavg import FedAvg
from simfl.algorithms.feddc import FedDC

UNEVEN = [
    client([4.0, 1.0], [1.0, 0.0]),
    client([1.0, 2.0], [-1.0, 3.0]),
    client([0.5, 1.0], [2.0, -2.0], examples=4.0),
]
STATE = {"drift": w(0.5), "control": w(0.2)}


def test_feddc_loss_by_hand() -> None:
    # θ = 3, w = 1, h = 0.5, alpha 0.4: 0.5·0.4·(3 − 0.5)² = 1.25; 3·(g − g_k) = 3·(0.7 − 0.2) = 1.5
    out, received = {"student": outputs([[0.0]])}, {"weights": w(1.0), "control": w(0.7)}
    loss = FedDC(alpha=0.4).loss(out, MASK, w(3.0), received, STATE, update())
    assert loss.total(torch.ones(1)).item() == pytest.approx(2.75)


@pytest.mark.parametrize(("drift", "sent"), [("all", 0.4), ("sampled", 1.3)])  # δ = 0.4; h + 2δ = 0.5 + 0.8
def test_a_feddc_client_update_by_hand(drift: Literal["all", "sampled"], sent: float) -> None:
    # 4 steps of 0.1 move θ from 1 to 1.4: the mean gradient is −δ/L = −1; g_k⁺ − g_k = −g − δ/L = −0.7 − 1
    feddc, received = FedDC(drift=drift), {"weights": w(1.0), "control": w(0.7)}
    upload = feddc.upload(w(1.4), received, STATE, update(steps=4))
    assert_close((upload["weights"]["w"], upload["control"]["w"]), (torch.tensor([sent]), torch.tensor([-1.7])))
    after = feddc.update_state(upload, w(1.4), received, STATE, update(steps=4))
    assert_close((after["drift"]["w"], after["control"]["w"]), (torch.tensor([0.9]), torch.tensor([-1.5])))


def test_feddc_client_without_examples_changes_nothing() -> None:
    received = {"weights": w(1.0), "control": w(0.7)}
    upload = FedDC().upload(w(1.0), received, STATE, update(steps=0, weight=0.0))
    assert (upload["weights"]["w"].item(), upload["control"]["w"].item()) == (0.0, 0.0)


def test_feddc_without_pull_and_control_is_fedavg_plus_the_mean_drift() -> None:
    game, plain = Federation(FedDC(alpha=0.0, control=False), UNEVEN, steps=3), Federation(FedAvg(), UNEVEN, steps=3)
    assert_close(game.rounds(1).weights, 2.0 * plain.rounds(1).weights)  # after one round the drift is the move itself
    assert_close(game.server.state["drift"]["w"], plain.weights)


def test_both_feddc_drifts_agree_with_full_participation() -> None:
    games = [
        Federation(FedDC(alpha=0.1, drift=drift), UNEVEN, steps=3, rate=0.05).rounds(5) for drift in ("all", "sampled")
    ]
    assert_close(games[0].weights, games[1].weights)


def test_feddc_server_means_are_the_clients_means_with_partial_participation() -> None:
    game = (
        Federation(FedDC(alpha=0.1), UNEVEN, steps=5, weighting="examples")
        .rounds(2, [0, 1])
        .rounds(3, [1])
        .rounds(1, [2])
    )
    for key in ("drift", "control"):
        mean = sum(game.client_states[k][key]["w"] for k in range(3)) / 3
        assert_close(game.server.state[key]["w"], mean)


def test_feddc_comes_closer_to_the_minimum_of_the_sum_than_fedavg() -> None:
    goal, settings = minimum(UNEVEN), dict[str, Any](steps=5, rate=0.2)
    off = {
        a: (Federation(a, UNEVEN, **settings).rounds(40).weights - goal).norm().item() for a in (FedDC(0.1), FedAvg())
    }
    assert off[FedDC(0.1)] < 0.1 * off[FedAvg()]
