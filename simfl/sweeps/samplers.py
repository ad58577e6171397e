"""Samplers: they choose the settings of the next trial of a search. The algorithms are those of Optuna."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from simfl.constraints import PositiveInt
from simfl.registry import Registry
from simfl.sweeps.optuna_import import load_optuna


class Sampler(ABC):
    """A sampler; the fields of a subclass are its settings."""

    example: ClassVar[Mapping[str, object]] = {}  # settings for `simfl.contract.check`

    @abstractmethod
    def build(self, seed: int) -> Any:
        """Return a new sampler of Optuna whose random draws depend on `seed` alone.

        Each trial has a sampler with a seed of its own, so that a search that was killed continues as it would have.
        """


SAMPLERS: Registry[Sampler] = Registry(
    {"random": "simfl.sweeps.samplers:RandomSampler", "tpe": "simfl.sweeps.samplers:Tpe"}
)


@dataclass(frozen=True)
class RandomSampler(Sampler):
    """Independent draws from the space (Bergstra and Bengio 2012)."""

    def build(self, seed: int) -> Any:
        """Return Optuna's RandomSampler."""
        return load_optuna().samplers.RandomSampler(seed=seed)


@dataclass(frozen=True)
class Tpe(Sampler):
    """Tree-structured Parzen estimator: draws where good trials are dense (Bergstra et al. 2011)."""

    random_trials: PositiveInt = 10  # ended trials before the estimator is used
    candidates: PositiveInt = 24  # draws of which the most promising one is taken
    joint: bool = True  # true: model settings together; false: each on its own

    def build(self, seed: int) -> Any:
        """Return Optuna's TPESampler; trials in progress count as bad ones, so that workers try different settings."""
        return load_optuna().samplers.TPESampler(
            seed=seed,
            n_startup_trials=self.random_trials,
            n_ei_candidates=self.candidates,
            multivariate=self.joint,
            constant_liar=True,
        )
