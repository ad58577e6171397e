"""Layers of a model over several devices: which part goes where, what is moved in a pass, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Toy
from torch import Tensor, nn

import simfl
from simfl.api import experiment_of
from simfl.errors import ConfigError
from simfl.models import placement
from simfl.models.call_context import ModelCall, call_context
from simfl.models.hf import HuggingFace
from simfl.models.lora import Lora
from simfl.plans.plan import plan
from simfl.protocol import Task
from simfl.runtime.ray import cluster
from simfl.training.context import Network

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 600,
}  # fmt: skip
MODEL = HuggingFace(config=LLAMA, adapters=Lora(rank=2, dropout=0.1))
CPU = torch.device("cpu")
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def gradients(module: nn.Module, device: torch.device) -> dict[str, Tensor]:
    """Return the gradients of all adapters, at their weights plus 0.1, on `device`."""
    names = tuple(name for name, _ in module.named_parameters() if "lora" in name)
    network = Network(module, names)
    weights = {name: (t + 0.1).requires_grad_() for name, t in network.tensors(names).items()}
    ids = torch.arange(5, 37, device=device).reshape(2, 16)
    with network.swapped(weights), call_context(ModelCall(torch.tensor(7, device=device))):
        logits = module.train()(input_ids=ids).logits
        assert logits.device == device
        found = torch.autograd.grad(logits.float().square().mean(), list(weights.values()))
    return dict(zip(weights, found, strict=True))


def test_parts_follow_one_another_and_hold_about_as_many_bytes() -> None:
    module = MODEL.build(Task(1))
    places = placement.device_map(module, 2)
    assert list(places.values()) == sorted(places.values())
    assert set(places.values()) == {0, 1}
    layers = [name for name in places if name.startswith("model.layers")]
    assert all(name.count(".") == 2 for name in layers), "a layer stays whole"


def test_a_divided_model_has_the_gradients_of_the_whole_one() -> None:
    whole, divided = MODEL.build(Task(1)), placement.place(MODEL.build(Task(1)), (CPU, CPU))
    expected, found = gradients(whole, CPU), gradients(divided, CPU)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    prompt = torch.arange(5, 13).reshape(1, 8)
    answers = [one.eval().generate(input_ids=prompt, max_new_tokens=4, do_sample=False) for one in (whole, divided)]
    assert torch.equal(*answers)


def test_adapters_are_copied_to_the_device_of_their_layer() -> None:
    module = MODEL.build(Task(1))
    names = tuple(name for name, _ in module.named_parameters() if "lora" in name)
    layer = module.get_submodule("model.layers.3")
    layer.to("meta")  # stands for a second GPU
    setattr(module, placement.HOME, CPU)
    network = Network(module, names)
    weights = {name: torch.zeros_like(t, device=CPU) for name, t in module.named_parameters() if name in names}
    with network.swapped(weights):
        devices = {name: parameter.device.type for name, parameter in module.named_parameters() if name in names}
    assert {device for name, device in devices.items() if name.startswith("model.layers.3.")} == {"meta"}
    assert {device for name, device in devices.items() if not name.startswith("model.layers.3.")} == {"cpu"}


def test_models_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^execution\.model_parallel: 2, but Linear does not name the layers"):
        placement.check_divisible(nn.Linear(2, 2), 2)
    with pytest.raises(ConfigError, match=r"has 4 layers; allowed: at most 4$"):
        placement.check_divisible(MODEL.build(Task(1)), 5)


def test_a_run_without_enough_gpus_is_refused_before_it_starts(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "name": "divided", "data": Toy(), "model": "mlp", "partition": {"by": "iid", "clients": 2},
        "execution": {"model_parallel": 2},
        "phases": [{"objective": "classification", "rounds": 1, "clients_per_round": 2,
                    "local": {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 2}}],
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"^execution\.model_parallel: 2"):
        simfl.run(given, out=tmp_path / "run", backend="inline")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"but program is graph, which holds one GPU"):
        experiment_of({**given, "execution": {"model_parallel": 2, "program": "graph"}})
    with pytest.raises(ConfigError, match=r"does not name the layers that stay whole"):
        plan(experiment_of(given), tmp_path)
    assert cluster.count_workers("GPU", 8, "auto", 2) == 4
    with pytest.raises(ConfigError, match=r"requested 5 workers of 2 GPUs, but Ray has 8 GPUs"):
        cluster.count_workers("GPU", 8, 5, 2)
    with pytest.raises(ConfigError, match=r"^execution\.model_parallel: 2, but Ray has 1 GPUs"):
        cluster.count_workers("GPU", 1, "auto", 2)


@pytest.mark.gpu
@TWO_GPUS
def test_two_gpus_give_the_gradients_of_one() -> None:
    gpus = placement.local_gpus(2)
    whole, divided = MODEL.build(Task(1)).to(gpus[0]), placement.place(MODEL.build(Task(1)), gpus)
    assert {parameter.device for parameter in divided.parameters()} == set(gpus)
    expected, found = gradients(whole, gpus[0]), gradients(divided, gpus[0])
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.gpu
@TWO_GPUS
@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_run_over_two_gpus_equals_one_on_a_single_gpu(mode: str, checkpointing: bool, tmp_path: Path) -> None:
    rows = [
        {"question": f"what is {'abcd'[n % 4]} ?", "answers": ["dcba"[n % 4]], "shop": f"s{n % 2}"} for n in range(12)
    ]
    model = {"name": "hf", "config": LLAMA, "checkpointing": checkpointing, "adapters": {"kind": "lora", "rank": 2}}
    phase = {
        "objective": "chat", "rounds": 2, "clients_per_round": 2,
        "local": {"optimizer": "adamw", "learning_rate": 3e-3, "epochs": 1, "batch_size": 4},
    }  # fmt: skip
    trained = []
    for count in (1, 2):
        given = {
            "name": "run", "data": {"train": rows, "valid": rows[:4]}, "model": model, "phases": [phase],
            "partition": {"by": "natural", "column": "shop"},
            "execution": {"mode": mode, "model_parallel": count, "clients_per_batch": 2, "autotune": "never"},
        }  # fmt: skip
        trained.append(simfl.run(given, out=tmp_path / str(count), backend="inline").snapshot().server.weights)
    for name, tensor in trained[0].items():
        torch.testing.assert_close(trained[1][name].cpu(), tensor.cpu(), rtol=1e-3, atol=1e-5)
