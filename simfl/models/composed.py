"""Weights over a language model of another package: an encoder of pages, a connector and LoRA, composed on first use.

    config.json          configuration of the whole model, in the format of transformers
    model.safetensors    tensors of all parts but the language model, and LoRA pairs of its linear layers
    composed.json        the name of the language model's weights, for `model.weights`
    *.json, *.jinja      settings of the processor

Matrices may be int8 with a scale per row (`NAME` and `NAME.scale`). The composed model is written to the cache once, in
the layout of transformers, with LoRA merged (Hu et al. 2022: W + s·B·A).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from simfl.errors import ConfigError
from simfl.files import cache_folder, in_turn, make_folder, temp_path
from simfl.models.pretrained import reading

PARTS = "composed.json"
SCALE = ".scale"  # ending of the name of a matrix's scales
LEVELS = 127
VERSION = 1  # of the composition; part of the name of the composed folder
DIGITS = 16  # of the digest, in the name of the composed folder
LANGUAGE = "model.language_model."  # prefix of the language model's parameters


def quantize(tensor: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return a tensor in its stored form, by endings of its name, and the values that are read from it.

    Matrices are int8 with a float16 scale per row, rounded to nearest; tensors of other ranks are float16.
    """
    if tensor.dim() != 2:
        half = tensor.half()
        return {"": half}, half.float()
    scale = (tensor.abs().amax(1).clamp(min=1e-6) / LEVELS).half().clamp(min=1e-7)
    codes = (tensor / scale.float()[:, None]).round().clamp(-LEVELS, LEVELS).to(torch.int8)
    return {"": codes, SCALE: scale}, dequantize(codes, scale)


def dequantize(codes: Tensor, scale: Tensor) -> Tensor:
    """Return the float32 matrix of int8 codes [R, C] and scales [R]."""
    return codes.float() * scale.float()[:, None]


def language_weights(folder: Path) -> str | None:
    """Return the name of the weights of the language model, for a folder that lacks them; None for other folders.

    Raises:
        ConfigError: The file that names them is damaged.
    """
    path = folder / PARTS
    if not path.is_file():
        return None
    with reading(path):
        return str(json.loads(path.read_bytes())["language_model"])


def composed_folder(folder: Path, language: Callable[[], Path]) -> Path:
    """Return the folder of the cache that holds the whole model in the layout of transformers; compose it if need be.

    Args:
        folder: The parts.
        language: Returns the folder of the language model in the layout of transformers.

    Raises:
        ConfigError: A file is damaged, or a tensor fits none of the model.
    """
    digest = _digest(folder)
    found = cache_folder() / "composed" / f"{folder.name}-{digest}-v{VERSION}"
    if found.is_dir():
        return found
    base = language()
    make_folder(found.parent)
    with in_turn(found.parent / f"{found.name}.lock", lambda: None):
        if not found.is_dir():
            _compose(folder, base, found)
    return found


def _compose(folder: Path, base: Path, found: Path) -> None:
    """Write the whole model; also where a plan builds on `meta`."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    temp = temp_path(found)
    try:
        with reading(folder), torch.device("cpu"):
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
            language: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, trust_remote_code=False)
            model.model.language_model.load_state_dict(language.model.state_dict())
            merge(model.model, read_parts(folder / "model.safetensors"))
            model.tie_weights()
            model.save_pretrained(temp)
            AutoTokenizer.from_pretrained(base).save_pretrained(temp)
        for file in (*folder.glob("*processor_config.json"), *folder.glob("*.jinja")):
            shutil.copy(file, temp / file.name)
        temp.rename(found)
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def read_parts(path: Path) -> tuple[dict[str, Tensor], float]:
    """Return the float32 tensors of a file by the model's names, and the factor of LoRA."""
    with safe_open(path, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        factor = float((file.metadata() or {}).get("lora_scale", 1.0))
    tensors = {
        name: dequantize(tensor, stored[name + SCALE]) if name + SCALE in stored else tensor.float()
        for name, tensor in stored.items()
        if not name.endswith(SCALE)
    }
    return tensors, factor


def merge(model: Any, parts: tuple[Mapping[str, Tensor], float]) -> None:
    """Copy tensors into a model, and add LoRA pairs to the weights of their layers.

    Raises:
        ConfigError: A tensor has no counterpart, or a parameter outside of the language model has no tensor.
    """
    tensors, factor = parts
    parameters = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    used = set()
    with torch.no_grad():
        for name, tensor in tensors.items():
            layer, _, pair = name.partition(".lora_")
            target = f"{layer}.weight" if pair else name
            if target not in parameters:
                raise ConfigError(f"model.weights: {name} has no counterpart in {type(model).__name__}")
            used.add(target)
            if pair.startswith("B"):
                parameters[target] += factor * tensor @ tensors[f"{layer}.lora_A.weight"]
            elif not pair:
                parameters[target].copy_(tensor)
    missing = [name for name in parameters if name not in used and not name.startswith(LANGUAGE)]
    if missing:
        raise ConfigError(f"model.weights: {len(missing)} tensors are missing: {', '.join(missing[:4])}")


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (".json", ".safetensors", ".jinja"):
            digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:DIGITS]
