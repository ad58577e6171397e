"""Registries of all kinds of components, and lookup of a component by the name that YAML gives."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simfl import imports
from simfl.errors import ConfigError, nearest
from simfl.registry import Registry


@dataclass(frozen=True)
class RegistrySpec:
    """One kind of component; `base`, `table` and `wrap` are `package.module:name` paths, imported on first use."""

    base: str  # base class
    table: str  # registry of the components by name
    key: str = "name"  # key that names a component in YAML
    other_names: Mapping[str, str] = field(default_factory=dict)  # other names of components in YAML
    wrap: str = ""  # function that turns a Python object into a component; it returns None for unknown objects

    @property
    def kind(self) -> type:
        """Base class of the components."""
        return imported(self.base)

    @property
    def components(self) -> Registry[Any]:
        """Components by name."""
        found: Registry[Any] = imported(self.table)
        return found

    def wrapped(self, value: object) -> Any:
        """Turn a Python object given in place of a name into a component; None if this is not possible."""
        return imported(self.wrap)(value) if self.wrap else None

    def has(self, name: str) -> bool:
        """Return whether a component has this name, or another one that stands for it."""
        return name in self.components or name in self.other_names

    def find(self, name: str | type, path: str) -> type:
        """Return the component class for a name, a `package.module:Class`, or a class.

        Raises:
            ConfigError: There is no such component, or it is not a frozen dataclass of this kind.
        """
        found = self._named(name, path) if isinstance(name, str) else name
        if not (isinstance(found, type) and issubclass(found, self.kind)):
            raise ConfigError(f"{path}: {name!r} is not a {self.base}")
        if "__dataclass_fields__" not in vars(found):
            raise ConfigError(f"{path}: {name!r} needs the decorator @dataclass(frozen=True)")
        return found

    def _named(self, name: str, path: str) -> Any:
        if ":" in name:
            return imports.import_object(name, path)
        name = self.other_names.get(name, name)
        if name not in self.components:
            raise ConfigError(f"{path}: unknown {name!r}; {nearest(name, self.components)}")
        return self.components[name]

    def name_of(self, component: type) -> str:
        """Return the name by which `find` finds this component."""
        return self.components.name_of(component) or f"{component.__module__}:{component.__qualname__}"


REGISTRIES: dict[str, RegistrySpec] = {
    "adapters": RegistrySpec(
        "simfl.models.adapters:Adapter",
        "simfl.models.adapters:ADAPTERS",
        key="kind",
        wrap="simfl.models.peft_method:wrap",
    ),
    "availabilities": RegistrySpec(
        "simfl.virtual_time.availability:Availability", "simfl.virtual_time:AVAILABILITIES", key="kind"
    ),
    "algorithms": RegistrySpec("simfl.algorithms.base:Algorithm", "simfl.algorithms:ALGORITHMS"),
    "clusters": RegistrySpec("simfl.submit.cluster:Cluster", "simfl.submit.cluster:CLUSTERS", key="to"),
    "codecs": RegistrySpec("simfl.codecs.base:Codec", "simfl.codecs:CODECS"),
    "data": RegistrySpec("simfl.data.base:Data", "simfl.data:DATA", wrap="simfl.data.readers.own:wrap"),
    "factorizations": RegistrySpec("simfl.factorizations.base:Factorization", "simfl.factorizations:FACTORIZATIONS"),
    "models": RegistrySpec("simfl.models.base:Model", "simfl.models:MODELS", wrap="simfl.models.own:wrap"),
    "objectives": RegistrySpec("simfl.objectives.base:Objective", "simfl.objectives:OBJECTIVES"),
    "partitioners": RegistrySpec(
        "simfl.data.partition.partitioners:Partitioner",
        "simfl.data.partition.partitioners:PARTITIONERS",
        key="by",
        other_names={"column": "natural"},
        wrap="simfl.data.partition.by_hand:wrap",
    ),
    "pruners": RegistrySpec("simfl.sweeps.pruners:Pruner", "simfl.sweeps.pruners:PRUNERS"),
    "samplers": RegistrySpec("simfl.sweeps.samplers:Sampler", "simfl.sweeps.samplers:SAMPLERS"),
    "schedules": RegistrySpec("simfl.optimizers.schedules:Schedule", "simfl.optimizers:SCHEDULES"),
    "selections": RegistrySpec("simfl.virtual_time.selection:Selection", "simfl.virtual_time:SELECTIONS", key="by"),
    "server_optimizers": RegistrySpec(
        "simfl.optimizers.server:ServerOptimizer", "simfl.optimizers:SERVER_OPTIMIZERS", key="optimizer"
    ),
    "staleness": RegistrySpec("simfl.asynchronous.staleness:Staleness", "simfl.asynchronous.staleness:STALENESS"),
}


def registry_of(kind: type) -> RegistrySpec | None:
    """Return the registry whose base class this is; None if there is none."""
    return next(
        (spec for spec in REGISTRIES.values() if spec.base.endswith(f":{kind.__name__}") and spec.kind is kind),
        None,
    )


def imported(where: str) -> Any:
    """Import the object at `package.module:name`."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)
