"""Training steps of every backbone in float32 and bf16: at full size on a GPU, at tiny size on any device."""

from __future__ import annotations

import gc
from math import isfinite

import pytest
import torch

from benchmarks.backbones import BACKBONES, PRECISIONS, measure, tiny
from simfl.models import MODELS

EVERY = [(name, precision) for name in BACKBONES for precision in PRECISIONS]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "precision"), EVERY)
def test_training_steps_at_full_size_reduce_the_loss(name: str, precision: str) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    losses = measure(BACKBONES[name], precision)["losses"]
    assert all(map(isfinite, losses))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("name", "precision"), [pytest.param(*case, marks=pytest.mark.slow) for case in EVERY])
def test_training_steps_at_tiny_size_reduce_the_loss(name: str, precision: str) -> None:
    losses = measure(tiny(name), precision, "cpu", 0.02)["losses"]
    assert all(map(isfinite, losses))
    assert losses[-1] < losses[0]


def test_every_registered_model_has_a_benchmark_backbone() -> None:
    assert {type(backbone.model) for backbone in BACKBONES.values()} == set(MODELS.values()) - {
        MODELS["own"],
        MODELS["hf"],
    }
