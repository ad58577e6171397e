"""Memory of server, worker and client, computed by hand for a small perceptron, and clients that fit a GPU."""

from __future__ import annotations

import pytest
from fakes import experiment

from simfl import files
from simfl.errors import ConfigError
from simfl.models.mlp import Mlp
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.server import Adam
from simfl.plans.memory import card_bytes
from simfl.plans.plan import plan

W = 4 * (12 * 16 + 16 + 16 * 5 + 5)  # bytes of the toy perceptron: 12 inputs, 16 wide, 5 classes


def memory(*args, card=None, **settings):
    (phase,) = plan(experiment(*args, model=Mlp(hidden_sizes=(16,)), **settings), files.cache_folder(), card).phases
    return phase.memory


def test_server_memory_is_the_model_and_the_global_weights():
    assert memory().server == 2 * W


def test_server_memory_includes_the_optimizer_state():
    assert memory(server=Adam()).server == 4 * W + 8  # and the step counter


def test_server_memory_includes_the_algorithm_state():
    assert memory("scaffold").server == 3 * W


@pytest.mark.parametrize(
    ("algorithm", "kept"), [("fedavg", 0), ("scaffold", 1), ("feddc", 2), ("clgecl", 2), ("ditto", 1)]
)
def test_client_memory_is_the_client_state_of_the_algorithm(algorithm, kept):
    assert memory(algorithm).client == kept * W


def test_client_memory_includes_a_kept_optimizer():
    steps = 4 * 4  # a step counter per tensor
    assert memory(optimizer=LocalOptimizer("adam"), keep_optimizer=True).client == 2 * W + steps


def test_client_memory_includes_personal_parameters():
    assert memory(personal_params=("head.*",)).client == 4 * (16 * 5 + 5)


def test_worker_memory_includes_the_model_and_received_parts_once():
    found = memory()
    assert found.resident == 2 * W
    assert found.activations > 0
    assert found.each == 2 * W + found.activations  # weights, gradients and saved activations of a client


def test_activations_grow_with_the_batch_size():
    few, many = (memory(batch_size=size).activations for size in (8, 16))
    assert many == 2 * few


@pytest.mark.parametrize("clients_per_batch", [1, 4, 32])
def test_the_clients_per_batch_that_fit_a_card_are_a_power_of_two(clients_per_batch):
    one = memory()
    assert memory(card=one.resident + clients_per_batch * one.each).clients_per_batch == clients_per_batch
    assert memory(card=one.resident + 2 * clients_per_batch * one.each - 1).clients_per_batch == clients_per_batch
    assert memory(card=one.resident + one.each - 1).clients_per_batch == 0


@pytest.mark.parametrize(("text", "given"), [("80GB", 80 * 10**9), ("80 GiB", 80 * 2**30), ("500mb", 5 * 10**8)])
def test_a_card_size_is_a_number_with_a_unit(text, given):
    assert card_bytes(text) == given


@pytest.mark.parametrize("text", ["", "80 G", "big", "-1GB"])
def test_a_wrong_card_size_is_refused_in_one_line(text):
    with pytest.raises(
        ConfigError, match=r"^--card: .* given; allowed: a number with MB, GB, MiB or GiB, such as 80GB$"
    ):
        card_bytes(text)
