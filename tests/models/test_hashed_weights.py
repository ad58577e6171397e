"""Hashed weights: parameter counts, expansion, gradients, and runs in both execution modes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import experiment, model, run, toy
from torch import nn
from torch.testing import assert_close

from simfl.config.fields import read
from simfl.errors import ConfigError
from simfl.models.aster import Aster
from simfl.models.base import Model
from simfl.models.cnn import Cnn
from simfl.models.hashed_weights import HashExpansion, hash_weights
from simfl.models.lora import Lora
from simfl.models.meta_device import build_on_meta
from simfl.models.mlp import Mlp
from simfl.protocol import Task
from simfl.runs import tables


def expansion(*shape: int, share: int = 4) -> HashExpansion:
    return HashExpansion(shape, share, (3, "layer"))


# 50,654 values of one axis and 6,632 of the smallest kernels; the rest in 71 tensors, each of which is rounded up
@pytest.mark.parametrize(("share", "published"), [(1, 13.34), (2, 6.70), (4, 3.38), (8, 1.72)])
def test_hashed_aster_has_the_sizes_of_fedocr(share: int, published: float) -> None:
    module = build_on_meta(Aster(encoder="shufflenet", hash=f"1/{share}"), Task(0))
    total, plain = sum(parameter.numel() for parameter in module.parameters()), 50_654 + 6_632
    assert round(total / 1e6, 2) == published
    assert 0 <= total - (plain + (13_341_806 - plain) / share) < 71


@pytest.mark.parametrize(("count", "share"), [(12, 4), (13, 4), (1, 4), (7, 1), (16, 2)])
def test_each_real_weight_is_used_equally_often_but_for_the_last(count: int, share: int) -> None:
    found = HashExpansion((count,), share, (0,))
    uses = Counter(found(torch.arange(float(found.num_real))).tolist())
    assert found.num_real == -(-count // share)
    assert [uses[k] for k in range(found.num_real - 1)] == [share] * (found.num_real - 1)
    assert uses[found.num_real - 1] == count - share * (found.num_real - 1)


def test_a_ratio_of_one_permutes_weights() -> None:
    weights = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    same = expansion(5, 7, share=1)
    assert torch.equal(same(same.initial(weights)), weights)


def test_the_gradient_of_a_real_weight_is_the_sum_of_its_uses() -> None:
    found, real = expansion(3, 5, share=4), torch.randn(4, requires_grad=True)
    slope = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    (found(real) * slope).sum().backward()
    owner = found(torch.arange(4.0)).long()  # which real weight stands where
    by_hand = torch.stack([slope[owner == k].sum() for k in range(4)])
    assert_close(real.grad, by_hand)
    double = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda real: found(real).tanh(), (double,))


def test_stacked_clients_expand_as_each_client_alone() -> None:
    found, real = expansion(3, 5), torch.randn(6, 4)
    alone = torch.stack([found(one) for one in real])
    assert torch.equal(found(real), alone)
    assert torch.equal(torch.func.vmap(found)(real), alone)
    gradient = torch.func.vmap(torch.func.grad(lambda one: found(one).square().sum()))(real)
    assert_close(
        gradient,
        torch.stack(
            [torch.autograd.grad(found(r).square().sum(), r)[0] for r in real.clone().requires_grad_().unbind()]
        ),
    )


def test_averaging_commutes_with_expansion() -> None:
    found, real = expansion(4, 6), torch.randn(8, 6)
    assert_close(found(real.mean(0)), found(real).mean(0))
    halves = torch.tensor([[1.0, 2, 3, 4, 5, 6], [3.0, 6, 5, 8, 1, 2]])  # whose means are exact
    assert torch.equal(found(halves.mean(0)), found(halves).mean(0))


def test_a_hashed_layer_starts_with_the_standard_deviation_of_a_plain_one() -> None:
    module = nn.Linear(300, 200)
    spread = float(module.weight.detach().std())
    hash_weights(module, "1/4", 0)
    assert (module._parameters["weight"].shape, module.weight.shape) == ((15_000,), (200, 300))
    assert float(module.weight.detach().std()) == pytest.approx(spread, rel=0.02)


def test_permutations_differ_by_layer_and_seed_alone() -> None:
    one, other, later = (Mlp(hidden_sizes=(9, 9), hash="1/3").build(Task(seed, 9, (9,))) for seed in (1, 1, 2))
    layer = [m.layers[0].linear.expansions["weight"](torch.arange(27.0)) for m in (one, other, later)]
    assert torch.equal(layer[0], layer[1])
    assert not torch.equal(layer[0], layer[2])
    assert not torch.equal(layer[0], one.layers[1].linear.expansions["weight"](torch.arange(27.0)))


def test_tied_weights_stay_tied_when_hashed() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.words.weight

    module = Tied()
    hash_weights(module, "1/2", 0)
    assert [name for name, _ in module.named_parameters()] == ["words.weight"]
    assert torch.equal(module.words.weight, module.head.weight)
    assert module.words.weight.shape == (10, 4)


def test_the_state_dict_holds_real_weights_alone() -> None:
    module = Cnn(channels=(4, 4), hidden=8, hash="1/4").build(Task(0, 10, (1, 8, 8)))
    sizes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    assert sizes == {
        "conv1.weight": (9,),  # 4·1·3·3 = 36
        "conv1.bias": (4,),
        "conv2.weight": (36,),
        "conv2.bias": (4,),
        "dense.weight": (32,),
        "dense.bias": (8,),
        "head.weight": (20,),
        "head.bias": (10,),
    }


MODELS: dict[str, tuple[Model, tuple[int, ...]]] = {
    "mlp": (Mlp(hidden_sizes=(16, 16), dropout=0.2, hash="1/4"), (12,)),
    "cnn": (Cnn(channels=(3, 4), hidden=8, hash="1/2"), (1, 8, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_both_execution_modes_train_real_weights_alike(name: str, tmp_path: Path) -> None:
    network, shape = MODELS[name]
    given: dict[str, Any] = {"data": toy(shape=shape), "model": network, "rounds": 2}
    for mode in ("sequential", "vectorized"):
        run(experiment("fedprox", mode, **given), tmp_path / mode)
    loop, batch = model(tmp_path / "sequential"), model(tmp_path / "vectorized")
    start = network.build(Task(42, 5, shape))
    for key, tensor in loop.items():
        assert_close(batch[key], tensor, atol=1e-5, rtol=1e-4)
        assert not torch.equal(tensor, dict(start.named_parameters())[key])
    count = sum(parameter.numel() for parameter in start.parameters())
    floats = {row["floats"] for row in tables.read(tmp_path / "sequential" / "ledger.parquet").to_pylist()}
    assert floats == {count}  # real weights and biases, without indices


def test_hashed_aster_trains_and_reads_words() -> None:
    module = Aster(size="tiny", encoder="shufflenet", hash="1/4").build(Task(0))
    pixels = torch.randint(0, 255, (2, 3, 64, 256), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    outputs = module.train()(pixels, torch.tensor([[1, 2, 94], [3, 94, -100]]))
    outputs.logits.sum().backward()
    assert all(parameter.grad is not None and parameter.dim() == 1 for parameter in module.parameters())
    assert module.eval().beam_search(pixels, 2, 4)[0].shape[0] == 2


def test_hashing_with_weights_or_adapters_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^hash: 1/4 given with weights; a hashed model is drawn from the seed$"):
        Aster(hash="1/4", weights="somewhere")
    with pytest.raises(ConfigError, match=r"^hash: 1/4 given with adapters"):
        Mlp(hash="1/4", adapters=Lora())


@pytest.mark.parametrize("given", ["1/0", "2/4", "0.25", "1/4x"])
def test_a_hash_ratio_is_one_over_a_whole_number(given: str) -> None:
    with pytest.raises(ConfigError, match=r"^model.hash: '.*' is not 1/c with a whole number c"):
        read(Model, {"name": "mlp", "hash": given}, "model")
    assert read(Model, {"name": "mlp", "hash": "1/4"}, "model") == Mlp(hash="1/4")
