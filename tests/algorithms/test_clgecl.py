"""CLGECL: duals by hand, FedAvg with full participation, the minimum of the sum."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hand import update, w
from quadratics import Federation, client, minimum
from torch.testing import assert_close

from simfl.algorithms.clgecl import Clgecl
from simfl.algorithms.fedavg import FedAvg

UNEVEN = [client([4.0, 1.0], [1.0, 0.0]), client([1.0, 2.0], [-1.0, 3.0]), client([0.5, 1.0], [2.0, -2.0])]
forms = pytest.mark.parametrize("form", ["averaged", "peaceman_rachford"])


def go(clgecl: Clgecl, state: dict, received: float, reached: float) -> tuple[float, dict]:
    """A update that trains from `received` to `reached`: what is sent, and what is remembered."""
    parts = {"weights": w(received)}
    ready = clgecl.prepare_state(parts, state or clgecl.init_client(parts, update()), update())
    sent = clgecl.upload(w(reached), parts, ready, update())
    return sent["weights"]["w"].item(), clgecl.update_state(sent, w(reached), parts, ready, update())


def test_clgecl_duals_by_hand_over_three_updates_with_skipped_rounds() -> None:
    # update 1: w 1, x 2:  λ 0;                        sends 1;              released w' = 2
    # update 2: w 4, x 5:  λ 0 + (4 − 2) = 2;          sends 1 + 2 = 3;      w' = 7
    # update 3: w 6, x 9:  λ 2 + (6 − 7) = 1;          sends 3 + 1 = 4;      w' = 10
    sent: list[float] = []
    state: dict[str, dict[str, torch.Tensor]] = {}
    for received, reached in ((1.0, 2.0), (4.0, 5.0), (6.0, 9.0)):
        one, state = go(Clgecl(), state, received, reached)
        sent.append(one)
    assert sent == pytest.approx([1.0, 3.0, 4.0])
    assert (state["dual"]["w"].item(), state["last"]["w"].item()) == (1.0, 10.0)


def test_clgecl_peaceman_rachford_doubles_the_step_of_the_dual() -> None:
    # update 2: λ 0 + 2·(4 − 2) = 4; sends 1 + 4 = 5
    _, state = go(Clgecl("peaceman_rachford"), {}, 1.0, 2.0)
    assert go(Clgecl("peaceman_rachford"), state, 4.0, 5.0)[0] == pytest.approx(5.0)


def test_clgecl_with_a_penalty_uploads_the_reflection() -> None:
    # update 1: w 1, y 1, x 2: sends 2·2 − 1 − 1 = 2. update 2: w 4, y 1 + (4 − 2) = 3, x 5: sends 2·5 − 3 − 4 = 3
    sent, state = go(Clgecl(penalty=0.5), {}, 1.0, 2.0)
    assert (sent, state["last"]["w"].item()) == pytest.approx((2.0, 2.0))
    assert go(Clgecl(penalty=0.5), state, 4.0, 5.0)[0] == pytest.approx(3.0)


def test_clgecl_state_follows_from_the_decoded_upload() -> None:
    parts, ready = {"weights": w(1.0)}, {"dual": w(0.5), "last": w(1.0)}
    lossy = {"weights": w(0.25)}  # not the 1.5 that was computed
    assert Clgecl().update_state(lossy, w(2.0), parts, ready, update())["last"]["w"].item() == 1.25


@forms
def test_clgecl_with_full_participation_is_fedavg(form: Literal["averaged", "peaceman_rachford"]) -> None:
    game, plain = Federation(Clgecl(form), UNEVEN, steps=3).rounds(6), Federation(FedAvg(), UNEVEN, steps=3).rounds(6)
    assert_close(game.weights, plain.weights)
    assert_close(sum(game.client_states[k]["dual"]["w"] for k in range(3)), torch.zeros(2, dtype=torch.float64))


@forms
def test_clgecl_with_a_penalty_reaches_the_minimum_of_the_sum(form: Literal["averaged", "peaceman_rachford"]) -> None:
    game = Federation(Clgecl(form, penalty=1.0), UNEVEN, steps=15, rate=0.2).rounds(60)
    assert_close(game.weights, minimum(UNEVEN), rtol=0, atol=1e-3)
