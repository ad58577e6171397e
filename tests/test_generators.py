"""Random generators of user code: found wherever an object holds them, seeded together, and watched."""

# ruff: noqa: NPY002  (users draw from numpy's global generator)

import functools
import random
import secrets

import numpy as np
import pytest
import torch
from torch import nn

from simfl.generators.process import global_states_kept
from simfl.generators.search import find_generators
from simfl.generators.watched import Generators
from simfl.models.base import seeded

SHARED = np.random.default_rng(1)  # a variable of the module


class Layer(nn.Module):
    """Has a generator of the class, and functions that read one of the module."""

    of_class = random.Random(2)

    def __init__(self) -> None:
        super().__init__()
        own = torch.Generator()
        self.tables = {"noise": [np.random.RandomState(3)]}
        self.draw = lambda: torch.rand(1, generator=own)
        self.part = functools.partial(np.random.default_rng(4).normal, size=2)

    def forward(self, x):
        return x + SHARED.normal()


VALUES = torch.ones(1, 2, 4)
DRAWS = {
    "torch": lambda: torch.rand(1),
    "torch dropout": lambda: nn.functional.dropout(torch.ones(2)),
    "multinomial": lambda: torch.multinomial(torch.ones(3), 1),
    "in place": lambda: torch.empty(2).normal_(),
    "attention": lambda: nn.functional.scaled_dot_product_attention(VALUES, VALUES, VALUES, dropout_p=0.5),
    "numpy": lambda: np.random.rand(),
    "a block of numpy": lambda: np.random.rand(312),
    "numpy's normal": lambda: np.random.randn(),
    "python": random.random,
    "python's shuffle": lambda: random.shuffle([1, 2]),
    "python's normal": lambda: random.gauss(0, 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_from_a_global_generator_is_noticed_and_keyed(name):
    generators = Generators({})
    with generators.watched():
        pass
    assert generators.drawn() == []
    with generators.watched():
        DRAWS[name]()
    assert len(generators.drawn()) == 1
    found = []
    for key in (7, 7, 8):
        generators.seed(key)
        DRAWS[name]()
        found.append([torch.rand(2).tolist(), np.random.rand(), random.random(), random.gauss(0, 1)])
    assert found[0] == found[1]
    assert all(a != b for a, b in zip(found[0], found[2], strict=True))


def test_generators_are_found_in_attributes_containers_closures_classes_and_modules():
    kinds = [type(one).__name__ for _, one in find_generators(nn.Sequential(nn.Identity(), Layer()), "model")]
    assert sorted(kinds) == ["Generator"] * 3 + ["Random", "RandomState"]


@pytest.mark.parametrize("make", [np.random.PCG64, np.random.Philox, np.random.MT19937, np.random.SFC64])
def test_a_numpy_generator_of_any_kind_is_keyed(make):
    owner = nn.Module()
    owner.rng = np.random.Generator(make(1))
    generators, found = Generators({"model": owner}), []
    with generators.watched():
        owner.rng.random()
    assert generators.drawn() == ["the numpy generator model.rng"]
    for key in (1, 1, 2):
        generators.seed(key)
        found.append(owner.rng.random())
    assert found[0] == found[1] != found[2]


def test_a_generator_that_is_made_later_is_found():
    owner = nn.Linear(1, 1)
    generators = Generators({"model": owner})
    owner.rng = random.Random(1)
    with generators.watched():
        owner.rng.random()
    assert generators.drawn() == ["the random.Random model.rng"]


@pytest.mark.parametrize("draw", [np.random.default_rng, lambda: secrets.token_bytes(4), random.SystemRandom().random])
def test_randomness_of_the_operating_system_is_noticed(draw):
    generators = Generators({})
    with generators.watched():
        draw()
    assert generators.has_system_draws


def test_a_model_is_built_from_one_seed_whatever_it_draws_from():
    def build():
        with seeded(5):
            return torch.rand(1).item(), np.random.rand(), random.random(), np.random.default_rng().random()

    assert build() == build()


def test_the_states_of_the_global_generators_are_restored():
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    with global_states_kept():
        torch.rand(3), np.random.rand(3), random.random()
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


def test_tables_that_import_what_they_name_are_not_read() -> None:
    from transformers import MODEL_MAPPING

    class Owner:
        table = MODEL_MAPPING  # as `from transformers import *` leaves it in a user's module
        draws = np.random.default_rng(0)

    assert [path for path, _ in find_generators(Owner(), "objective")] == ["objective.draws"]
