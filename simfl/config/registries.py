"""The shelves: where each kind of component lives, and how a name in YAML finds its class."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from simfl import imports as given
from simfl.errors import ConfigError, nearest
from simfl.registry import Registry


@dataclass(frozen=True)
class RegistrySpec:
    """A kind of component: its base class, its literal table, and the key that names one in YAML."""

    base: str
    table: str
    key: str = "name"
    wrap: str = ""  # a function that makes a component of a Python object, or None of one it does not know

    @property
    def kind(self) -> type:
        """The base class."""
        return imported(self.base)

    @property
    def components(self) -> Registry[Any]:
        """The literal table."""
        found: Registry[Any] = imported(self.table)
        return found

    def wrapped(self, value: object) -> Any:
        """A component made of a Python object given in place of a name; None where that cannot be."""
        return imported(self.wrap)(value) if self.wrap else None

    def find(self, name: str | type, path: str) -> type:
        """The component of this name, or of this `package.module:Class` outside simfl; a class is itself."""
        found = self._named(name, path) if isinstance(name, str) else name
        if not (isinstance(found, type) and issubclass(found, self.kind)):
            raise ConfigError(f"{path}: {name!r} is not a {self.base}")
        if "__dataclass_fields__" not in vars(found):
            raise ConfigError(f"{path}: {name!r} needs the decorator @dataclass(frozen=True)")
        return found

    def _named(self, name: str, path: str) -> Any:
        if ":" in name:
            return given.imported(name, path)
        if name not in self.components:
            raise ConfigError(f"{path}: unknown {name!r}; {nearest(name, self.components)}")
        return self.components[name]

    def name_of(self, component: type) -> str:
        """The name that `find` knows this component by."""
        return self.components.name_of(component) or f"{component.__module__}:{component.__qualname__}"


REGISTRIES: dict[str, RegistrySpec] = {
    "adapters": RegistrySpec(
        "simfl.models.adapters_base:Adapter",
        "simfl.models.adapters:ADAPTERS",
        key="kind",
        wrap="simfl.models.peft_method:wrap",
    ),
    "algorithms": RegistrySpec("simfl.algorithms.base:Algorithm", "simfl.algorithms:ALGORITHMS"),
    "codecs": RegistrySpec("simfl.codecs.base:Codec", "simfl.codecs:CODECS"),
    "data": RegistrySpec("simfl.data.base:Data", "simfl.data:DATA", wrap="simfl.data.readers.own:wrap"),
    "models": RegistrySpec("simfl.models.base:Model", "simfl.models:MODELS", wrap="simfl.models.own:wrap"),
    "objectives": RegistrySpec("simfl.objectives.base:Objective", "simfl.objectives:OBJECTIVES"),
    "partitioners": RegistrySpec(
        "simfl.data.partition.partitioners:Partitioner", "simfl.data.partition.partitioners:PARTITIONERS", key="by"
    ),
    "schedules": RegistrySpec("simfl.optimizers.schedules:Schedule", "simfl.optimizers:SCHEDULES"),
    "server_optimizers": RegistrySpec(
        "simfl.optimizers.server:ServerOptimizer", "simfl.optimizers:SERVER_OPTIMIZERS", key="optimizer"
    ),
}


def registry_of(kind: type) -> RegistrySpec | None:
    """The shelf whose base is this class, or None for a class that is no base."""
    return next(
        (shelf for shelf in REGISTRIES.values() if shelf.base.endswith(f":{kind.__name__}") and shelf.kind is kind),
        None,
    )


def imported(where: str) -> Any:
    """The object at `package.module:name`."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)
