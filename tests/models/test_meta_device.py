"""Models on the meta device: names, shapes and ties of the built model, without memory or downloads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from simfl.models.aster import Aster
from simfl.models.base import set_trainable, tied_names
from simfl.models.lora import Lora
from simfl.models.meta_device import build_on_meta, drop_remote_weights
from simfl.models.mlp import Mlp
from simfl.models.own import OwnModel
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vt5 import VT5
from simfl.protocol import Task

TASK = Task(1, 5, (12,))


class Tied(nn.Module):
    """Two layers with a tied weight, a frozen bias, and a buffer computed from values."""

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
        VT5(weights="vt5_tiny"), Vilt("tiny"), OwnModel(Tied()), OwnModel(Tied),
    ],
    ids=str,
)  # fmt: skip
def test_a_model_on_meta_has_the_names_shapes_and_ties_of_the_built_model(model):
    built, bare = model.build(TASK), build_on_meta(model, TASK)
    for kind in ("named_parameters", "named_buffers"):
        real, drawn = dict(getattr(built, kind)()), dict(getattr(bare, kind)())
        assert {n: (t.shape, t.dtype, t.requires_grad) for n, t in drawn.items()} == {
            n: (t.shape, t.dtype, t.requires_grad) for n, t in real.items()
        }
        assert all(tensor.is_meta for tensor in drawn.values())
    assert tied_names(bare) == tied_names(built)


def test_a_users_module_keeps_its_weights():
    module = Tied()
    build_on_meta(OwnModel(module), TASK)
    assert not module.a.weight.is_meta


def test_remote_weights_are_dropped_if_the_size_is_known():
    assert drop_remote_weights(Vilt(weights="dandelin/vilt-b32-mlm")) == Vilt("base")
    assert drop_remote_weights(VT5("base", weights="someone/vt5")) == VT5("base")
    assert drop_remote_weights(Vault("tiny", weights="a/b", text="c/d")) == Vault("tiny")


def test_local_weights_and_weights_of_unknown_size_are_kept(tmp_path):
    for model in (VT5(weights="vt5_tiny"), VT5("base", weights=str(tmp_path)), VT5(weights="someone/vt5")):
        assert drop_remote_weights(model) is model


def test_a_model_is_asked_once_for_what_it_trains(monkeypatch):
    asked = []
    monkeypatch.setattr(Mlp, "trainable_params", lambda model, module: asked.append(module) or ("*.bias",))
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    set_trainable(Mlp(), module)
    assert len(asked) == 1  # each answer looks at the names of all parameters
    assert [name for name, p in module.named_parameters() if p.requires_grad] == ["0.bias", "1.bias"]
