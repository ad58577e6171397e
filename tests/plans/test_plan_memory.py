"""Memory of server, worker and client, computed by hand for a small perceptron, and clients that fit a GPU."""

from __future__ import annotations

import pytest
import torch
from fakes import SIZES, experiment
from torch.nn import functional

from simfl import files
from simfl.config import parse
from simfl.errors import ConfigError
from simfl.models.mlp import Mlp
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.server import Adam
from simfl.plans.live_memory import LiveMemory, step_peak
from simfl.plans.memory import card_bytes
from simfl.plans.plan import plan

EXAMPLES = sum(SIZES)
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


def test_worker_memory_includes_the_model_received_parts_and_examples_once():
    found = memory()
    assert found.resident == 2 * W + EXAMPLES * (12 * 4 + 8)  # an example: 12 numbers and its class
    assert found.step > W  # gradients and activations
    assert found.each == W + found.step  # the weights of a client, and what its training step creates


def test_activations_grow_with_the_batch_size():
    few, more, most = (memory(batch_size=size).step for size in (64, 128, 256))
    assert most - more == 2 * (more - few) > 0


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


def test_a_step_holds_what_an_equal_step_with_values_allocates():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    x, y = torch.randn(32, 64), torch.randint(8, (32,))

    def loss_of(weights):
        return functional.cross_entropy(torch.func.functional_call(network, weights, (x,)), y)

    leaves = dict(network.named_parameters())
    known = LiveMemory([*leaves.values(), x, y])
    with known:
        gradients = torch.autograd.grad(loss_of(leaves), list(leaves.values()))
    del gradients
    assert known.live == 0
    assert step_peak(loss_of, leaves, [x, y]) == step_peak(loss_of, leaves, [x, y], traced=True) == known.peak
    hidden, weights = 32 * 256 * 4, sum(t.nbytes for t in leaves.values())
    assert hidden + weights <= known.peak <= 2 * hidden + weights  # all gradients, and that of the hidden layer


@pytest.mark.parametrize("masked", [False, True])
def test_attention_holds_no_matrix_of_scores(masked):
    long, heads = 512, 4
    q = torch.randn(1, heads, long, 16, requires_grad=True)
    mask = torch.ones(1, 1, long, long, dtype=torch.bool) if masked else None
    matrix = heads * long * long * 4

    def loss_of(weights):
        return functional.scaled_dot_product_attention(*[weights["q"]] * 3, attn_mask=mask).sum()

    known = [mask] if masked else []
    peak = step_peak(loss_of, {"q": q}, known, traced=True)
    assert 2 * q.nbytes <= peak < (2 * matrix if masked else matrix)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_of_transformers_is_planned_with_its_activations(checkpointing):
    rows = [{"text": "a few words " * n, "label": "yes"} for n in (1, 20)]
    config = {"model_type": "distilbert", "dim": 32, "n_layers": 6, "n_heads": 4, "hidden_dim": 128}
    sizes = [_planned(rows[:count], config, checkpointing) for count in (1, 2)]
    assert sizes[0] < sizes[1]  # planned with the longest text
    if checkpointing:
        assert sizes[1] < _planned(rows, config, False)


def _planned(rows, config, checkpointing):
    spec = {
        "name": "memory", "data": {"train": rows, "valid": rows}, "partition": {"by": "iid", "clients": 1},
        "model": {"name": "hf", "config": config, "task": "sequence_classification", "checkpointing": checkpointing},
        "phases": [{"objective": "text_classification", "rounds": 1, "clients_per_round": 1,
                    "local": {"optimizer": "adamw", "learning_rate": 1e-3, "batch_size": 8}}],
    }  # fmt: skip
    (phase,) = plan(parse(spec), files.cache_folder()).phases
    assert phase.memory.step is not None
    return phase.memory.step
