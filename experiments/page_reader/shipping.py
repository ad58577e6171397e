"""The page reader as a small folder: encoder, connector and LoRA, without the language model, which is a package."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from drawing import PATCH, SIDE
from network import ALPHA, IMAGE_TOKEN, RANK, TEMPLATE, Language
from safetensors.torch import save_file
from torch import Tensor

from simfl.models.composed import PARTS, quantize, read_parts

IMAGES = {
    "image_processor_type": "SiglipImageProcessor", "processor_class": "LlavaProcessor", "do_convert_rgb": True,
    "do_resize": True, "size": {"height": SIDE, "width": SIDE}, "resample": 3, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip
PROCESSOR = {
    "processor_class": "LlavaProcessor", "patch_size": PATCH, "vision_feature_select_strategy": "full",
    "image_token": IMAGE_TOKEN, "num_additional_image_tokens": 0,
}  # fmt: skip


def parts(model: Any, language: Language) -> Iterator[tuple[str, Tensor]]:
    """Yield the trained tensors by their names in the folder."""
    for name, parameter in model.named_parameters():
        if "language_model" not in name and "lm_head" not in name:
            yield name, parameter
    yield from language.named_pairs()


@torch.no_grad()
def pack(model: Any, language: Language, folder: Path, base: str) -> None:
    """Write the trained tensors, matrices as int8 with a scale per row. An earlier file is replaced at once.

    Args:
        model: The page reader.
        language: Its language model in training, with LoRA.
        folder: Where to write.
        base: The name of the language model's weights.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in parts(model, language):
        stored, _ = quantize(tensor.detach().float().cpu())
        tensors |= {f"{name}{ending}": stored_part.contiguous() for ending, stored_part in stored.items()}
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    files = {
        PARTS: {"language_model": base},
        "preprocessor_config.json": IMAGES,
        "processor_config.json": PROCESSOR,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    temp = folder / "model.safetensors.new"
    save_file(tensors, temp, metadata={"format": "pt", "lora_scale": str(ALPHA / RANK)})
    os.replace(temp, folder / "model.safetensors")


@torch.no_grad()
def unpack(model: Any, language: Language, folder: Path) -> None:
    """Set the trained tensors to those of a folder."""
    stored, _ = read_parts(folder / "model.safetensors")
    for name, tensor in parts(model, language):
        tensor.copy_(stored[name])
