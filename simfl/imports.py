"""User code in place of a component: `package.module:name` in an experiment file, or a Python object.

An experiment file holds text alone. An object that can be imported is written by its name, and a run with it can be
started, resumed and replayed from its file. Any other object is written as `<module:name>`; it must be passed from
Python again.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from simfl.errors import ConfigError, nearest

DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")  # absolute: a relative name has no package to start from
OBJECT = "<"  # first character of the text of an object without an importable name
AGAIN = "pass it again from Python: simfl.run(…, resume=True) or simfl.load(folder, experiment)"


def import_object(name: str, path: str) -> Any:
    """Import `package.module:name`. Raises ConfigError if it does not exist; `path` is the setting that names it."""
    if name.startswith((OBJECT, "__main__:")):
        raise ConfigError(f"{path}: {name} was defined in the program that started the run; {AGAIN}")
    module, _, attribute = name.partition(":")
    if not (DOTTED.fullmatch(module) and DOTTED.fullmatch(attribute)):
        raise ConfigError(f"{path}: {name!r} is not package.module:name")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but an import in it fails
        where = f"searched the Python path and {os.getcwd()}"
        raise ConfigError(f"{path}: no module {error.name!r} for {name!r}; {where}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{path}: {module} has no {attribute!r}; {nearest(part, vars(found))}")
        found = getattr(found, part)
    return found


def resolve(of: object, path: str) -> object:
    """Return the object that a name stands for; any other object is returned unchanged."""
    return import_object(of, path) if isinstance(of, str) else of


def reference(of: object) -> str:
    """Return the text that stands for an object in an experiment file."""
    if isinstance(of, str):
        return of
    named = of if hasattr(of, "__qualname__") else type(of)
    name = f"{named.__module__}:{named.__qualname__}"
    return name if _is_importable(name, of) else f"<{name}>"


def _is_importable(name: str, of: object) -> bool:
    """Return whether other processes get this very object by its name."""
    try:
        return import_object(name, "") is of
    except (ConfigError, ImportError):
        return False


def call(function: Callable[..., Any], settings: Mapping[str, object], path: str, *offered: object) -> Any:
    """Call a function with its settings as keywords, and with as many of `offered` as it has free positions.

    Raises ConfigError if the settings do not fit its signature.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in callables have none
        return function(**settings)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in signature.parameters.values() if p.kind in positional and p.default is p.empty]
    given = offered[: len([p for p in required if p.name not in settings])]
    try:
        signature.bind(*given, **settings)
    except TypeError as error:
        raise ConfigError(f"{path}.settings: {reference(function)}: {error}") from None
    return function(*given, **settings)


def source_sha256(thing: object) -> str:
    """Return a hash of the source of a function or class, or of its name if it has no source."""
    try:
        text = inspect.getsource(thing)  # type: ignore[arg-type]  # raises TypeError without a source
    except (OSError, TypeError):
        text = reference(thing)
    return hashlib.sha256(text.encode()).hexdigest()
