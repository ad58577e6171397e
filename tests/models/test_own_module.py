"""Modules of one's own: what goes in, what comes out, what is trained, how they are written, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes import experiment
from peft import LoraConfig
from torch import Tensor, nn

from simfl import config
from simfl.config.fields import read, written
from simfl.errors import ConfigError
from simfl.models.base import Model
from simfl.models.call_context import ModelCall, call_context
from simfl.models.dropout import KeyedDropout
from simfl.models.own import Own
from simfl.models.peft_method import PeftMethod
from simfl.protocol import Outputs, Task
from simfl.weights import sha256

TASK = Task(seed=3, num_classes=5, shape=(2, 6))


def net(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.Dropout(0.5), nn.Linear(width, 5))


def net_for(task: Task, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.Linear(width, task.num_classes or 0))


class Answering(nn.Module):
    """Answers as told, from an input of its own name."""

    def __init__(self, answer: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.head, self.answer = nn.Linear(12, 5), answer

    def forward(self, pixels: Tensor) -> Any:
        return self.answer(self.head(pixels.flatten(1)))


class Functional(Answering):
    """Drops out without a module."""

    def forward(self, pixels: Tensor) -> Any:
        return self.head(nn.functional.dropout(pixels.flatten(1), 0.5, self.training))


class Echo(nn.Module):
    """Answers with its input."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels


def test_a_module_keeps_its_values_and_is_left_alone() -> None:
    given = net()
    before = sha256(given.state_dict())
    built = Own(given).build(TASK)
    assert sha256(built.state_dict()) == before
    built[1].weight.data.add_(1.0)
    assert sha256(given.state_dict()) == before
    assert isinstance(given[2], nn.Dropout)
    assert isinstance(built[2], KeyedDropout)


@pytest.mark.parametrize("of", [net, f"{__name__}:net", net_for, f"{__name__}:net_for", lambda: net()])
def test_a_factory_is_called_under_the_seed_of_the_task(of: Any) -> None:
    first, second, other = (Own(of).build(Task(seed, 5, (2, 6))) for seed in (3, 3, 4))
    assert sha256(first.state_dict()) == sha256(second.state_dict()) != sha256(other.state_dict())


@pytest.mark.parametrize("of", [net, net_for])
def test_settings_are_arguments_of_the_factory(of: Any) -> None:
    assert Own(of, {"width": 7}).build(TASK)[1].weight.shape == (7, 12)


@pytest.mark.parametrize(
    "answer",
    [
        lambda logits: logits,
        lambda logits: (logits, "more"),
        lambda logits: {"logits": logits, "features": logits},
        lambda logits: Outputs(logits),
        lambda logits: type("Answer", (), {"logits": logits})(),
    ],
)
def test_logits_are_found_in_what_modules_return(answer: Callable[[Tensor], Any]) -> None:
    built = Own(Answering(answer)).build(TASK)
    x = torch.rand(3, 12)
    assert torch.equal(built(x=x).logits, built.head(x))
    assert torch.equal(built(x).logits, built.head(x))


def test_flat_examples_come_in_their_shape_and_bytes_as_fractions() -> None:
    seen = Own(Echo()).build(TASK)(x=torch.full((3, 12), 255, dtype=torch.uint8)).logits
    assert torch.equal(seen, torch.ones(3, 2, 6))


def test_a_copy_computes_with_its_own_tensors() -> None:
    built = Own(net()).build(TASK)
    other = copy.deepcopy(built)
    other[3].bias.data.fill_(100.0)
    with torch.no_grad():
        assert float(other(x=torch.zeros(1, 12)).logits.min()) > 50 > float(built(x=torch.zeros(1, 12)).logits.max())


def test_what_requires_no_gradient_is_not_trained() -> None:
    module = net()
    module[1].requires_grad_(False)
    model = Own(module)
    assert model.trains(model.build(TASK)) == ("3.weight", "3.bias")
    assert Own(net()).trains(net()) == ("*",)


def test_a_peft_configuration_stands_for_adapters_and_is_written_as_one() -> None:
    config = LoraConfig(r=2, target_modules=["1"], modules_to_save=["3"], lora_dropout=0.25)
    model = read(Model, {"of": net(), "adapters": config}, "model")
    settings = {"r": 2, "target_modules": ["1"], "modules_to_save": ["3"], "lora_dropout": 0.25}
    assert model.adapters == PeftMethod("lora", settings)
    built = model.build(TASK)
    wanted = {name for name, parameter in built.named_parameters() if parameter.requires_grad}
    assert wanted == {
        "1.lora_A.default.weight",
        "1.lora_B.default.weight",
        "3.modules_to_save.default.weight",
        "3.modules_to_save.default.bias",
    }
    plain = written(model)
    assert read(Model, {**plain, "of": f"{__name__}:net"}, "model").adapters == model.adapters


def test_functional_dropout_is_refused_since_no_visit_could_be_repeated() -> None:
    built = Own(Functional()).build(TASK)
    built(x=torch.rand(2, 12))  # nothing is drawn in evaluation mode
    with pytest.raises(ConfigError, match=r"^model.of: the model draws from torch's global generator while it trains"):
        built.train()(x=torch.rand(2, 12))


def test_dropout_of_a_given_module_is_keyed() -> None:
    built = Own(net(64)).build(TASK).train()
    x = torch.rand(2, 12)
    with call_context(ModelCall(key=torch.tensor(5))):
        first, second = built(x=x).logits, built(x=x).logits
    with call_context(ModelCall(key=torch.tensor(6))):
        other = built(x=x).logits
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_attention_of_transformers_drops_out_by_key() -> None:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    small = DistilBertConfig(vocab_size=20, dim=8, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=9)
    built = Own(DistilBertForSequenceClassification(small)).build(Task(seed=1)).train()
    assert built.config._attn_implementation == "simfl"
    inputs = {"input_ids": torch.arange(18).reshape(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    with call_context(ModelCall(key=torch.tensor(5))):
        first, second = built(**inputs).logits, built(**inputs).logits
    assert torch.equal(first, second)
    assert not torch.equal(first, built(**inputs).logits)  # without a key nothing is dropped


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (f"{__name__}:nett", f"model.of: {__name__} has no 'nett'; did you mean 'net'?"),
        ("nowhere:net", "model.of: no module 'nowhere' for 'nowhere:net'"),
        ("net", "model.of: 'net' is not package.module:name"),
        (f"{__name__}:TASK", "model.of: Task(seed=3"),
        ("builtins:dict", "model.of: builtins:dict returns dict, not a torch module"),
        ("<__main__:Net>", "model.of: <__main__:Net> lived in the program that started the run; give it again"),
        ("__main__:Net", "model.of: __main__:Net lived in the program that started the run; give it again"),
    ],
)
def test_what_cannot_be_a_module_is_one_line(of: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Own(of).build(TASK)
    assert str(error.value).startswith(said)


def test_settings_that_the_factory_does_not_take_are_one_line() -> None:
    with pytest.raises(ConfigError, match=rf"^model.settings: {__name__}:net: got an unexpected keyword argument"):
        Own(net, {"wid": 3}).build(TASK)


def test_what_can_be_imported_is_written_by_name_and_the_rest_by_a_hash() -> None:
    assert written(Own(net)) == {
        "name": "own",
        "of": f"{__name__}:net",
        "settings": {},
        "adapters": None,
        "sha256": None,
    }
    torch.manual_seed(0)
    module = net()
    plain = written(Own(module))
    assert plain["of"] == "<torch.nn.modules.container:Sequential>"
    assert written(Own(copy.deepcopy(module))) == plain
    other = copy.deepcopy(module)
    other[2].p = 0.25
    assert written(Own(other))["sha256"] != plain["sha256"]  # another architecture
    other[2].p = 0.5
    assert written(Own(other)) == plain
    other[1].bias.data[0] += 1
    assert written(Own(other))["sha256"] != plain["sha256"]  # another value
    assert written(Own(lambda: module))["of"].startswith("<")


def test_an_experiment_with_a_module_is_written_and_read(tmp_path: Any) -> None:
    text = config.dump(experiment("fedavg", model=Own(net())))
    (tmp_path / "experiment.yaml").write_text(text)
    assert config.dump(config.load(tmp_path / "experiment.yaml")) == text


def test_a_class_or_a_module_stands_in_place_of_a_name() -> None:
    module = net()
    assert read(Model, module, "model") == Own(module)
    assert read(Model, net, "model") == Own(net)
    assert read(Model, {"of": "a.b:c", "settings": {"d": 1}}, "model") == Own("a.b:c", {"d": 1})
    with pytest.raises(ConfigError, match=r"^model: 3 is not a mapping"):
        read(Model, 3, "model")
