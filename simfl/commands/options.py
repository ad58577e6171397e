"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from simfl.errors import ConfigError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
address = click.option("--address", help="Of a running Ray cluster.  [default: start one here]")


def placed(backend: str, workers: str) -> Decorator:
    """--backend, --workers and --address, the first two with what they mean for the command."""
    kinds = click.Choice(["inline", "ray"])
    options = (
        click.option("--backend", type=kinds, default="ray", show_default=True, help=backend),
        click.option("--workers", help=f"{workers}  [default: auto]"),
        address,
    )

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def overrides(meaning: str) -> Decorator:
    """--set, which may be given often."""
    return click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help=meaning)


def workers_of(backend: str, workers: str | None, address: str | None) -> int | str:
    """What --workers says: a number of at least 1, or auto; ConfigError for what has no effect or no meaning."""
    if backend == "inline" and (workers or address):
        raise ConfigError(f"--{'workers' if workers else 'address'}: has no effect with --backend inline")
    if workers is None or workers == "auto":
        return "auto"
    if not workers.isdecimal() or int(workers) < 1:
        raise ConfigError(f"--workers: {workers!r} is not a whole number of at least 1 or auto")
    return int(workers)
