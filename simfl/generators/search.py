"""Search for random generators in the objects of users."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

MAX_DEPTH = 4  # of the search in attributes of attributes
MAX_ITEMS = 1000  # of a container that is searched
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
LIBRARIES = ("torch", "transformers", "peft", "numpy", "simfl", "builtins", "collections", "functools")
OWN_TABLES = ("_parameters", "_buffers", "_modules")  # attributes of a module that are read as tensors and layers


def find_generators(owner: object, name: str) -> list[tuple[str, object]]:
    """Return the generators that an object holds, each with its path: in attributes, containers and closures.

    Of the classes of users, attributes of the class and variables of its module are searched too.
    """
    return list(_search(owner, name, set(), 0))


def _search(value: object, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, object]]:
    if id(value) in seen or depth > MAX_DEPTH:
        return
    if isinstance(value, GENERATORS):
        seen.add(id(value))
        if not isinstance(value, random.SystemRandom):
            yield path, value
        return
    if value is None or isinstance(value, (str, bytes, int, float, torch.Tensor, np.ndarray)):
        return
    seen.add(id(value))
    for name, child, step in _children(value):
        yield from _search(child, f"{path}.{name}" if name else path, seen, depth + step)


def _children(value: Any) -> Iterator[tuple[str, object, int]]:
    """Yield what an object holds, as its name, the object, and the levels of the search that it counts."""
    if isinstance(value, nn.Module):  # every layer, however deep
        yield from ((name, child, 0) for name, child in value._modules.items())
    if isinstance(value, Mapping):
        yield from ((str(key), child, 1) for key, child in list(value.items())[:MAX_ITEMS])
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((str(number), child, 1) for number, child in enumerate(list(value)[:MAX_ITEMS]))
    elif isinstance(value, partial):
        yield from (("", child, 1) for child in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, MethodType):
        yield from (("", child, 1) for child in (value.__self__, value.__func__))
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif not isinstance(value, type):
        own = getattr(value, "__dict__", None) or {}
        yield from ((name, child, 1) for name, child in list(own.items()) if name not in OWN_TABLES)
        yield from _of_class(type(value))


def _of_function(function: FunctionType) -> Iterator[tuple[str, object, int]]:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    yield from (("", child, 1) for child in (*cells, *(function.__defaults__ or ())))
    if not _is_library(function.__module__):
        yield from _globals(function.__globals__)


def _of_class(kind: type) -> Iterator[tuple[str, object, int]]:
    for base in kind.__mro__:
        if not _is_library(base.__module__):
            yield from ((name, child, 1) for name, child in vars(base).items() if not name.startswith("__"))


def _globals(names: Mapping[str, object]) -> Iterator[tuple[str, object, int]]:
    """Yield the variables of a module that are generators or hold some, without its functions, classes and imports."""
    holders = (*GENERATORS, dict, list, tuple)
    yield from ((name, child, 2) for name, child in list(names.items()) if isinstance(child, holders))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (raises ValueError while a variable has no value)
    except ValueError:
        return False
    return True


def _is_library(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in LIBRARIES
