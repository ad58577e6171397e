"""Quantized frozen layers under adapters: values, gradients, memory, training and export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import simfl
from simfl.codecs import nf4
from simfl.errors import ConfigError
from simfl.models import quantized
from simfl.models.hf import HuggingFace
from simfl.models.lora import Lora
from simfl.models.meta_device import build_on_meta
from simfl.models.quantized import Kind, QuantizedLinear
from simfl.protocol import Task

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
KINDS: tuple[Kind, ...] = ("int8", "nf4")


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(48, 20)


def test_levels_are_those_of_the_codec() -> None:
    assert quantized.LEVELS == nf4.LEVELS


@pytest.mark.parametrize(("kind", "bound"), [("int8", 1 / 254), ("nf4", nf4.WIDEST / 2)])
def test_the_error_of_a_weight_is_at_most_half_a_gap_of_its_scale(kind: Kind, bound: float) -> None:
    layer = linear()
    error = (QuantizedLinear(layer, kind).weight - layer.weight).abs()
    assert 0 < error.max() <= layer.weight.abs().max() * bound * 1.001


@pytest.mark.parametrize("shape", [(20, 48), (64, 64), (5, 7)])
def test_bitsandbytes_gives_the_same_values(shape: tuple[int, int]) -> None:
    pytest.importorskip("bitsandbytes")
    layer = nn.Linear(shape[1], shape[0])
    own, other = QuantizedLinear(layer, "nf4"), QuantizedLinear(layer, "bnb_nf4")
    assert torch.equal(own.weight, other.weight)
    assert sum(b.nbytes for b in own.buffers()) == sum(b.nbytes for b in other.buffers())
    x = torch.randn(3, shape[1], generator=torch.Generator().manual_seed(1)).requires_grad_()
    (gradient,) = torch.autograd.grad(other(x).square().sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(own(x).square().sum(), x)[0])


def test_bitsandbytes_is_named_with_its_extra_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    model = HuggingFace(config=LLAMA, base="bnb_nf4", adapters=Lora(targets=("*q_proj",)))
    with pytest.raises(ConfigError, match=r"^model\.base: bnb_nf4 needs .*; pip install 'simfl\[bitsandbytes\]'"):
        build_on_meta(model, Task(0))


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_the_dequantized_layer(kind: Kind) -> None:
    layer = QuantizedLinear(linear(), kind)
    plain, x = layer.plain(), torch.randn(3, 5, 48, generator=torch.Generator().manual_seed(1))
    first, second = (x.clone().requires_grad_() for _ in range(2))
    one, other = layer(first), plain(second)
    torch.testing.assert_close(one, other)
    one.square().sum().backward()
    other.square().sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


@pytest.mark.parametrize("kind", ["nf4", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("int8", "bnb_nf4"))])
def test_a_quantized_base_trains_in_both_modes_and_is_exported_under_its_names(kind: Kind, tmp_path: Path) -> None:
    if kind == "bnb_nf4":
        pytest.importorskip("bitsandbytes")
    rows = [
        {"question": f"what is {'abcd'[n % 4]} ?", "answers": ["dcba"[n % 4]], "shop": f"s{n % 2}"} for n in range(8)
    ]

    def train(mode: str) -> simfl.Run:
        local = {"optimizer": "adamw", "learning_rate": 3e-3, "epochs": 1, "batch_size": 4}
        phase = {"objective": {"name": "chat", "max_answer": 4}, "rounds": 1, "clients_per_round": 2, "local": local}
        model = {"name": "hf", "config": LLAMA, "base": kind, "adapters": {"kind": "lora", "rank": 2}}
        experiment = {
            "name": mode, "data": {"train": rows, "valid": rows[:2]}, "model": model, "execution": {"mode": mode},
            "partition": {"by": "natural", "column": "shop"}, "phases": [phase],
        }  # fmt: skip
        return simfl.run(experiment, out=tmp_path / mode, backend="inline")

    first, second = train("sequential"), train("vectorized")
    one, other = first.snapshot().server.weights, second.snapshot().server.weights
    assert all("lora" in name and tensor.dtype == torch.float32 for name, tensor in one.items())
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-6)
    assert str(first.summary["plan"]).startswith("matches")
    first.export(tmp_path / "out")
    trained: Any = first.model()
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = torch.arange(4, 12).reshape(2, 4)
    torch.testing.assert_close(loaded(input_ids=ids).logits, trained(input_ids=ids).logits, rtol=1e-4, atol=1e-5)


def num_bytes(base: str) -> int:
    wide = LLAMA | {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 512}
    module = build_on_meta(HuggingFace(config=wide, base=base, dtype="bfloat16", adapters=Lora(rank=2)), Task(1))  # type: ignore[arg-type]
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return sum(t.numel() * t.element_size() for name, t in tensors.items() if "lora" not in name)


def test_a_base_of_four_bits_takes_at_most_two_fifths_of_that_in_bfloat16() -> None:
    assert num_bytes("nf4") <= 0.4 * num_bytes("none")
    assert num_bytes("int8") <= 0.6 * num_bytes("none")


def test_a_quantized_base_without_adapters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.base: nf4 weights are not trained; add model\.adapters"):
        HuggingFace(config=LLAMA, base="nf4").build(Task(1))
