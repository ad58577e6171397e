"""A model's names and shapes alone: on the meta device, without memory, and without weights that are not here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
import torch._decomp
from torch import Tensor, _compile, nn

from simfl.models import pretrained as start
from simfl.models.base import Model
from simfl.protocol import Task

TOLD = "__dynamo_disable"  # where a wrapped function keeps what the compiler made of it
FIELDS = ("weights", "text", "patches")  # of models, that name weights
PUBLISHED = {  # the sizes of well-known weights, for settings that leave the size to them
    "dandelin/vilt-b32-mlm": "base",
    "dandelin/vilt-b32-finetuned-vqa": "base",
    "google/vit-base-patch16-224": "base",
    "google/vit-base-patch16-224-in21k": "base",
    "rubentito/vt5-base-spdocvqa": "base",
    "google-t5/t5-base": "base",
    "google-t5/t5-small": "small",
}


def sketch(model: Model, task: Task) -> nn.Module:
    """What `model.build` makes, on the meta device, with its ties.

    Weights in folders of this machine are looked at, for their sizes. Others are left out, where the settings or a
    table of well-known weights tell the size; where neither does, they are fetched.
    """
    here = without_distant(model)
    try:
        with torch.device("meta"):
            module = here.build(task)
    except (NotImplementedError, RuntimeError):  # a module of one's own that looks at its values, or loads some
        module = here.build(task)
    return _without_memory(module)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Inside the block, arithmetic on the meta device does not import torch's compiler, which takes seconds.

    Torch's kernels for that device ask the compiler to leave them alone; here they are told that it does.
    """
    told: list[Any] = []
    if "torch._dynamo" not in sys.modules:
        found: set[FunctionType] = set()
        for table in torch._decomp.global_decomposition_table.values():
            for kernel in table.values():
                _tell(kernel, found, told)
    try:
        yield
    finally:
        for function in told:
            vars(function).pop(TOLD, None)


def _tell(function: object, found: set[FunctionType], told: list[Any]) -> None:
    """Go down to the functions that `torch._disable_dynamo` has wrapped."""
    if not isinstance(function, FunctionType) or function in found:
        return
    found.add(function)
    for cell in function.__closure__ or ():
        inner = cell.cell_contents
        wrapped = isinstance(inner, FunctionType) and function.__code__.co_filename == _compile.__file__
        if wrapped and TOLD not in vars(inner):
            setattr(inner, TOLD, inner)
            told.append(inner)
        _tell(inner, found, told)


def without_distant(model: Model) -> Model:
    """`model` without weights that would have to be fetched, if its size is known without them."""
    given: Any = model
    distant = [name for name in FIELDS if _is_distant(getattr(model, name, None))]
    if not distant:
        return model
    if getattr(model, "size", "") is not None:
        return replace(given, **dict.fromkeys(distant))
    if given.weights not in PUBLISHED:
        return model
    return replace(given, size=PUBLISHED[given.weights], **dict.fromkeys(distant))


def _is_distant(weights: str | None) -> bool:
    return weights is not None and start.here(weights) is None


def _without_memory(module: nn.Module) -> nn.Module:
    """The module with tensors that hold memory replaced (a module of one's own is given with its weights)."""
    known: dict[int, Tensor] = {}  # ties stay
    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, tensor in table.items():
                if tensor is None or tensor.is_meta:
                    continue
                if id(tensor) not in known:
                    bare = torch.empty_like(tensor, device="meta")
                    wanted = isinstance(tensor, nn.Parameter)
                    known[id(tensor)] = nn.Parameter(bare, tensor.requires_grad) if wanted else bare
                table[name] = known[id(tensor)]  # type: ignore[assignment]
    return module
