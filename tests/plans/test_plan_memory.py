"""Memory of server, worker and client, counted by hand for a small perceptron; cards and the cohorts that fit them."""

from __future__ import annotations

import pytest
from fakes import experiment

from simfl import cache
from simfl.errors import ConfigError
from simfl.models.mlp import Mlp
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.server import Adam
from simfl.plans.memory import card_bytes
from simfl.plans.plan import plan

W = 4 * (12 * 16 + 16 + 16 * 5 + 5)  # bytes of the toy perceptron: 12 inputs, 16 wide, 5 classes


def memory(*args, card=None, **settings):
    (phase,) = plan(experiment(*args, model=Mlp(hidden_sizes=(16,)), **settings), cache.folder(), card).phases
    return phase.memory


def test_a_server_holds_the_network_and_the_global_weights():
    assert memory().server == 2 * W


def test_a_server_holds_the_moments_of_its_optimizer_too():
    assert memory(server=Adam()).server == 4 * W + 8  # and how many it took


def test_a_server_holds_its_algorithms_state_too():
    assert memory("scaffold").server == 3 * W


@pytest.mark.parametrize(
    ("algorithm", "kept"), [("fedavg", 0), ("scaffold", 1), ("feddc", 2), ("clgecl", 2), ("ditto", 1)]
)
def test_a_client_remembers_what_its_algorithm_keeps(algorithm, kept):
    assert memory(algorithm).client == kept * W


def test_a_client_keeps_its_optimizer_if_it_is_to():
    steps = 4 * 4  # a count of steps for each tensor
    assert memory(optimizer=LocalOptimizer("adam"), keep_optimizer=True).client == 2 * W + steps


def test_a_client_keeps_its_private_head():
    assert memory(personal_params=("head.*",)).client == 4 * (16 * 5 + 5)


def test_a_worker_holds_the_network_and_what_it_received_once():
    found = memory()
    assert found.resident == 2 * W
    assert found.activations > 0
    assert found.each == 2 * W + found.activations  # a client's weights and gradients, and what the pass keeps


def test_what_a_pass_keeps_grows_with_the_batch():
    few, many = (memory(batch_size=size).activations for size in (8, 16))
    assert many == 2 * few


@pytest.mark.parametrize("clients_per_batch", [1, 4, 32])
def test_the_widest_cohort_that_fits_a_card_is_a_power_of_two(clients_per_batch):
    one = memory()
    assert memory(card=one.resident + clients_per_batch * one.each).clients_per_batch == clients_per_batch
    assert memory(card=one.resident + 2 * clients_per_batch * one.each - 1).clients_per_batch == clients_per_batch
    assert memory(card=one.resident + one.each - 1).clients_per_batch == 0


@pytest.mark.parametrize(("text", "given"), [("80GB", 80 * 10**9), ("80 GiB", 80 * 2**30), ("500mb", 5 * 10**8)])
def test_a_card_is_a_number_with_a_unit(text, given):
    assert card_bytes(text) == given


@pytest.mark.parametrize("text", ["", "80 G", "big", "-1GB"])
def test_other_cards_are_refused_in_one_line(text):
    with pytest.raises(
        ConfigError, match=r"^--card: .* given; allowed: a number with MB, GB, MiB or GiB, such as 80GB$"
    ):
        card_bytes(text)
