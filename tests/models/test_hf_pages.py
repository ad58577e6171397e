"""Models of transformers that read pages: what is refused, and how batches with pages of different sizes are read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

import simfl
from simfl.data.base import Split
from simfl.errors import ConfigError, DataError
from simfl.models.hf import HuggingFace
from simfl.models.hf_processor import _processor_class
from simfl.objectives.chat import Chat
from simfl.protocol import Task

TEXT = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1,
}  # fmt: skip
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 16,
    "patch_size": 8,
}
ROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}}
QWEN: dict[str, Any] = {"model_type": "qwen2_5_vl", "text_config": TEXT | ROPE, "vision_config": VISION}
GEMMA: dict[str, Any] = {
    "model_type": "paligemma", "projection_dim": 16, "text_config": {"model_type": "gemma", "head_dim": 8, **TEXT},
    "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "image_size": 16, "patch_size": 8, "projection_dim": 16},
}  # fmt: skip


def image(height: int) -> bytes:
    out = io.BytesIO()
    shades = np.random.default_rng(height).integers(0, 255, (height, 40, 3), dtype=np.uint8)
    Image.fromarray(shades).save(out, "PNG")
    return out.getvalue()


def row(number: int) -> dict[str, Any]:
    letter, page = number % 2, number % 3
    question = {"question": f"what is {'ab'[letter]} ?", "answers": ["ba"[letter]]}
    return {**question, "shop": f"s{page % 2}", "image": image(32 + 16 * page)}


def rows(count: int) -> list[dict[str, Any]]:
    return [row(number) for number in range(count)]


def train(tmp_path: Path, model: dict[str, Any]) -> simfl.Run:
    phase = {
        "objective": {"name": "chat", "max_answer": 4}, "rounds": 1, "clients_per_round": 2,
        "local": {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 1, "batch_size": 3},
    }  # fmt: skip
    experiment = {
        "name": "pages", "data": {"train": rows(6), "valid": rows(2)}, "model": {"name": "hf", **model},
        "partition": {"by": "natural", "column": "shop"}, "execution": {"mode": "vectorized"}, "phases": [phase],
    }  # fmt: skip
    return simfl.run(experiment, out=tmp_path / "run", backend="inline")


def test_a_batch_of_pages_of_different_sizes_gives_the_logits_of_each_alone() -> None:
    model = HuggingFace(config=QWEN)
    module, chat = model.build(Task(1)), Chat()
    examples = chat.encode(Split(pa.Table.from_pylist(rows(3))), model.tokenizer())
    assert examples.shared["pixel_values"][1].dtype == torch.uint8
    assert examples.rows["num_pixel_values"].unique().numel() == 2
    batch = examples.take(torch.arange(3))
    together: Any = chat.run(module, {name: batch[name] for name in chat.inputs if name in batch})
    for row in range(3):
        one = examples.take(torch.tensor([row]))
        alone: Any = chat.run(module, {name: one[name] for name in chat.inputs if name in one})
        used = one["labels"][0] >= 0
        torch.testing.assert_close(together.logits[row][used], alone.logits[0][used], rtol=1e-4, atol=1e-5)


def test_image_tokens_that_are_not_as_many_as_the_features_are_refused_before_the_run(tmp_path: Path) -> None:
    adapters = {"kind": "lora", "targets": ["q_proj"]}
    with pytest.raises(ConfigError, match=r"model\.processor: Image features and image tokens do not match"):
        train(tmp_path, {"config": GEMMA, "adapters": adapters, "processor": {"image_seq_length": 3}})
    assert not (tmp_path / "run").exists()


def test_all_weights_are_trained_one_client_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"execution\.mode: vectorized, but a model that reads images trains several"):
        train(tmp_path, {"config": GEMMA})
    assert not (tmp_path / "run").exists()


def test_an_encoder_of_images_is_not_trained_together_on_pages_of_different_sizes(tmp_path: Path) -> None:
    adapters = {"kind": "lora", "targets": ["*visual*qkv"]}
    with pytest.raises(
        ConfigError, match="is trained on pages of which the model reads different numbers of patches; a"
    ):
        train(tmp_path, {"config": QWEN, "adapters": adapters})
    assert not (tmp_path / "run").exists()


def test_images_are_left_out_or_required_if_asked_for() -> None:
    model = HuggingFace(config=GEMMA)
    split = Split(pa.Table.from_pylist(rows(2)))
    assert not Chat(image=False).encode(split, model.tokenizer()).shared
    llama = HuggingFace(config={"model_type": "llama", **TEXT})
    assert not Chat().encode(split, llama.tokenizer()).shared
    with pytest.raises(DataError, match="chat: image: true, but the model reads no images"):
        Chat(image=True).encode(split, llama.tokenizer())


def test_questions_that_are_drawn_into_pages_are_refused() -> None:
    pix2struct = {
        "model_type": "pix2struct", "is_vqa": True,
        "vision_config": {"hidden_size": 8, "d_ff": 8, "d_kv": 4, "num_hidden_layers": 1, "num_attention_heads": 2},
        "text_config": {"hidden_size": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"^model\.processor\.is_vqa: true, by which the question is drawn"):
        HuggingFace(config=pix2struct, processor={"is_vqa": True}).tokenizer()


def test_a_processor_without_weights_has_no_videos_where_torchvision_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.utils.is_torchvision_available", lambda: True)
    config = type("Config", (), {"model_type": "qwen2_5_vl"})()
    assert "video_processor" not in _processor_class(config, None).get_attributes()
    (tmp_path / "processor_config.json").write_text("{}")
    assert "video_processor" not in _processor_class(config, tmp_path).get_attributes()
    (tmp_path / "video_preprocessor_config.json").write_text("{}")
    assert "video_processor" in _processor_class(config, tmp_path).get_attributes()
