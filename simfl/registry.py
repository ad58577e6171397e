"""A shelf's table: which names there are, and in which module the component of each is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

Kind = TypeVar("Kind", covariant=True)


class Registry(Mapping[str, type[Kind]]):
    """Components by name. One is imported when it is asked for: a run needs few of them, and waits for every import."""

    def __init__(self, where: Mapping[str, str]) -> None:
        """`where`: name -> `module:Class`, the module in which it is written."""
        self.where = dict(where)

    def __getitem__(self, name: str) -> type[Kind]:
        module, _, attribute = self.where[name].partition(":")
        found: type[Kind] = getattr(import_module(module), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, name: object) -> bool:
        return name in self.where

    def name_of(self, component: type) -> str | None:
        """The name of a component; None if it is not of this shelf. Imports nothing."""
        written = f"{component.__module__}:{component.__qualname__}"
        return next((name for name, where in self.where.items() if where == written), None)
