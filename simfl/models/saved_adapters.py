"""Saving of a trained transformers model with adapters, so that `from_pretrained` loads it with nothing missing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from simfl.models.peft_method import TRAINED

ADAPTER = "default"  # peft's name of the adapter that simfl attaches
WEIGHTS = "adapter_model.safetensors"
PLAIN_STARTS = ("gaussian", "orthogonal")  # initializations by name that leave the base unchanged


def save_with_adapters(module: nn.Module) -> None:
    """Let `module.save_pretrained` write base and adapters; modules without both stay as they are."""
    if hasattr(module, TRAINED) and callable(getattr(module, "save_pretrained", None)):
        module.save_pretrained = _SavePretrained(module)  # type: ignore[assignment]


class _SavePretrained:
    """The method `save_pretrained` of a module with adapters."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    def __call__(self, save_directory: str | Path, **options: Any) -> None:
        """Write base and adapters to one folder; or merged weights, where transformers would not load these exactly."""
        module, folder = self.module, Path(save_directory)
        if _must_merge(module):
            merged_copy(module).save_pretrained(folder, **options)
            return
        type(module).save_pretrained(module, folder, state_dict=base_weights(module), **options)
        config = copy.deepcopy(module.peft_config[ADAPTER])
        config.inference_mode = True
        config.save_pretrained(folder)
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        weights = get_peft_model_state_dict(module, adapter_name=ADAPTER)
        tensors = {f"base_model.model.{name}": tensor.detach().clone().contiguous() for name, tensor in weights.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _must_merge(module: Any) -> bool:
    """Return whether adapters changed the base at the start, or have tensors that transformers does not load."""
    config = module.peft_config[ADAPTER]
    start = getattr(config, "init_lora_weights", True)
    tied_rows = bool(getattr(config, "trainable_token_indices", None)) and module.config.tie_word_embeddings
    return bool(
        getattr(config, "use_dora", False) or tied_rows or (isinstance(start, str) and start not in PLAIN_STARTS)
    )


def merged_copy(module: nn.Module) -> Any:
    """Return a copy of the module without adapters, whose weights have their effect; module and copy agree."""
    plain: Any = copy.deepcopy(module)
    for attribute in ("save_pretrained", "forward", "peft_config", TRAINED):
        vars(plain).pop(attribute, None)
    wrappers = _wrappers()
    paths = [path for path, layer in plain.named_modules() if isinstance(layer, wrappers)]
    for path in paths:
        if not any(path.startswith(f"{other}.") for other in paths):
            parent, _, name = path.rpartition(".")
            setattr(plain.get_submodule(parent), name, _merged(plain.get_submodule(path)))
    ends = (plain.get_input_embeddings(), plain.get_output_embeddings())
    if plain.config.tie_word_embeddings and all(ends) and not torch.equal(ends[0].weight, ends[1].weight):
        plain.config.tie_word_embeddings = False
    return plain


def _merged(layer: Any) -> nn.Module:
    """Return the module around which peft put a wrapper, with the wrapper's effect in its weights."""
    modules = dict(layer.named_children())
    if "modules_to_save" in modules:
        trained: nn.Module = layer.modules_to_save[ADAPTER]
        return trained
    layer = modules.get("token_adapter", layer)
    layer.merge()
    base: nn.Module = layer.get_base_layer()
    return base


def base_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the weights of the base under the names that they have without adapters."""
    found: dict[str, Tensor] = {}
    _collect(module, "", _wrappers(), found)
    return found


def _wrappers() -> tuple[type, ...]:
    """Return the classes that peft puts around a layer."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return BaseTunerLayer, AuxiliaryTrainingWrapper


def _collect(layer: nn.Module, prefix: str, wrappers: tuple[type, ...], found: dict[str, Tensor]) -> None:
    """Add the tensors of a layer and what it contains to `found`; a wrapper of peft stands for what it wraps."""
    while isinstance(layer, wrappers):
        layer = _wrapped(layer)
    for name, tensor in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
        if name not in layer._non_persistent_buffers_set:
            found[prefix + name] = tensor.detach()
    for name, child in layer.named_children():
        _collect(child, f"{prefix}{name}.", wrappers, found)


def _wrapped(layer: Any) -> nn.Module:
    """Return the module around which peft put a wrapper."""
    modules: dict[str, nn.Module] = dict(layer.named_children())
    for name in ("base_layer", "original_module"):
        if name in modules:
            return modules[name]
    adapter = modules["token_adapter"]
    return _wrapped(adapter)
