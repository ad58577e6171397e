"""SGD and Adam without torch's classes: bit-identical weights and moments, with every setting."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from simfl.optimizers.foreach import Adam, PlainSgd
from simfl.optimizers.local import LOCAL_OPTIMIZERS, LocalOptimizer

CASES: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.0, "maximize": False}),
    ("adam", {}),
    ("adam", {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True}),
    ("adam", {"maximize": True}),
    ("adam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("adamw", {}),
    ("adamw", {"weight_decay": 0.0, "amsgrad": True}),
]


def trajectory(optimizer: Any, tensors: list[Tensor]) -> list[bytes]:
    draw = torch.Generator().manual_seed(1)
    for step in range(4):
        for number, tensor in enumerate(tensors):
            skipped = (step, number) == (1, 0)  # a tensor may have no gradient in a step
            tensor.grad = None if skipped else torch.randn(tensor.shape, generator=draw)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        optimizer.step()
    moments = [m for tensor in tensors for _, m in sorted(optimizer.state.get(tensor, {}).items())]
    return [t.detach().numpy().tobytes() for t in [*tensors, *moments]]


def weights() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw) for shape in ((3, 4), (5,))]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_foreach_optimizers_are_bit_identical_to_torch(name, settings):
    mine, theirs = weights(), weights()
    optimizer = LocalOptimizer(name, settings).build([{"params": mine}], 0.1)
    assert isinstance(optimizer, (Adam, PlainSgd))
    reference = LOCAL_OPTIMIZERS[name](theirs, lr=0.1, **settings)
    assert trajectory(optimizer, mine) == trajectory(reference, theirs)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"maximize": True}])
def test_sgd_with_any_setting_uses_torchs_class(settings):
    optimizer = LocalOptimizer("sgd", settings).build(weights(), 0.1)
    assert isinstance(optimizer, torch.optim.SGD)


def test_foreach_optimizers_refuse_settings_by_torchs_check():
    with pytest.raises(ValueError, match="Invalid beta parameter at index 0"):
        LocalOptimizer("adamw", {"betas": (1.5, 0.9)}).build([], 0.1)


def test_a_foreach_step_does_not_import_torchs_compiler():
    script = (
        "import sys, torch; from simfl.optimizers.local import LocalOptimizer\n"
        "w = torch.zeros(2); o = LocalOptimizer('adamw').build([w], 0.1); w.grad = torch.ones(2); o.step()\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
