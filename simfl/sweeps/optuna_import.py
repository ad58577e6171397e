"""Import of Optuna, the optional library that searches."""

from __future__ import annotations

import importlib
from typing import Any

from simfl.errors import ConfigError


def load_optuna() -> Any:
    """Return the module `optuna`, which logs warnings only.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ConfigError("search: Optuna is not installed; pip install 'simfl[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
