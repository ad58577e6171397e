"""A registry of components: a table of names and the classes that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

Kind = TypeVar("Kind", covariant=True)


class Registry(Mapping[str, type[Kind]]):
    """Component classes by name. The module of a class is imported when the class is first looked up."""

    def __init__(self, locations: Mapping[str, str]) -> None:
        """Create a registry from `locations`: name -> `module:Class`."""
        self.locations = dict(locations)

    def __getitem__(self, name: str) -> type[Kind]:
        module, _, attribute = self.locations[name].partition(":")
        found: type[Kind] = getattr(import_module(module), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.locations)

    def __len__(self) -> int:
        return len(self.locations)

    def __contains__(self, name: object) -> bool:
        return name in self.locations

    def name_of(self, component: type) -> str | None:
        """Return the name of a component class, or None if it is not registered. Imports nothing."""
        location = f"{component.__module__}:{component.__qualname__}"
        return next((name for name, known in self.locations.items() if known == location), None)
