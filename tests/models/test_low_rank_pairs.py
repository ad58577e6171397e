"""Low-rank pairs of a model: their products are what peft adds to the weights of each kind of layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from simfl.errors import ConfigError
from simfl.low_rank import rank_axis, truncated, up_name
from simfl.models.lora import Lora
from simfl.models.low_rank import low_rank_pairs
from simfl.models.peft_method import PeftMethod


class Layers(nn.Module):
    """One layer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.pytorch_utils import Conv1D

        self.linear, self.wide = nn.Linear(6, 5), Conv1D(7, 4)  # weights [5, 6] and [4, 7]
        self.embed, self.conv = nn.Embedding(9, 5), nn.Conv2d(3, 4, (2, 3))


@pytest.mark.parametrize("use_rslora", [False, True])
def test_products_are_those_of_peft(use_rslora: bool) -> None:
    torch.manual_seed(0)
    module = Layers()
    targets = ["linear", "wide", "embed", "conv"]
    settings = {"r": 3, "lora_alpha": 12, "target_modules": targets, "use_rslora": use_rslora}
    PeftMethod("lora", {**settings, "rank_pattern": {"linear": 2}}).attach(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if rank_axis(name) is not None:
                parameter.normal_()
    weights = dict(module.named_parameters())
    pairs = low_rank_pairs(module, "algorithm")
    assert {pair.layer.rpartition(".")[2]: pair.rank for pair in pairs} == {
        "linear": 2,
        "wide": 3,
        "embed": 3,
        "conv": 3,
    }
    for pair in pairs:
        expected = module.get_submodule(pair.layer).get_delta_weight("default")
        found = pair.change(pair.product(weights)).to(expected.dtype)
        assert found.shape == weights[pair.base].shape
        assert torch.allclose(found.reshape(expected.shape), expected, atol=1e-5)
        assert pair.rows * pair.columns == weights[pair.base].numel()
        assert up_name(pair.down) == pair.up


def test_pairs_of_our_own_adapters_keep_the_order_of_the_layers() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    Lora(rank=2, alpha=4, targets=("0", "2")).attach(module)
    assert [(pair.layer, pair.scaling) for pair in low_rank_pairs(module, "algorithm")] == [("0", 2.0), ("2", 2.0)]


def test_factors_are_cut_to_a_rank() -> None:
    a, b = torch.ones(4, 3), torch.ones(5, 4)
    assert truncated("x.lora_A.default.weight", a, torch.tensor(2)).sum(1).tolist() == [3, 3, 0, 0]
    assert truncated("x.lora_B.default.weight", b, torch.tensor(1)).sum(0).tolist() == [5, 0, 0, 0]
    assert truncated("x.bias", b, torch.tensor(1)) is b


def test_a_quantized_base_cannot_be_changed() -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    Lora(rank=2, targets=("0",)).attach(module)
    layer = module.get_submodule("0.base_layer")
    layer.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ConfigError, match=r"0\.base_layer\.weight is quantized \(torch\.uint8\)"):
        low_rank_pairs(module, "algorithm", changes_base=True)
