"""Weights over a language model of another package: int8 matrices, merged LoRA, and the composed folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from simfl.errors import ConfigError
from simfl.models import composed
from simfl.models.composed import composed_folder, dequantize, language_weights, merge, quantize, read_parts
from simfl.models.hf_tokenizer import load_tokenizer

transformers = pytest.importorskip("transformers")
TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True}  # fmt: skip
VISION = {"model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 2, "image_size": 16, "patch_size": 8, "vision_use_head": False}  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A tiny language model in the layout of transformers."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer(None)
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), **TEXT)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def parts(tmp_path: Path, base: Path) -> Path:
    """An encoder, a connector and LoRA of one layer over it."""
    text = transformers.AutoConfig.from_pretrained(base)
    config = transformers.LlavaConfig(
        vision_config=VISION, text_config=text.to_dict(), image_token_id=3, image_seq_length=4,
        vision_feature_layer=-1, vision_feature_select_strategy="full", tie_word_embeddings=True,
    )  # fmt: skip
    config.architectures = ["LlavaForConditionalGeneration"]
    model = transformers.LlavaForConditionalGeneration(config)
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if "language_model" not in name and "lm_head" not in name:
            stored, _ = quantize(parameter.detach())
            tensors |= {f"{name}{ending}": tensor for ending, tensor in stored.items()}
    layer = "model.language_model.layers.0.self_attn.q_proj"
    tensors |= {f"{layer}.lora_A.weight": torch.randn(2, 16), f"{layer}.lora_B.weight": torch.randn(16, 2)}
    folder = tmp_path / "reader"
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"lora_scale": "2.0"})
    (folder / composed.PARTS).write_text(json.dumps({"language_model": "base"}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def test_matrices_are_read_within_half_a_level_and_vectors_as_float16():
    values = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    stored, read = quantize(values)
    assert stored[""].dtype == torch.int8
    assert torch.equal(dequantize(stored[""], stored[composed.SCALE]), read)
    assert ((read - values).abs() <= values.abs().amax(1, keepdim=True) / 254 * 1.01).all()
    assert torch.equal(quantize(values[0])[1], values[0].half().float())
    assert torch.equal(quantize(torch.zeros(2, 3))[1], torch.zeros(2, 3))


def test_the_composed_model_has_the_language_model_with_lora_merged(base, parts, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    assert language_weights(base) is None
    assert language_weights(parts) == "base"
    folder = composed_folder(parts, lambda: base)
    model, info = transformers.AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    plain = dict(transformers.AutoModelForCausalLM.from_pretrained(base).model.named_parameters())
    tensors, factor = read_parts(parts / "model.safetensors")
    pair = [tensors[f"model.language_model.layers.0.self_attn.q_proj.lora_{x}.weight"] for x in "BA"]
    for name, parameter in model.model.language_model.named_parameters():
        change = factor * pair[0] @ pair[1] if "q_proj" in name else 0.0
        assert torch.equal(parameter, plain[name] + change), name
    for name, parameter in model.model.named_parameters():
        if not name.startswith("language_model"):
            assert torch.equal(parameter, tensors[f"model.{name}"]), name
    assert (folder / "chat_template.jinja").is_file()
    assert composed_folder(parts, lambda: pytest.fail("it is composed already")) == folder


def test_missing_and_unknown_tensors_are_refused_by_name(parts):
    config = transformers.AutoConfig.from_pretrained(parts)
    model = transformers.LlavaForConditionalGeneration(config).model
    tensors, factor = read_parts(parts / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.other has no counterpart"):
        merge(model, ({"model.other": torch.zeros(1)}, factor))
    lacking = {name: tensor for name, tensor in tensors.items() if "linear_1" not in name}
    with pytest.raises(ConfigError, match=r"2 tensors are missing: model\.multi_modal_projector\.linear_1"):
        merge(model, (lacking, factor))


def test_a_damaged_file_of_parts_is_refused_in_one_line(parts):
    (parts / composed.PARTS).write_text("{")
    with pytest.raises(ConfigError, match=r"composed\.json cannot be read"):
        language_weights(parts)
