"""Peft configurations: what `get_peft_model` would train is trained, or one line names the setting."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import tiny_transformers as tiny
import torch
from peft import AdaLoraConfig, BOFTConfig, IA3Config, LNTuningConfig, LoHaConfig, LoraConfig, OFTConfig
from torch import nn

import simfl
from simfl.config.fields import read, written
from simfl.errors import ConfigError
from simfl.models.base import Model
from simfl.models.lora import Lora
from simfl.models.own import OwnModel
from simfl.models.peft_method import PeftMethod
from simfl.protocol import Task

pytestmark = pytest.mark.filterwarnings("ignore")  # peft's, about tied weights and layers that it corrects
TASK = Task(seed=3)
QV = ["q_proj", "v_proj"]


def lora(**settings: Any) -> LoraConfig:
    return LoraConfig(**{"target_modules": QV, **settings})


DEFAULT_TARGETS = {
    "llama": (tiny.llama, LoraConfig(task_type="CAUSAL_LM")),
    "qwen": (tiny.qwen, LoraConfig(task_type="CAUSAL_LM")),
    "qwen without a task": (tiny.qwen, LoraConfig()),
    "t5": (tiny.t5, LoraConfig(task_type="SEQ_2_SEQ_LM")),
    "gpt2": (tiny.gpt2, LoraConfig(task_type="CAUSAL_LM")),
    "ia3": (tiny.qwen, IA3Config(task_type="CAUSAL_LM")),
    "ia3 of t5": (tiny.t5, IA3Config(task_type="SEQ_2_SEQ_LM")),
    "norms": (tiny.qwen, LNTuningConfig(task_type="CAUSAL_LM")),
}
HEADS = {
    "qwen classifier": (tiny.qwen_classifier, lora(task_type="SEQ_CLS")),
    "qwen classifier by ia3": (tiny.qwen_classifier, IA3Config(task_type="SEQ_CLS")),
    "bert classifier": (tiny.bert_classifier, LoraConfig(task_type="SEQ_CLS")),
    "bert classifier and pooler": (tiny.bert_classifier, LoraConfig(task_type="SEQ_CLS", modules_to_save=["pooler"])),
    "bert tagger": (tiny.bert_tagger, LoraConfig(task_type="TOKEN_CLS")),
    "bert reader": (tiny.bert_reader, LoraConfig(task_type="QUESTION_ANS")),
    "vit": (tiny.vit, lora(target_modules=["q_proj"], modules_to_save=["classifier"])),
}
FURTHER_TENSORS = {
    "biases of the layers": (tiny.qwen, lora(bias="lora_only")),
    "all biases": (tiny.qwen, lora(bias="all")),
    "biases of transposed layers": (tiny.gpt2, lora(target_modules=["c_attn"], bias="lora_only", fan_in_fan_out=True)),
    "rows of embeddings": (tiny.qwen, lora(trainable_token_indices=[5, 6])),
    "rows of named embeddings": (tiny.qwen, lora(trainable_token_indices={"embed_tokens": [5, 6]})),
    "rows of tied embeddings": (tiny.tied_qwen, lora(trainable_token_indices=[5, 6])),
    "embedding and output": (tiny.tied_qwen, lora(modules_to_save=["embed_tokens", "lm_head"])),
    "embedding, tied": (tiny.tied_qwen, lora(modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "bias of B": (tiny.qwen, lora(lora_bias=True)),
    "embeddings": (tiny.qwen, lora(target_modules=["embed_tokens"])),
}
TARGETS = {
    "expression": (tiny.qwen, lora(target_modules=r"model\.layers\.0\..*(q|v)_proj")),
    "all linear": (tiny.qwen, lora(target_modules="all-linear")),
    "all linear of gpt2": (tiny.gpt2, lora(target_modules="all-linear")),
    "layers": (tiny.qwen, lora(layers_to_transform=[1])),
    "layers by pattern": (tiny.qwen, lora(layers_to_transform=0, layers_pattern="layers")),
    "excluded": (tiny.qwen, lora(exclude_modules=["model.layers.0.self_attn.q_proj"])),
    "ranks": (tiny.qwen, lora(rank_pattern={"q_proj": 2}, alpha_pattern={"layers.0.self_attn.v_proj": 32})),
    "vision tower": (tiny.smol_vlm, lora()),
}
VARIANTS = {
    "dora": (tiny.qwen, lora(use_dora=True)),
    "rslora": (tiny.qwen, lora(use_rslora=True, r=4)),
    "pissa": (tiny.qwen, lora(init_lora_weights="pissa")),
    "olora": (tiny.qwen, lora(init_lora_weights="olora")),
    "gaussian": (tiny.qwen, lora(init_lora_weights="gaussian")),
    "random B": (tiny.qwen, lora(init_lora_weights=False)),
    "dropout": (tiny.qwen, lora(lora_dropout=0.1)),
    "loha": (tiny.qwen, LoHaConfig(target_modules=QV)),
    "oft": (tiny.qwen, OFTConfig(target_modules=QV, oft_block_size=4, use_cayley_neumann=False)),
    "boft": (tiny.qwen, BOFTConfig(target_modules=QV, boft_block_size=4)),
    "tokens alone": (tiny.qwen, peft.TrainableTokensConfig(token_indices=[1, 2])),
}


@pytest.mark.parametrize(
    ("make", "config"),
    [
        pytest.param(*case, id=name)
        for group in (DEFAULT_TARGETS, HEADS, FURTHER_TENSORS, TARGETS, VARIANTS)
        for name, case in group.items()
    ],
)
def test_what_get_peft_model_trains_is_trained(make: Callable[[], nn.Module], config: peft.PeftConfig) -> None:
    base = tiny.seeded(make)
    wrapped = peft.get_peft_model(copy.deepcopy(base), copy.deepcopy(config))
    named = ((name.removeprefix("base_model.model."), p) for name, p in wrapped.named_parameters())
    expected = {name: (p.shape, p.dtype) for name, p in named if p.requires_grad}
    model = read(Model, {"of": base, "adapters": config}, "model")
    built = model.build(TASK)
    assert expected
    assert {n: (p.shape, p.dtype) for n, p in built.named_parameters() if p.requires_grad} == expected
    assert set(model.trainable_params(built)) == set(expected)
    restored = read(Model, {**written(model), "of": base}, "model")
    assert restored.adapters == model.adapters


def test_the_head_of_a_task_is_trained_besides_the_adapters() -> None:
    built = OwnModel(tiny.qwen_classifier(), adapters=PeftMethod("lora", {"task_type": "SEQ_CLS"})).build(TASK)
    trained = [name for name, p in built.named_parameters() if p.requires_grad]
    assert len(trained) == 9
    assert "score.modules_to_save.default.weight" in trained


@pytest.mark.parametrize("adapters", [Lora(targets=("q_proj",)), PeftMethod("lora", {"target_modules": ["q_proj"]})])
def test_adapters_of_a_half_precision_layer_are_float32(adapters: Lora | PeftMethod) -> None:
    built = OwnModel(tiny.llama().to(torch.bfloat16), adapters=adapters).build(TASK)
    dtypes = {name: p.dtype for name, p in built.named_parameters()}
    assert {dtype for name, dtype in dtypes.items() if "lora" in name} == {torch.float32}
    assert {dtype for name, dtype in dtypes.items() if "lora" not in name} == {torch.bfloat16}
    assert tiny.logits(built).dtype == torch.bfloat16


REFUSED = {
    "prompt tuning": (
        peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
        r"^adapters\.method: simfl does not support prompt_tuning, because .*; allowed: adamss, .*, lora, .*$",
    ),
    "prefix tuning": (
        peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
        r"^adapters\.method: simfl does not support prefix_tuning, because",
    ),
    "adalora": (
        AdaLoraConfig(target_modules=QV, total_step=10),
        r"^adapters\.method: simfl does not support adalora, because its ranks are reallocated after each step",
    ),
    "vera": (peft.VeraConfig(target_modules=QV), r"^adapters\.method: simfl does not support vera, because it keeps"),
    "inference": (lora(inference_mode=True), r"^adapters\.settings\.inference_mode: .*; allowed: false$"),
    "eva": (
        lora(init_lora_weights="eva", eva_config=peft.EvaConfig()),
        r"^adapters\.settings\.init_lora_weights: simfl does not support eva, because it reads data .*; allowed: true,",
    ),
    "activated lora": (
        lora(task_type="CAUSAL_LM", alora_invocation_tokens=[1]),
        r"^adapters\.settings\.alora_invocation_tokens: simfl does not support \[1\], because .*; allowed: null$",
    ),
    "kasa": (lora(kasa_config={"beta": 0.1}, r=2), r"^adapters\.settings\.kasa_config: .* needs a loss term"),
    "replicated layers": (lora(layer_replication=[(0, 2), (1, 2)]), r"^adapters\.settings\.layer_replication: "),
    "misspelt target": (
        lora(target_modules=["q_proj", "v_prj"]),
        r"^adapters\.settings\.target_modules: 'v_prj' matches no module; did you mean 'v_proj'\?$",
    ),
    "misspelt head": (
        lora(modules_to_save=["lm_haed"]),
        r"^adapters\.settings\.modules_to_save: 'lm_haed' matches no module; did you mean 'lm_head'\?$",
    ),
    "misspelt rank": (
        lora(rank_pattern={"q_poj": 2}),
        r"^adapters\.settings\.rank_pattern: 'q_poj' matches no module; did you mean 'q_proj'\?$",
    ),
    "misspelt exclusion": (
        lora(exclude_modules=["layers.7.self_attn.q_proj"]),
        r"^adapters\.settings\.exclude_modules: 'layers\.7\.self_attn\.q_proj' matches no module",
    ),
    "missing layer": (
        lora(layers_to_transform=[0, 7]),
        r"^adapters\.settings\.layers_to_transform: there is no layer 7$",
    ),
    "missing token": (
        lora(trainable_token_indices=[5, 40]),
        r"^adapters\.settings\.trainable_token_indices: 40 is no row of the embedding; allowed: 0 to 39$",
    ),
    "missing parameter": (
        lora(target_parameters=["mlp.nothing"]),
        r"^adapters\.settings\.target_parameters: 'mlp\.nothing' matches no parameter; ",
    ),
    "missing head": (
        lora(task_type="SEQ_CLS"),
        r"^adapters\.settings\.task_type: SEQ_CLS trains classifier or score, which .* one of lm_head, model$",
    ),
    "layer of layers": (
        lora(target_modules=["self_attn"]),
        r"^adapters\.settings: .*Attention\( … \) is not supported\.",
    ),
    "expression": (lora(target_modules=".*nothing"), r"^adapters\.settings: Target modules \.\*nothing not found"),
}


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_a_setting_whose_effect_would_be_lost_is_a_one_line_error(config: peft.PeftConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read(Model, {"of": tiny.qwen(), "adapters": config}, "model").build(TASK)
    assert "\n" not in str(error.value)


def test_a_module_that_has_adapters_already_refuses_more() -> None:
    wrapped = peft.get_peft_model(tiny.qwen(), lora())
    with pytest.raises(ConfigError, match=r"^adapters: the module has adapters of peft already"):
        read(Model, {"of": wrapped, "adapters": lora()}, "model").build(TASK)


@pytest.mark.parametrize("method", ["adalora", "prompt_tuning"])
def test_a_module_wrapped_by_peft_is_checked_like_a_configuration(method: str) -> None:
    config: Any = AdaLoraConfig(target_modules=QV, total_step=10)
    if method == "prompt_tuning":
        config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(ConfigError, match=rf"^model\.of: simfl does not support {method}, because"):
        OwnModel(peft.get_peft_model(tiny.qwen(), config)).build(TASK)


def test_a_module_wrapped_by_peft_trains_what_peft_made_trainable() -> None:
    wrapped = peft.get_peft_model(tiny.qwen(), lora(bias="all", modules_to_save=["lm_head"]))
    expected = {name for name, p in wrapped.named_parameters() if p.requires_grad}
    assert set(OwnModel(wrapped).trainable_params(OwnModel(wrapped).build(TASK))) == expected


class Encoder(nn.Module):
    """Torch's own transformer layer, which reads weights of its parts without calling them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).mean(1))


@pytest.mark.parametrize("target", ["self_attn", "out_proj"])
@pytest.mark.parametrize("kind", [Lora, PeftMethod])
def test_adapters_inside_of_torchs_attention_are_refused(target: str, kind: Any) -> None:
    adapters = Lora(targets=("out_proj",)) if kind is Lora else PeftMethod("lora", {"target_modules": [target]})
    with pytest.raises(ConfigError, match=r"'layer\.self_attn' is torch's MultiheadAttention, which does not call"):
        OwnModel(Encoder(), adapters=adapters).build(TASK)


def test_adapters_of_torchs_transformer_layer_have_an_effect_in_evaluation_too() -> None:
    module = OwnModel(Encoder(), adapters=PeftMethod("lora", {"target_modules": ["linear1"]})).build(TASK)
    x = torch.rand(2, 4, 8)
    with torch.no_grad():
        before = module(x).logits
        module.get_parameter("layer.linear1.lora_B.default.weight").fill_(0.5)
        assert not torch.allclose(module(x).logits, before, atol=1e-3)
        assert torch.allclose(module(x).logits, module.train()(x).logits, atol=1e-6)


def test_layer_types_of_the_users_own_are_refused() -> None:
    config = lora()
    config._register_custom_module({nn.Linear: nn.Linear})
    with pytest.raises(ConfigError, match=r"^adapters: the configuration registers layer types"):
        read(Model, {"of": tiny.qwen(), "adapters": config}, "model")


def test_a_model_without_a_known_type_needs_targets() -> None:
    with pytest.raises(ConfigError, match=r"^adapters\.settings: Please specify `target_modules`"):
        read(Model, {"of": nn.Sequential(nn.Linear(3, 4)), "adapters": LoraConfig()}, "model").build(TASK)
    with pytest.raises(ConfigError, match=r"^adapters\.targets: missing, and the model declares none; allowed: 0$"):
        OwnModel(nn.Sequential(nn.Linear(3, 4)), adapters=Lora()).build(TASK)


def test_a_configuration_is_not_changed() -> None:
    config = LoraConfig(task_type="SEQ_CLS")
    before = copy.deepcopy(config.to_dict())
    read(Model, {"of": tiny.qwen_classifier(), "adapters": config}, "model").build(TASK)
    assert config.to_dict() == before


def test_a_refused_method_leaves_no_run_folder(tmp_path: Path) -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    experiment = {
        "name": "refused",
        "data": {split: (torch.zeros(4, 5), torch.tensor([0, 1, 0, 1])) for split in ("train", "valid")},
        "partition": {"by": "iid", "clients": 2},
        "model": {"of": nn.Linear(5, 2), "adapters": config},
        "phases": [{"objective": "classification", "rounds": 1, "clients_per_round": 2,
                    "local": {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 2}}],
    }  # fmt: skip
    with pytest.raises(ConfigError, match="does not support prompt_tuning"):
        simfl.run(experiment, out=tmp_path / "run", backend="inline")
    assert not (tmp_path / "run").exists()
