"""Things given from outside in place of a component: as `package.module:name`, or from Python as the object itself.

An experiment file holds text alone. What can be imported is written by its name, and a run with it can be started,
resumed and replayed from its file. What cannot is written as `<module:name>`, and has to be given again from Python.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from simfl.errors import ConfigError, nearest

OBJECT = "<"  # what is written of an object begins so; no name does
AGAIN = "give it again from Python: simfl.run(…, resume=True) or simfl.load(folder, experiment)"


def imported(name: str, path: str) -> Any:
    """What `package.module:name` names; ConfigError if there is no such thing. `path` is where the name stands."""
    if name.startswith((OBJECT, "__main__:")):
        raise ConfigError(f"{path}: {name} lived in the program that started the run; {AGAIN}")
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"{path}: {name!r} is not package.module:name")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that this one imports is missing
        raise ConfigError(f"{path}: no module {error.name!r} for {name!r}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{path}: {module} has no {attribute!r}; {nearest(part, vars(found))}")
        found = getattr(found, part)
    return found


def resolve(of: object, path: str) -> object:
    """The thing itself: what a name names, or the object."""
    return imported(of, path) if isinstance(of, str) else of


def written(of: object) -> str:
    """How a thing is written in an experiment file."""
    if isinstance(of, str):
        return of
    named = of if hasattr(of, "__qualname__") else type(of)
    name = f"{named.__module__}:{named.__qualname__}"
    return name if _imports(name, of) else f"<{name}>"


def _imports(name: str, of: object) -> bool:
    """Whether the name leads back to this very object, in other processes too."""
    try:
        return imported(name, "") is of
    except (ConfigError, ImportError):
        return False


def called(function: Callable[..., Any], settings: Mapping[str, object], path: str, *offered: object) -> Any:
    """Call a function with its settings, and with as many of the things offered as it asks for by position."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in callables have none
        return function(**settings)
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    asked = [p for p in signature.parameters.values() if p.kind in places and p.default is p.empty]
    given = offered[: len([p for p in asked if p.name not in settings])]
    try:
        signature.bind(*given, **settings)
    except TypeError as error:
        raise ConfigError(f"{path}.settings: {written(function)}: {error}") from None
    return function(*given, **settings)


def source_sha256(thing: object) -> str:
    """A hash of the source of a function or class, or of its name where it has no source."""
    try:
        text = inspect.getsource(thing)  # type: ignore[arg-type]  # it has a source or raises
    except (OSError, TypeError):
        text = written(thing)
    return hashlib.sha256(text.encode()).hexdigest()
