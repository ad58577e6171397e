"""Pages of models of transformers: pixels as uint8 that give exactly the processor's floats, and tables of pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from simfl.errors import ConfigError, DataError
from simfl.models.hf import HuggingFace
from simfl.models.page_pixels import PixelScale, page_tables, unpacked
from simfl.protocol import Task

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SCALE = PixelScale(1 / 255, MEAN, STD)


def floats(pixels: np.ndarray) -> np.ndarray:
    """Return what transformers' numpy code makes of pixels [n, 3, H, W]."""
    scaled = (pixels.astype(np.float64) * (1 / 255)).astype(np.float32)
    mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (MEAN, STD))
    found: np.ndarray = (scaled - mean) / std
    return found


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 4, 6), dtype=np.uint8)


def test_pixels_are_stored_and_give_the_same_floats_bit_for_bit() -> None:
    pages = [{"pixel_values": floats(images(n, n))} for n in (2, 3)]
    found = page_tables(pages, SCALE)
    assert found.tables["pixel_values"].dtype == torch.uint8
    assert found.counts["pixel_values"].tolist() == [2, 3]
    batch = {"pixel_values": found.tables["pixel_values"], "num_pixel_values": found.counts["pixel_values"]}
    again = unpacked(batch, ["pixel_values"], SCALE)["pixel_values"]
    assert torch.equal(again, torch.from_numpy(np.concatenate([page["pixel_values"] for page in pages])))


def test_floats_that_are_of_no_pixels_are_kept() -> None:
    pages = [{"pixel_values": floats(images(1)) + np.float32(0.001)}]
    found = page_tables(pages, SCALE)
    assert found.tables["pixel_values"].dtype == torch.float32
    again = unpacked(found.tables, ["pixel_values"], SCALE)["pixel_values"]
    assert torch.equal(again, torch.from_numpy(pages[0]["pixel_values"]))


def test_padded_images_stay_zero() -> None:
    values = floats(images(2))[None]
    values[0, 1] = 0.0
    mask = np.array([[True, False]])
    found = page_tables([{"pixel_values": values, "pixel_attention_mask": mask}], SCALE)
    assert found.tables["pixel_values"].dtype == torch.uint8
    again = unpacked(found.tables, ["pixel_values", "pixel_attention_mask"], SCALE)
    assert torch.equal(again["pixel_values"], torch.from_numpy(values))


def test_copies_of_a_still_image_in_a_patch_are_stored_once() -> None:
    vision = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 8}
    text = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = HuggingFace(config={"model_type": "qwen2_5_vl", "vision_config": vision, "text_config": text})
    processor = model.tokenizer().processor
    assert processor is not None
    page = Image.fromarray(np.random.default_rng(1).integers(0, 255, (140, 98, 3), dtype=np.uint8))
    found, _ = processor.pages([page], ["page"])
    pixels, patches = found.stored
    assert (pixels, patches) == (140 * 112 * 3, 140 * 112 * 3 * 2 * 4)  # the sides are multiples of 28
    again = processor.inputs(found.tables, ["pixel_values"])["pixel_values"]
    direct = processor.processor.image_processor([page], return_tensors="pt")["pixel_values"]
    assert torch.equal(again, direct)


def test_a_processor_is_saved_with_its_settings_and_loaded_again(tmp_path: Path) -> None:
    vision = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    text = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "smolvlm", "vision_config": vision, "text_config": text, "scale_factor": 2}
    model = HuggingFace(config=config)
    processor: Any = model.tokenizer().processor
    model.build(Task(1)).save_pretrained(tmp_path)
    processor.save(tmp_path)
    loaded: Any = HuggingFace(weights=str(tmp_path)).tokenizer().processor
    assert processor.processor.image_seq_len == loaded.processor.image_seq_len == 4
    assert loaded.processor.image_processor.to_dict() == processor.processor.image_processor.to_dict()


TINY: dict[str, Any] = {
    "model_type": "paligemma", "projection_dim": 8,
    "vision_config": {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "image_size": 16, "patch_size": 8, "projection_dim": 8},
    "text_config": {"model_type": "gemma", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
                    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4},
}  # fmt: skip


def test_an_unknown_setting_of_the_processor_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"model\.processor\.sizes: PaliGemmaProcessor has no such setting; did you"):
        HuggingFace(config=TINY, processor={"sizes": 3}).build(Task(1))
    llama = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}
    with pytest.raises(ConfigError, match=r"model\.processor: 'llama' reads no images in task 'causal_lm'"):
        HuggingFace(config=llama, processor={"size": 3}).tokenizer()


def test_a_page_that_the_processor_refuses_is_named() -> None:
    processor = HuggingFace(config=TINY, processor={"do_resize": False}).tokenizer().processor
    assert processor is not None
    processor.processor.image_processor.image_mean = [0.5, 0.5]
    with pytest.raises(DataError, match="page 7: the model's image processor refuses it"):
        processor.pages([Image.new("RGB", (16, 16))], ["page 7"])
