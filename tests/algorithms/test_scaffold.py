"""SCAFFOLD: both options, and the sum of its controls."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hand import update, w
from quadratics import Federation, client, minimum
from torch.testing import assert_close

from simfl.algorithms.scaffold import Scaffold

EQUAL = [client([2.0, 1.0], [1.0, 0.0]), client([2.0, 1.0], [-1.0, 3.0]), client([2.0, 1.0], [3.0, -1.0])]
UNEVEN = [client([4.0, 1.0], [1.0, 0.0]), client([1.0, 2.0], [-1.0, 3.0]), client([0.5, 1.0], [2.0, -2.0])]
Option = Literal["i", "ii"]
options = pytest.mark.parametrize("option", ["i", "ii"])


@options
def test_scaffold_control_after_one_full_batch_step_is_the_gradient_at_the_received_model(
    option: Option,
) -> None:
    game = Federation(Scaffold(option), UNEVEN, steps=1).rounds(1)
    for k, one in enumerate(UNEVEN):
        assert_close(game.client_states[k]["control"]["w"], one.curvature * (0.0 - one.centre))  # f′(0)


@options
def test_scaffold_controls_of_all_clients_sum_to_n_times_the_servers(option: Option) -> None:
    game = Federation(Scaffold(option), UNEVEN, steps=4).rounds(2, [0, 2]).rounds(2, [1]).rounds(1, [1, 2])
    total = sum(game.client_states[k]["control"]["w"] for k in range(3))
    assert_close(total, 3 * game.server.state["control"]["w"])


def test_scaffold_option_one_cancels_drift_from_the_second_round_for_equal_curvature() -> None:
    # H(θ − a_k) − H(w_0 − a_k) + H(w_0 − ā) = H(θ − ā): every client follows gradient descent on the mean loss
    game = Federation(Scaffold("i"), EQUAL, steps=3, rate=0.1).rounds(1)
    before, goal = game.weights, minimum(EQUAL)
    # the controls are of the start 0, where round 1 began
    assert_close(game.rounds(1).weights - goal, (1 - 0.1 * EQUAL[0].curvature) ** 3 * (before - goal))


@options
def test_scaffold_reaches_the_minimum_of_the_sum(option: Option) -> None:
    assert_close(Federation(Scaffold(option), UNEVEN, steps=5).rounds(80).weights, minimum(UNEVEN), rtol=0, atol=1e-4)


def test_scaffold_option_one_by_hand() -> None:
    # two batches: gradient 1 weighing 3, gradient 5 weighing 1: (3·1 + 1·5)/4 = 2; minus c_k = 0.5
    state = {"control": w(0.5), "gradient": w(8.0), "count": {"count": torch.tensor(4.0)}}
    received = {"weights": w(1.0), "control": w(0.0)}
    sent = Scaffold("i").upload(w(0.7), received, state, update(steps=2))
    assert_close((sent["weights"]["w"], sent["control"]["w"]), (torch.tensor([-0.3]), torch.tensor([1.5])))
    assert set(Scaffold("i").update_state(sent, w(0.7), received, state, update())) == {"control"}
