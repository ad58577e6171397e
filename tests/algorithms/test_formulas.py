"""Formulas of several algorithms against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hand import MASK, outputs, update, w
from torch.testing import assert_close

from simfl.algorithms import ALGORITHMS
from simfl.algorithms.ditto import PERSONAL, Ditto
from simfl.algorithms.robust import Krum
from simfl.protocol import AggregatedUpdates, Server


def total(name: str, trained, received, state=None, out=None, at=None, **settings):
    algorithm = ALGORITHMS[name](**settings)
    out = out or {"student": outputs([[0.0, 0.0]])}
    return algorithm.loss(out, MASK, trained, received, state or {}, at or update()).total(torch.ones(1))


def test_fedprox_pulls_by_half_mu_times_the_squared_distance() -> None:
    # w = (3, 1), received (1, 1): distance² 4; mu 0.5 -> 0.5·0.5·4 = 1
    assert total("fedprox", w(3.0, 1.0), {"weights": w(1.0, 1.0)}, mu=0.5).item() == pytest.approx(1.0)


def test_fedprox_has_a_zero_gradient_where_a_round_starts() -> None:
    start = w(1.0, 2.0)
    trained = {"w": start["w"].clone().requires_grad_()}
    total("fedprox", trained, {"weights": start}).backward()
    assert trained["w"].grad is not None
    assert trained["w"].grad.tolist() == [0.0, 0.0]


def test_scaffold_corrects_the_gradient_by_the_difference_of_the_controls() -> None:
    trained = {"w": torch.tensor([5.0], requires_grad=True)}
    total("scaffold", trained, {"weights": w(1.0), "control": w(0.7)}, {"control": w(0.2)}).backward()
    assert trained["w"].grad is not None
    assert_close(trained["w"].grad, torch.tensor([0.5]))  # c − c_k = 0.7 − 0.2


def test_scaffold_option_two_by_hand() -> None:
    # 4 steps of eta 0.1 from 1.0 to 0.8: (1.0 − 0.8)/(4·0.1) = 0.5; change = −c + 0.5 = 0.3 for c = 0.2
    scaffold = ALGORITHMS["scaffold"]()
    received, state = {"weights": w(1.0), "control": w(0.2)}, {"control": w(0.1)}
    sent = scaffold.upload(w(0.8), received, state, update(steps=4))
    assert_close(sent["control"]["w"], torch.tensor([0.3]))
    assert_close(scaffold.update_state(sent, w(0.8), received, state, update())["control"]["w"], torch.tensor([0.4]))


def test_scaffold_server_moves_its_control_by_the_sampled_share() -> None:
    scaffold = ALGORITHMS["scaffold"]()
    means = AggregatedUpdates(
        {"weights": w(1.0), "control": w(0.5)}, {}, num_clients=10, num_sampled=2, total_weight=2.0
    )
    _, state = scaffold.aggregate(Server(w(0.0), {"control": w(0.1)}), means)
    assert_close(state["control"]["w"], torch.tensor([0.2]))  # 0.1 + 2/10 · 0.5


def test_scaffold_client_without_examples_changes_no_control() -> None:
    received = {"weights": w(1.0), "control": w(0.2)}
    sent = ALGORITHMS["scaffold"]().upload(w(1.0), received, {"control": w(0.1)}, update(steps=0))
    assert sent["control"]["w"].item() == 0.0


@pytest.mark.parametrize(
    ("received", "previous", "expected"),
    [
        ([1.0, 0.0], [1.0, 0.0], math.log(2)),  # all equal
        ([1.0, 0.0], [0.0, 1.0], math.log(1 + math.exp(-1 / 0.5))),  # z = z_w, orthogonal to z_prev; tau 0.5
    ],
)
def test_moon_contrast_by_hand(received: list[float], previous: list[float], expected: float) -> None:
    passes = {"student": [1.0, 0.0], "received": received, "previous": previous}
    out = {name: outputs([[0.0]], [z]) for name, z in passes.items()}
    assert total("moon", {}, {"weights": {}}, out=out, mu=1.0, tau=0.5).item() == pytest.approx(expected)


def test_ditto_pulls_the_personal_model_to_the_received_one() -> None:
    ditto = Ditto(strength=0.5)
    out = {"personal": outputs([[0.0]], sums=2.0)}
    loss = ditto.personal_loss(out, MASK, {PERSONAL + "w": torch.tensor([3.0])}, {"weights": w(1.0)}, {}, update())
    assert loss.total(torch.ones(1)).item() == pytest.approx(2.0 + 0.5 * 0.5 * 4.0)


def gathered(*values: float) -> AggregatedUpdates:
    return AggregatedUpdates({}, {"weights": [w(v) for v in values]}, len(values), len(values), float(len(values)))


def test_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    delta, _ = ALGORITHMS["median"]().aggregate(Server({}), gathered(5.0, 1.0, 100.0, 2.0))
    assert delta["w"].item() == 3.5


def test_krum_selects_the_upload_closest_to_the_others() -> None:
    # n = 5, f = 1: two nearest. From 1.0: 0.1² + 0.2²; from 1.1: 0.1² + 0.1² (least); from 1.2: 0.1² + 0.2²
    delta, _ = Krum(attackers=1).aggregate(Server({}), gathered(1.0, 1.1, 1.2, 50.0, -9.0))
    assert delta["w"].item() == pytest.approx(1.1)


def test_multi_krum_averages_the_best() -> None:
    delta, _ = Krum(attackers=1, keep=3).aggregate(Server({}), gathered(1.0, 1.1, 1.2, 50.0, -9.0))
    assert delta["w"].item() == pytest.approx(1.1)
