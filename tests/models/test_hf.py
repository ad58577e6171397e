"""Models of transformers from settings: random weights, folders of weights, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import simfl
from simfl.errors import ConfigError, RunError
from simfl.models.hf import HuggingFace
from simfl.models.hf_tokenizer import HfTokenizer, load_tokenizer
from simfl.models.lora import Lora
from simfl.models.meta_device import build_on_meta, drop_remote_weights
from simfl.models.peft_method import PeftMethod
from simfl.protocol import Task

TASK = Task(seed=3)
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
T5: dict[str, Any] = {"model_type": "t5", "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4}
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 96}
QWEN3: dict[str, Any] = LLAMA | {"model_type": "qwen3", "head_dim": 4}
GEMMA: dict[str, Any] = LLAMA | {"model_type": "gemma", "head_dim": 4, "num_key_value_heads": 1}
BERT: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
GENERATING = {"llama": LLAMA, "t5": T5, "gpt2": GPT2, "qwen3": QWEN3, "gemma": GEMMA}
LOCAL = {"optimizer": "adamw", "learning_rate": 3e-3, "epochs": 1, "batch_size": 4}
WORDS = {0: "bad late rude old", 1: "good quick kind new"}


def orders(count: int) -> list[dict[str, Any]]:
    labels = [(n * 7) % 3 % 2 for n in range(count)]
    return [
        {"text": f"the order was {WORDS[k].split()[n % 4]}", "label": ["no", "yes"][k], "shop": f"s{n % 3}"}
        for n, k in enumerate(labels)
    ]


def questions(count: int) -> list[dict[str, Any]]:
    return [
        {"question": f"what is {'abcdefgh'[n % 8]} ?", "answers": ["hgfedcba"[n % 8]], "shop": f"s{n % 3}"}
        for n in range(count)
    ]


def train(tmp_path: Path, data: Any, model: dict[str, Any], objective: str, mode: str = "sequential") -> simfl.Run:
    return simfl.run(
        {
            "name": mode,
            "data": {"train": data(18), "valid": data(6)},
            "partition": {"by": "natural", "column": "shop"},
            "model": {"name": "hf", **model},
            "execution": {"mode": mode},
            "phases": [{"objective": objective, "rounds": 2, "clients_per_round": 2, "local": LOCAL}],
        },
        out=tmp_path / mode,
        backend="inline",
    )


def weights_of(run: simfl.Run) -> dict[str, Tensor]:
    return run.snapshot().server.weights


@pytest.mark.parametrize("kind", GENERATING)
def test_generating_models_train_alike_in_both_modes_and_are_exported(kind: str, tmp_path: Path) -> None:
    model = {"config": GENERATING[kind], "adapters": {"kind": "lora", "rank": 2, "dropout": 0.1}}
    first, second = (train(tmp_path, questions, model, "chat", mode) for mode in ("sequential", "vectorized"))
    one, other = weights_of(first), weights_of(second)
    assert all("lora" in name for name in one)
    assert any((t != 0).any() for n, t in one.items() if "lora_B" in n)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-6)

    trained: Any = first.model()
    auto = transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModelForCausalLM
    ids = torch.arange(4, 12).reshape(2, 4)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if kind == "t5" else {})
    for name, merge in (("with_adapters", False), ("merged", True)):
        files = first.export(tmp_path / name, merge=merge)
        assert ("adapter_config.json" in files) is not merge
        loaded, info = auto.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        torch.testing.assert_close(loaded(**inputs).logits, trained(**inputs).logits, rtol=1e-4, atol=1e-5)
        tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        assert tokens("what is a ?")["input_ids"] == load_tokenizer(None)("what is a ?")["input_ids"]


def test_predictions_are_those_of_generate_for_each_prompt_alone(tmp_path: Path) -> None:
    run = train(tmp_path, questions, {"config": LLAMA}, "chat")
    trained: Any = run.model()
    tokenizer = load_tokenizer(None)
    found = {row["row"]: row["predicted_answer"] for row in run.samples().to_pylist() if row["split"] == "valid"}
    for row, text in list(found.items())[:3]:
        prompt = tokenizer(questions(6)[int(row)]["question"], return_tensors="pt", add_special_tokens=False)
        out = trained.generate(
            input_ids=prompt["input_ids"], attention_mask=prompt["attention_mask"], max_new_tokens=32
        )
        assert tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True).strip() == text


def test_weights_of_a_folder_are_loaded_and_a_new_head_is_trained(tmp_path: Path) -> None:
    config = transformers.BertConfig(**{k: v for k, v in BERT.items() if k != "model_type"}, vocab_size=600)
    base = transformers.BertModel(config)
    base.save_pretrained(tmp_path / "bert")
    load_tokenizer(None).save_pretrained(tmp_path / "bert")
    model = {"weights": str(tmp_path / "bert"), "task": "sequence_classification", "adapters": {"kind": "lora"}}
    run = train(tmp_path, orders, model, "text_classification")
    sent = weights_of(run)
    assert {"classifier.weight", "classifier.bias"} <= set(sent)
    assert sent["classifier.weight"].shape == (2, 16)
    trained: Any = run.model()
    key = "bert.encoder.layer.0.attention.self.key.weight"
    torch.testing.assert_close(dict(trained.named_parameters())[key], base.encoder.layer[0].attention.self.key.weight)


def test_half_precision_and_checkpointing_are_set() -> None:
    module: Any = HuggingFace(config=LLAMA, dtype="bfloat16", checkpointing=True, adapters=Lora(rank=2)).build(TASK)
    dtypes = {name: parameter.dtype for name, parameter in module.named_parameters()}
    assert dtypes["model.embed_tokens.weight"] == torch.bfloat16
    assert {dtype for name, dtype in dtypes.items() if "lora" in name} == {torch.float32}
    assert "gradient checkpointing" in module.grouped_only


def test_several_clients_train_together_under_checkpointing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = {"config": LLAMA, "checkpointing": True, "adapters": {"kind": "lora", "rank": 2, "dropout": 0.1}}
    kept = train(tmp_path / "kept", questions, model | {"checkpointing": False}, "chat")
    one, other = (train(tmp_path, questions, model, "chat", mode) for mode in ("sequential", "vectorized"))
    for name, tensor in weights_of(kept).items():
        assert torch.equal(tensor, weights_of(one)[name])
        torch.testing.assert_close(tensor, weights_of(other)[name], rtol=1e-4, atol=1e-6)
    assert "use_cache" not in caplog.text


def test_a_plan_builds_it_on_the_meta_device_with_the_same_shapes(tmp_path: Path) -> None:
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=600, n_embd=16, n_layer=1, n_head=2)
    ).save_pretrained(tmp_path)
    load_tokenizer(None).save_pretrained(tmp_path)
    model = HuggingFace(weights=str(tmp_path))
    shapes = {name: parameter.shape for name, parameter in model.build(TASK).named_parameters()}
    on_meta = build_on_meta(model, TASK)
    assert {name: parameter.shape for name, parameter in on_meta.named_parameters()} == shapes
    assert all(parameter.is_meta for parameter in on_meta.parameters())


def test_the_head_of_a_classifier_is_planned_as_it_is_trained(tmp_path: Path) -> None:
    config = transformers.BertConfig(**{k: v for k, v in BERT.items() if k != "model_type"}, vocab_size=600)
    transformers.BertModel(config).save_pretrained(tmp_path)
    load_tokenizer(None).save_pretrained(tmp_path)
    task, own = Task(3, num_classes=4), Lora(rank=2)
    model = HuggingFace(weights=str(tmp_path), task="sequence_classification", adapters=own)
    on_meta = build_on_meta(model, task)
    assert model.trainable_params(on_meta) == model.trainable_params(model.build(task))
    assert "classifier.weight" in model.trainable_params(on_meta)
    exact = HuggingFace(weights=str(tmp_path), task="sequence_classification", adapters=PeftMethod("lora"))
    assert "classifier.weight" not in exact.trainable_params(exact.build(task))


def test_a_plan_keeps_the_name_of_remote_weights() -> None:
    model = HuggingFace(weights="someone/some-model")
    assert drop_remote_weights(model) is model


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "model.config.model_type: without weights, it needs a model_type"),
        ({"config": {"model_type": "lama"}}, "'lama' is no model type of transformers; did you mean"),
        ({"config": LLAMA | {"hiden_size": 3}}, "model.config.hiden_size: 'llama' has no such setting; did you mean"),
        ({"config": BERT}, "model.task: 'bert' does not say its task; allowed: causal_lm, sequence_classification"),
        ({"config": T5, "task": "causal_lm"}, "model.task: 't5' has no model for 'causal_lm'; allowed: seq2seq"),
        ({"config": LLAMA | {"vocab_size": 20}}, "model.config.vocab_size: 20 rows are too few for"),
        ({"config": LLAMA, "gguf": "a.gguf"}, "model.gguf: 'a.gguf' is a file among weights"),
        ({"config": LLAMA | {"num_attention_heads": 3}}, "model.config:"),
        ({"weights": "nowhere"}, "model.weights: 'nowhere' is not a folder, a hub id or bundled weights"),
    ],
)
def test_settings_that_cannot_be_built_are_refused_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        HuggingFace(**settings).build(TASK)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    wrong = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=600, n_embd=16, n_layer=1, n_head=2))
    wrong.save_pretrained(tmp_path)
    transformers.LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "model_type"}, vocab_size=600).save_pretrained(
        tmp_path
    )
    load_tokenizer(None).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.weights: .* lacks \d+ tensors of LlamaForCausalLM"):
        HuggingFace(weights=str(tmp_path), task="causal_lm").build(TASK)


def test_a_model_of_another_library_and_a_full_folder_are_not_exported(tmp_path: Path) -> None:
    rows = [{"features": [float(n), 1.0], "label": n % 2} for n in range(8)]
    phases = [{"objective": "classification", "rounds": 1, "clients_per_round": 1, "local": LOCAL}]
    run = simfl.run(
        {
            "name": "mlp",
            "data": {"train": rows, "valid": rows},
            "partition": {"by": "iid", "clients": 2},
            "model": "mlp",
            "phases": phases,
        },
        out=tmp_path / "mlp",
        backend="inline",
    )
    with pytest.raises(RunError, match=r"the model, \w+, is none of transformers"):
        run.export(tmp_path / "new")
    with pytest.raises(RunError, match="is not an empty folder"):
        run.export(tmp_path / "mlp")


def test_a_tokenizer_without_an_end_encodes_texts_and_gives_no_answers() -> None:
    tokenizer = HfTokenizer(SimpleNamespace(pad_token_id=3, eos_token_id=None))
    assert tokenizer.end_id == 3
    with pytest.raises(ConfigError, match="no token that ends a text"):
        tokenizer.answer_end()
