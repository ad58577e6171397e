"""Every backbone gives what MOON, SP and CRD compare: a vector for each example, which training moves."""

from __future__ import annotations

import pytest
import torch
from test_side_by_side import CASES
from torch.func import functional_call

BACKBONES = (
    "albef in full", "aster", "aster with shufflenet", "cnn", "layout_t5", "mlp", "vault with bottlenecks",
    "vilt in full", "vit with bottlenecks", "vt5 in full",
)  # fmt: skip


@pytest.mark.parametrize("name", BACKBONES)
def test_features_are_a_vector_an_example_and_have_a_gradient(name: str) -> None:
    model, task, batches = CASES[name]
    module = model.build(task)
    features = functional_call(module, {}, kwargs={key: rows[0] for key, rows in batches.items()}).features
    assert features is not None
    assert features.shape == (len(next(iter(batches.values()))[0]), features.shape[-1])
    assert torch.isfinite(features).all()
    assert not torch.equal(features[0], features[1])  # of two examples
    trained = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(features.square().sum(), trained, allow_unused=True)
    assert any(g is not None and g.abs().sum() > 0 for g in found)
