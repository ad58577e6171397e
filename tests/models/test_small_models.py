"""Sizes, inputs and errors of the CNN and the MLP."""

from __future__ import annotations

import pytest
import torch

from simfl.errors import ConfigError
from simfl.models.base import Model
from simfl.models.cnn import Cnn
from simfl.models.mlp import Mlp
from simfl.protocol import Task

FEMNIST = Task(seed=1, num_classes=62, shape=(1, 28, 28))
CIFAR = Task(seed=1, num_classes=10, shape=(3, 32, 32))


def count(model: Model, task: Task) -> int:
    return sum(p.numel() for p in model.build(task).parameters())


def test_the_cnn_of_the_benchmark_has_1_206_590_parameters() -> None:
    by_hand = (9 * 32 + 32) + (9 * 32 * 64 + 64) + (12 * 12 * 64 * 128 + 128) + (128 * 62 + 62)
    assert count(Cnn(), FEMNIST) == by_hand == 1_206_590


def test_the_cnns_dense_layer_reads_14_by_14_on_cifar() -> None:
    by_hand = (27 * 32 + 32) + (9 * 32 * 64 + 64) + (14 * 14 * 64 * 128 + 128) + (128 * 10 + 10)
    assert count(Cnn(), CIFAR) == by_hand


def test_the_mlp_has_its_hidden_sizes() -> None:
    assert count(Mlp(hidden_sizes=(5, 4)), Task(0, 3, (2, 3))) == (6 * 5 + 5) + (5 * 4 + 4) + (4 * 3 + 3)


@pytest.mark.parametrize(
    "model", [Cnn(), Cnn(pool="max", activation="relu", dropout=0.25), Mlp(), Mlp(hidden_sizes=(), layer_norm=True)]
)
def test_uint8_pixels_are_scaled_by_255(model: Model) -> None:
    module = model.build(FEMNIST)
    image = torch.arange(28 * 28, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(1, 1, 28, 28)
    out = module(image)
    assert torch.equal(out.logits, module(image / 255).logits)
    assert torch.equal(out.logits, module.head(out.features))
    assert out.logits.shape == (1, 62)


def test_flat_images_are_reshaped() -> None:
    module, image = Cnn().build(CIFAR), torch.rand(2, 3, 32, 32)
    assert torch.equal(module(image.flatten(1)).logits, module(image).logits)


def test_the_cnn_is_bit_identical_for_the_same_seed() -> None:
    one, two = (Cnn(dropout=0.1).build(FEMNIST).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_tasks_without_images_are_rejected() -> None:
    with pytest.raises(ConfigError, match="'mlp' reads images or features with a label"):
        Mlp().build(Task(seed=0))
    with pytest.raises(ConfigError, match="'cnn' reads images"):
        Cnn().build(Task(seed=0, num_classes=2, shape=(6,)))
