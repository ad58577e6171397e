"""Models on the meta device: names and shapes, without memory, and without downloading weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
import torch._decomp
from torch import Tensor, _compile, nn

from simfl.models.base import Model
from simfl.models.own import WrappedModel
from simfl.models.pretrained import local_folder
from simfl.protocol import Task

DISABLED = "__dynamo_disable"  # the attribute in which torch caches what `torch._disable_dynamo` made of a function
WEIGHT_SETTINGS = ("weights", "text", "patches")  # settings of models that name weights
PUBLISHED_SIZES = {  # sizes of well-known weights, for settings that leave the size to the weights
    "dandelin/vilt-b32-mlm": "base",
    "dandelin/vilt-b32-finetuned-vqa": "base",
    "google/vit-base-patch16-224": "base",
    "google/vit-base-patch16-224-in21k": "base",
    "rubentito/vt5-base-spdocvqa": "base",
    "google-t5/t5-base": "base",
    "google-t5/t5-small": "small",
}


def build_on_meta(model: Model, task: Task) -> nn.Module:
    """Build what `model.build` builds on the meta device, tied parameters included.

    Weights in local folders are read for their sizes. Remote weights are ignored if the settings or `PUBLISHED_SIZES`
    give the size, and downloaded otherwise.
    """
    local = drop_remote_weights(model)
    try:
        with torch.device("meta"):
            module = local.build(task)
    except (NotImplementedError, RuntimeError):  # a user's module that reads its values, or loads some
        module = local.build(task)
    return _to_meta(module)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Keep arithmetic on the meta device inside the block from importing torch's compiler, which takes seconds.

    Torch's kernels for that device import the compiler only to exclude themselves from it. Here they are marked as
    excluded already.
    """
    marked: list[FunctionType] = []
    if "torch._dynamo" not in sys.modules:
        visited: set[FunctionType] = set()
        for table in torch._decomp.global_decomposition_table.values():
            for kernel in table.values():
                _mark_excluded(kernel, visited, marked)
    try:
        yield
    finally:
        for function in marked:
            vars(function).pop(DISABLED, None)


def _mark_excluded(function: Callable[..., Any], visited: set[FunctionType], marked: list[FunctionType]) -> None:
    """Mark the functions that `torch._disable_dynamo` wraps, found by following closures."""
    if not isinstance(function, FunctionType) or function in visited:
        return
    visited.add(function)
    for cell in function.__closure__ or ():
        inner = cell.cell_contents
        wrapped = isinstance(inner, FunctionType) and function.__code__.co_filename == _compile.__file__
        if wrapped and DISABLED not in vars(inner):
            setattr(inner, DISABLED, inner)
            marked.append(inner)
        _mark_excluded(inner, visited, marked)


def drop_remote_weights(model: Model) -> Model:
    """Return `model` without weights that would be downloaded, if its size is known without them."""
    settings: Any = model
    remote = [name for name in WEIGHT_SETTINGS if _is_remote(getattr(model, name, None))]
    if not remote or isinstance(model, WrappedModel):  # these read the configuration of remote weights
        return model
    if getattr(model, "size", "") is not None:
        return replace(settings, **dict.fromkeys(remote))
    if settings.weights not in PUBLISHED_SIZES:
        return model
    return replace(settings, size=PUBLISHED_SIZES[settings.weights], **dict.fromkeys(remote))


def _is_remote(weights: str | None) -> bool:
    return weights is not None and local_folder(weights) is None


def _to_meta(module: nn.Module) -> nn.Module:
    """Replace tensors that hold memory in place, as in a user's module that was given with its weights."""
    replaced: dict[int, Tensor] = {}  # by identity, so that ties are kept
    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, tensor in table.items():
                if tensor is None or tensor.is_meta:
                    continue
                if id(tensor) not in replaced:
                    empty = torch.empty_like(tensor, device="meta")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    replaced[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
                table[name] = replaced[id(tensor)]  # type: ignore[assignment]
    return module
