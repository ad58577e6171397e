"""Command-line options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import reduce, wraps
from pathlib import Path
from typing import Any

import click

from simfl.errors import ConfigError
from simfl.runtime.backend import BACKENDS, choose_backend

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

address = click.option("--address", help="Address of a running Ray cluster.  [default: start Ray on this machine]")


@dataclass(frozen=True)
class BackendOptions:
    """Backend of a command."""

    backend: str  # inline or ray
    workers: int | str  # number of Ray workers, or auto
    address: str | None  # of a running Ray cluster
    message: str = ""  # why `auto` chose the backend
    gpus: tuple[str, ...] = ()  # a line for each GPU that others use


def combine(*decorators: Decorator) -> Decorator:
    """Combine decorators; the first one is outermost, so its option comes first in the help."""
    return lambda command: reduce(lambda inner, decorator: decorator(inner), reversed(decorators), command)


def collect(kind: type, name: str) -> Decorator:
    """Pass the options named like the fields of a dataclass to the command as one argument `name` of this class."""
    keys = [field.name for field in fields(kind)]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**given: Any) -> Any:
            collected = kind(**{key: given.pop(key) for key in keys})
            return command(**given, **{name: collected})

        return call

    return decorate


def placement(default: str, backend_help: str, workers_help: str) -> Decorator:
    """Add --backend, --workers and --address, passed to the command as `placement: BackendOptions`."""

    def checked(command: Command) -> Command:
        @wraps(command)
        def call(backend: str, workers: str | None, address: str | None, **given: Any) -> Any:
            return command(**given, placement=_backend_options(backend, workers, address))

        return call

    return combine(
        click.option("--backend", type=click.Choice(BACKENDS), default=default, show_default=True, help=backend_help),
        click.option("--workers", help=f"{workers_help}  [default: auto]"),
        address,
        checked,
    )


def _backend_options(backend: str, workers: str | None, address: str | None) -> BackendOptions:
    if backend == "inline" and (workers or address):
        raise ConfigError(f"--{'workers' if workers else 'address'}: has no effect with --backend inline")
    check_workers(workers)
    choice = choose_backend(backend, workers, address)
    number = int(workers) if workers not in (None, "auto") else "auto"
    return BackendOptions(choice.name, number, address, choice.message, choice.gpus)


def check_workers(workers: str | None) -> None:
    """Raise ConfigError if --workers is neither a number nor auto."""
    if workers not in (None, "auto") and not (workers.isdecimal() and int(workers) >= 1):
        raise ConfigError(f"--workers: {workers!r} is not a whole number of at least 1 or auto")


def overrides(meaning: str) -> Decorator:
    """Add --set, which may be repeated, as `overrides`."""
    return click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help=meaning)


NOT_READ = ("checkpoints", "client_states", "stacks", "tensorboard", "wandb")  # parts of a run that no report reads


class RunFolder(click.Path):
    """A folder of a run or a sweep, or its URL, whose current content is downloaded into the cache."""

    def __init__(self, without: Sequence[str] = ()) -> None:
        """Leave out the folders named in `without` when downloading."""
        super().__init__(exists=True, file_okay=False, path_type=Path)
        self.without = without

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the folder as a `Path`."""
        from simfl import files
        from simfl.runs.mirror import opened
        from simfl.runs.storage import is_url

        if isinstance(value, str) and is_url(value):
            return opened(value, files.cache_folder(), self.without)
        return super().convert(value, param, ctx)
