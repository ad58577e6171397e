"""Users' modules: inputs, outputs, trained parameters, how they are saved, and errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tiny_transformers as tiny
import torch
from fakes import experiment, run
from peft import LoraConfig
from torch import Tensor, nn

from simfl import config
from simfl.config.fields import read, written
from simfl.errors import ConfigError
from simfl.models.base import Model, tied_names
from simfl.models.call_context import ModelCall, call_context
from simfl.models.dropout import KeyedDropout
from simfl.models.own import OwnModel, release
from simfl.models.peft_method import PeftMethod
from simfl.protocol import Outputs, Task
from simfl.weights import sha256

TASK = Task(seed=3, num_classes=5, shape=(2, 6))


def net(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.Dropout(0.5), nn.Linear(width, 5))


def net_for(task: Task, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.Linear(width, task.num_classes or 0))


class Answering(nn.Module):
    """Returns what `answer` makes of the logits; its input has its own name."""

    def __init__(self, answer: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.head, self.answer = nn.Linear(12, 5), answer

    def forward(self, pixels: Tensor) -> Any:
        return self.answer(self.head(pixels.flatten(1)))


class Echo(nn.Module):
    """Returns its input."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels


def test_a_module_is_copied_with_its_values() -> None:
    given = net()
    before = sha256(given.state_dict())
    built = OwnModel(given).build(TASK)
    assert sha256(built.state_dict()) == before
    built[1].weight.data.add_(1.0)
    assert sha256(given.state_dict()) == before
    assert isinstance(given[2], nn.Dropout)
    assert isinstance(built[2], KeyedDropout)


@pytest.mark.parametrize("of", [net, f"{__name__}:net", net_for, f"{__name__}:net_for", lambda: net()])
def test_a_factory_is_called_with_the_seed_of_the_task(of: Any) -> None:
    first, second, other = (OwnModel(of).build(Task(seed, 5, (2, 6))) for seed in (3, 3, 4))
    assert sha256(first.state_dict()) == sha256(second.state_dict()) != sha256(other.state_dict())


@pytest.mark.parametrize("of", [net, net_for])
def test_settings_are_arguments_of_the_factory(of: Any) -> None:
    assert OwnModel(of, {"width": 7}).build(TASK)[1].weight.shape == (7, 12)


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
def test_logits_are_found_in_every_supported_result(answer: Callable[[Tensor], Any]) -> None:
    built = OwnModel(Answering(answer)).build(TASK)
    x = torch.rand(3, 12)
    assert torch.equal(built(x=x).logits, built.head(x))
    assert torch.equal(built(x).logits, built.head(x))


def test_flat_uint8_examples_are_reshaped_and_scaled() -> None:
    seen = OwnModel(Echo()).build(TASK)(x=torch.full((3, 12), 255, dtype=torch.uint8)).logits
    assert torch.equal(seen, torch.ones(3, 2, 6))


def test_a_copy_of_a_built_module_uses_its_own_tensors() -> None:
    built = OwnModel(net()).build(TASK)
    other = copy.deepcopy(built)
    other[3].bias.data.fill_(100.0)
    with torch.no_grad():
        assert float(other(x=torch.zeros(1, 12)).logits.min()) > 50 > float(built(x=torch.zeros(1, 12)).logits.max())


def test_parameters_without_gradient_are_not_trained() -> None:
    module = net()
    module[1].requires_grad_(False)
    model = OwnModel(module)
    assert model.trainable_params(model.build(TASK)) == ("3.weight", "3.bias")
    assert OwnModel(net()).trainable_params(net()) == ("*",)


def test_a_peft_configuration_is_read_and_saved_as_adapters() -> None:
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


def test_dropout_of_a_users_module_is_keyed() -> None:
    built = OwnModel(net(64)).build(TASK).train()
    x = torch.rand(2, 12)
    with call_context(ModelCall(dropout_key=torch.tensor(5))):
        first, second = built(x=x).logits, built(x=x).logits
    with call_context(ModelCall(dropout_key=torch.tensor(6))):
        other = built(x=x).logits
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_attention_dropout_of_transformers_is_keyed() -> None:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    small = DistilBertConfig(vocab_size=20, dim=8, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=9)
    built = OwnModel(DistilBertForSequenceClassification(small)).build(Task(seed=1)).train()
    assert built.config._attn_implementation == "simfl"
    inputs = {"input_ids": torch.arange(18).reshape(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    with call_context(ModelCall(dropout_key=torch.tensor(5))):
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
        ("<__main__:Net>", "model.of: <__main__:Net> was defined in the program that started the run; pass it again"),
        ("__main__:Net", "model.of: __main__:Net was defined in the program that started the run; pass it again"),
    ],
)
def test_an_invalid_module_is_a_one_line_error(of: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        OwnModel(of).build(TASK)
    assert str(error.value).startswith(said)


def test_unknown_settings_of_a_factory_are_a_one_line_error() -> None:
    with pytest.raises(ConfigError, match=rf"^model.settings: {__name__}:net: got an unexpected keyword argument"):
        OwnModel(net, {"wid": 3}).build(TASK)


def test_importable_factories_are_saved_by_name_and_others_with_a_hash() -> None:
    assert written(OwnModel(net)) == {
        "name": "own",
        "of": f"{__name__}:net",
        "settings": {},
        "adapters": None,
        "sha256": None,
    }
    torch.manual_seed(0)
    module = net()
    plain = written(OwnModel(module))
    assert plain["of"] == "<torch.nn.modules.container:Sequential>"
    assert written(OwnModel(copy.deepcopy(module))) == plain
    other = copy.deepcopy(module)
    other[2].p = 0.25
    assert written(OwnModel(other))["sha256"] != plain["sha256"]  # another architecture
    other[2].p = 0.5
    assert written(OwnModel(other)) == plain
    other[1].bias.data[0] += 1
    assert written(OwnModel(other))["sha256"] != plain["sha256"]  # another value
    assert written(OwnModel(lambda: module))["of"].startswith("<")


def test_an_experiment_with_a_module_is_saved_and_loaded(tmp_path: Any) -> None:
    text = config.dump(experiment("fedavg", model=OwnModel(net())))
    (tmp_path / "experiment.yaml").write_text(text)
    assert config.dump(config.load(tmp_path / "experiment.yaml")) == text


def test_a_class_or_a_module_replaces_a_name() -> None:
    module = net()
    assert read(Model, module, "model") == OwnModel(module)
    assert read(Model, net, "model") == OwnModel(net)
    assert read(Model, {"of": "a.b:c", "settings": {"d": 1}}, "model") == OwnModel("a.b:c", {"d": 1})
    with pytest.raises(ConfigError, match=r"^model: 3 is not a mapping"):
        read(Model, 3, "model")


def test_a_causal_language_model_keeps_its_logits_and_its_tied_weights() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    small = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    plain = GPT2LMHeadModel(small).eval()
    built, ids = OwnModel(plain).build(Task(seed=1)), torch.arange(16).reshape(2, 8)
    assert torch.allclose(built(input_ids=ids).logits, plain(input_ids=ids).logits, atol=1e-5)
    assert tied_names(built) == {"lm_head.weight": "transformer.wte.weight"}
    later = ids.clone()
    later[:, 5:] = 3
    assert torch.allclose(built(input_ids=later).logits[:, :5], built(input_ids=ids).logits[:, :5], atol=1e-6)


@pytest.mark.parametrize("make", [tiny.llama, tiny.tied_qwen, tiny.t5, tiny.gpt2])
@pytest.mark.parametrize("adapters", [None, PeftMethod("lora", {})])
def test_a_model_of_transformers_generates(make: Callable[[], nn.Module], adapters: PeftMethod | None) -> None:
    plain = tiny.seeded(make).eval()
    built = OwnModel(plain, adapters=adapters).build(Task(seed=1))
    ids = torch.arange(3, 11).reshape(2, 4)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 3, "min_new_tokens": 3}
    generated = built.generate(**given, do_sample=False, pad_token_id=0)
    assert torch.equal(generated, plain.generate(**given, do_sample=False, pad_token_id=0))


def test_a_result_of_transformers_keeps_its_loss() -> None:
    ids = torch.arange(3, 11).reshape(2, 4)
    assert OwnModel(tiny.llama()).build(Task(seed=1))(input_ids=ids, labels=ids).loss.isfinite()


def test_a_released_module_has_its_authors_forward_dropout_and_attention() -> None:
    module = release(OwnModel(net()).build(TASK))
    assert isinstance(module[2], nn.Dropout)
    assert module[2].p == 0.5
    assert isinstance(module(torch.rand(2, 12)), Tensor)
    language_model = release(OwnModel(tiny.llama(attention_dropout=0.1)).build(Task(seed=1)))
    assert language_model.config._attn_implementation == "sdpa"
    assert language_model(input_ids=torch.arange(4)[None], labels=torch.arange(4)[None]).loss.isfinite()


def test_grouped_query_attention_with_dropout_is_that_of_transformers() -> None:
    plain = tiny.seeded(tiny.llama, attention_dropout=0.5).eval()
    built = OwnModel(plain).build(Task(seed=1)).train()
    assert built.config._attn_implementation == "simfl"
    assert torch.allclose(tiny.logits(built), tiny.logits(plain), atol=1e-6)  # without a key nothing is dropped
    with call_context(ModelCall(dropout_key=torch.tensor(5))):
        first, second = tiny.logits(built), tiny.logits(built)
    assert torch.equal(first, second)
    assert not torch.allclose(first, tiny.logits(plain), atol=1e-3)


@pytest.mark.parametrize("softcap", [None, 0.5])
def test_keyed_attention_equals_its_formula(softcap: float | None) -> None:
    from simfl.models.attention import keyed_attention

    query, key, value = torch.rand(2, 4, 3, 8), torch.rand(2, 2, 5, 8), torch.rand(2, 2, 5, 8)
    layer: Any = nn.Identity()
    layer.dropout_layer = 1
    found, _ = keyed_attention(layer, query, key, value, None, softcap=softcap)
    scores = torch.einsum("bhld,bhsd->bhls", query, key.repeat_interleave(2, 1)) / 8**0.5
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    expected = torch.einsum("bhls,bhsd->blhd", scores.softmax(-1), value.repeat_interleave(2, 1))
    assert torch.allclose(found, expected, atol=1e-6)
    with pytest.raises(ConfigError, match=r"^model\.of: attention with s_aux and dropout is not supported"):
        keyed_attention(layer, query, key, value, None, s_aux=torch.zeros(4))


def test_attention_dropout_of_a_part_or_of_a_model_inside_is_keyed() -> None:
    assert OwnModel(tiny.smol_vlm(dropout=0.1)).build(Task(seed=1)).config.text_config._attn_implementation == "simfl"
    inside = nn.ModuleList([tiny.llama(attention_dropout=0.1)])
    assert OwnModel(inside).build(Task(seed=1))[0].config._attn_implementation == "simfl"


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention has no vmap rule on the CPU
def test_a_language_model_is_trained_with_stacked_weights() -> None:
    built = OwnModel(tiny.seeded(tiny.qwen)).build(Task(seed=1)).train()
    ids, mask = torch.arange(3, 15).reshape(2, 2, 3), torch.ones(2, 2, 3, dtype=torch.int64)
    mask[0, 0, 2] = 0
    weights = {name: torch.stack([p.detach(), p.detach() * 1.1]) for name, p in built.named_parameters()}

    def loss(stacked: bool, own: dict[str, Tensor], ids: Tensor, mask: Tensor) -> Tensor:
        inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        with call_context(ModelCall(under_vmap=stacked)):
            return torch.func.functional_call(built, own, kwargs=inputs).logits.square().mean()

    together = torch.func.vmap(torch.func.grad(partial(loss, True)))(weights, ids, mask)
    assert built.config._attn_implementation == "sdpa"
    for client in (0, 1):
        own = {name: p[client] for name, p in weights.items()}
        alone = torch.func.grad(partial(loss, False))(own, ids[client], mask[client])
        assert all(torch.allclose(together[name][client], alone[name], atol=1e-5) for name in alone)


def test_a_single_input_may_have_any_name_and_several_are_checked_by_name(tmp_path: Any) -> None:
    run(experiment("fedavg", model=OwnModel(Pixels()), rounds=1), tmp_path / "one")
    with pytest.raises(ConfigError, match=r"the model also requires pixels, scale$"):
        run(experiment("fedavg", model=OwnModel(Scaled())), tmp_path / "two")


class Pixels(nn.Module):
    """Reads one input, under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 5)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(pixels)


class Scaled(Pixels):
    """Reads two inputs."""

    def forward(self, pixels: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(pixels * scale)
