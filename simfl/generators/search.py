"""Search for random generators in the objects of users."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

MAX_DEPTH = 4  # of the search in attributes of attributes
MAX_ITEMS = 1000  # of a container that is searched
MAX_OBJECTS = 100_000  # that are looked at in one search
VALUES = (str, bytes, int, float, type(None), torch.Tensor, np.ndarray)  # hold no generator
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
LIBRARIES = ("torch", "transformers", "peft", "numpy", "simfl", "builtins", "collections", "functools")
OWN_TABLES = ("_parameters", "_buffers", "_modules")  # attributes of a module that are read as tensors and layers


def find_generators(owner: object, name: str) -> list[tuple[str, object]]:
    """Return the generators that an object holds, each with its path: in attributes, containers and closures.

    Of the classes of users, attributes of the class and variables of its module are searched too. The search is by
    levels and ends after MAX_OBJECTS objects, so that a large data set costs no more than a small one.
    """
    found: list[tuple[str, object]] = []
    seen = {id(owner)}
    queue: deque[tuple[object, str, int]] = deque([(owner, name, 0)])
    visited = 0
    while queue and visited < MAX_OBJECTS:
        value, path, depth = queue.popleft()
        if isinstance(value, GENERATORS):
            found += [] if isinstance(value, random.SystemRandom) else [(path, value)]
            continue
        for key, child, step in _children(value) if depth < MAX_DEPTH else ():
            visited += 1
            if not isinstance(child, VALUES) and id(child) not in seen:
                seen.add(id(child))
                queue.append((child, f"{path}.{key}" if key else path, depth + step))
    return found


def _children(value: Any) -> Iterator[tuple[str, object, int]]:
    """Yield what an object holds, as its name, the object, and the levels of the search that it counts."""
    if isinstance(value, nn.Module):  # every layer, however deep
        yield from ((name, child, 0) for name, child in value._modules.items())
    if isinstance(value, Mapping):
        if _is_lazy(value):
            return
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


def _is_lazy(value: Mapping[Any, Any]) -> bool:
    """Return whether reading a mapping imports what it names, as the tables of classes of transformers do."""
    return type(value).__module__.partition(".")[0] == "transformers"


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
