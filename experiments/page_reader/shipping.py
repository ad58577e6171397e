"""The page reader as a small folder: encoder, connector and LoRA, without the language model, which is a package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from drawing import PATCH, SIDE
from network import ALPHA, IMAGE_TOKEN, RANK, TEMPLATE
from safetensors.torch import save_file
from torch import Tensor

from simfl.models.composed import PARTS, quantize

IMAGES = {
    "image_processor_type": "SiglipImageProcessor", "processor_class": "LlavaProcessor", "do_convert_rgb": True,
    "do_resize": True, "size": {"height": SIDE, "width": SIDE}, "resample": 3, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip
PROCESSOR = {
    "processor_class": "LlavaProcessor", "patch_size": PATCH, "vision_feature_select_strategy": "full",
    "image_token": IMAGE_TOKEN, "num_additional_image_tokens": 0,
}  # fmt: skip


def pack(model: Any, folder: Path, language: str) -> None:
    """Write the trained tensors, matrices as int8 with a scale per row, and make the model's equal to what is read.

    Args:
        model: The page reader with LoRA of peft; changed in place.
        folder: Where to write.
        language: The name of the language model's weights.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "embed_tokens" not in name:
            stored, read = quantize(parameter.detach().float().cpu())
            short = name.replace(".base_layer", "").replace(".default", "")
            tensors |= {f"{short}{ending}": tensor.contiguous() for ending, tensor in stored.items()}
            with torch.no_grad():
                parameter.copy_(read)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", "lora_scale": str(ALPHA / RANK)})
    model.config.save_pretrained(folder)
    files = {
        PARTS: {"language_model": language},
        "preprocessor_config.json": IMAGES,
        "processor_config.json": PROCESSOR,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
