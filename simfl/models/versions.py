"""The least versions of outside libraries that the models here need."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from simfl.errors import ConfigError

LEAST: Mapping[str, tuple[int, int]] = {"torch": (2, 11), "transformers": (5, 24)}  # as in pyproject.toml


def check_versions(least: Mapping[str, tuple[int, int]] = LEAST, modules: Mapping[str, Any] = sys.modules) -> None:
    """Check the libraries that the components of an experiment have imported.

    An environment can hold older versions than a package manager would install, for example where simfl is used from a
    source folder; generation then fails after the first round.

    Args:
        least: Library -> least version.
        modules: The imported modules.

    Raises:
        ConfigError: A library is too old.
    """
    for name, needed in least.items():
        version = getattr(modules.get(name), "__version__", None)
        numbers = re.match(r"(\d+)\.(\d+)", str(version))
        if numbers is not None and tuple(map(int, numbers.groups())) < needed:
            wanted = ".".join(map(str, needed))
            raise ConfigError(
                f"model: needs {name} {wanted} or newer, found {version}; pip install --upgrade '{name}>={wanted}'"
            )
