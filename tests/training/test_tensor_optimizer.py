"""Optimizers of tensors alone: many small tensors are stepped as one, with the bits of each stepped on its own."""

from __future__ import annotations

import pytest
import torch

from simfl import weights as W
from simfl.experiment import Local
from simfl.optimizers.local import LocalOptimizer
from simfl.protocol import State, Weights
from simfl.training.tensor_optimizer import TensorOptimizer, load_moments, save_moments

CLIENTS, STEPS = 3, 4
SHAPES: list[tuple[int, ...]] = [(k % 4 + 1, 3) for k in range(W.MANY)] + [(), (7,), (300, 300)]
OPTIMIZERS = [
    LocalOptimizer("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
    LocalOptimizer("adam", {"weight_decay": 0.1}),
    LocalOptimizer("adamw"),
]


def drawn(seed: int) -> Weights:
    source = torch.Generator().manual_seed(seed)
    return {f"{k}": torch.randn(CLIENTS, *shape, generator=source) for k, shape in enumerate(SHAPES)}


def trained(local: Local, kept: list[State], ragged: bool) -> tuple[Weights, list[State]]:
    weights = drawn(0)
    moments = load_moments(local, weights, kept)
    stepper = TensorOptimizer(local, weights, moments, ragged)
    for step in range(STEPS):
        active = torch.tensor([True, not ragged or step < 2, True])
        stepper.step(drawn(step + 1), active, torch.tensor([0.1, 0.2, 0.3]))
    return weights, save_moments(moments, weights, CLIENTS)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_small_tensors_stepped_as_one_are_each_stepped(
    optimizer: LocalOptimizer, ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Local(optimizer, learning_rate=0.1, batch_size=2, keep_optimizer=True)
    nobody: list[State] = [{}] * CLIENTS
    packed = trained(local, nobody, ragged)
    again = trained(local, packed[1], ragged)
    assert W.PACK in W.pack_small(drawn(0))
    monkeypatch.setattr(W, "MANY", 1000)
    assert W.PACK not in W.pack_small(drawn(0))
    for given, apart in ((packed, trained(local, nobody, ragged)), (again, trained(local, packed[1], ragged))):
        assert all(torch.equal(given[0][name], t) for name, t in apart[0].items())
        for mine, own in zip(given[1], apart[1], strict=True):
            assert mine.keys() == own.keys()
            assert all(torch.equal(mine[key][name], t) for key in own for name, t in own[key].items())
    assert not torch.equal(packed[0]["0"], again[0]["0"])


def test_what_was_packed_comes_back_in_its_order_and_shapes() -> None:
    tensors = drawn(5)
    back = W.unpack_small(W.pack_small(tensors), tensors)
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], t) and back[name].shape == t.shape for name, t in tensors.items())
