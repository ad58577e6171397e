"""A user's random transform of training examples, such as cropping, mirroring or noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simfl import imports
from simfl.errors import ConfigError
from simfl.generators.process import reproducible


@dataclass(frozen=True)
class Transform:
    """A function of one training example, called each time that a client trains on the example.

    It takes the model's input as a tensor in the shape of the data, or a mapping of tensors where the objective has
    several inputs, and returns the same in equal shapes and types. Before each call the global generators of torch,
    numpy and Python, and those that the function holds, are seeded by client, round, epoch and example.
    """

    of: object  # package.module:function, or a class that is built with the settings
    settings: Mapping[str, object] = field(default_factory=dict)  # keyword arguments of the function or class
    sha256: str | None = None  # written by simfl for a function given from Python: a hash of its source

    def build(self, where: str) -> Callable[[Any], Any]:
        """Return the function of an example.

        Raises:
            ConfigError: It does not exist, cannot be called, or does not take the settings.
        """
        found = imports.resolve(self.of, f"{where}.of")
        if isinstance(found, type):
            with reproducible(0):
                found, settings = imports.call(found, self.settings, where), dict[str, object]()
        else:
            settings = dict(self.settings)
        if not callable(found):
            raise ConfigError(f"{where}.of: {type(found).__name__} cannot be called; allowed: a function of an example")
        return partial(found, **settings) if settings else found

    def plain(self) -> dict[str, object]:
        """Return the settings as an experiment file stores them."""
        name = imports.reference(self.of)
        given = name.startswith(imports.OBJECT) and not isinstance(self.of, str)
        sha256 = imports.source_sha256(self.of if hasattr(self.of, "__qualname__") else type(self.of))
        return {"of": name, "settings": self.settings, "sha256": sha256 if given else self.sha256}
