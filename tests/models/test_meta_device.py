"""A model without memory: names, shapes and ties of the built one, whatever weights it is to have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from simfl.models.aster import Aster
from simfl.models.base import aliases
from simfl.models.lora import Lora
from simfl.models.meta import sketch, without_distant
from simfl.models.mlp import Mlp
from simfl.models.own import Own
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vt5 import VT5
from simfl.protocol import Task

TASK = Task(1, 5, (12,))


class Tied(nn.Module):
    """Two layers of one weight, one of them frozen, made from a value."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.b.bias.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(float(torch.ones(3).sum())))

    def forward(self, x):
        return self.b(self.a(x)) * self.scale


@pytest.mark.parametrize(
    "model",
    [
        Mlp((16,), adapters=Lora(rank=2, targets=("linear",))), VT5("tiny"), VT5("tiny", head="tied"), Aster("tiny"),
        VT5(weights="vt5_tiny"), Vilt("tiny"), Own(Tied()), Own(Tied),
    ],
    ids=str,
)  # fmt: skip
def test_a_sketch_has_the_names_shapes_ties_and_gradients_of_the_model_and_no_memory(model):
    built, bare = model.build(TASK), sketch(model, TASK)
    for kind in ("named_parameters", "named_buffers"):
        real, drawn = dict(getattr(built, kind)()), dict(getattr(bare, kind)())
        assert {n: (t.shape, t.dtype, t.requires_grad) for n, t in drawn.items()} == {
            n: (t.shape, t.dtype, t.requires_grad) for n, t in real.items()
        }
        assert all(tensor.is_meta for tensor in drawn.values())
    assert aliases(bare) == aliases(built)


def test_a_module_of_ones_own_keeps_its_weights():
    module = Tied()
    sketch(Own(module), TASK)
    assert not module.a.weight.is_meta


def test_weights_that_are_not_here_are_left_out_where_the_size_is_known():
    assert without_distant(Vilt(weights="dandelin/vilt-b32-mlm")) == Vilt("base")
    assert without_distant(VT5("base", weights="somebody/vt5")) == VT5("base")
    assert without_distant(Vault("tiny", weights="a/b", text="c/d")) == Vault("tiny")


def test_weights_that_are_here_or_of_unknown_size_are_looked_at(tmp_path):
    for model in (VT5(weights="vt5_tiny"), VT5("base", weights=str(tmp_path)), VT5(weights="somebody/vt5")):
        assert without_distant(model) is model
