"""Pruners: they end trials of a search whose scores are low, between two rounds. The algorithms are those of Optuna."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from simfl.constraints import NonNegativeInt, PositiveInt
from simfl.errors import ConfigError
from simfl.registry import Registry
from simfl.sweeps.optuna_import import load_optuna


class Pruner(ABC):
    """A pruner; the fields of a subclass are its settings. Rounds are those after which a trial is scored."""

    example: ClassVar[Mapping[str, object]] = {}  # settings for `simfl.contract.check`

    @abstractmethod
    def build(self, rounds: int) -> Any:
        """Return a new pruner of Optuna for trials of at most `rounds` rounds."""


PRUNERS: Registry[Pruner] = Registry(
    {
        "asha": "simfl.sweeps.pruners:Asha",
        "hyperband": "simfl.sweeps.pruners:Hyperband",
        "median": "simfl.sweeps.pruners:Median",
    }
)


@dataclass(frozen=True)
class Asha(Pruner):
    """Asynchronous successive halving: at each rung, the best 1/reduction of the trials continue (Li et al. 2020)."""

    min_rounds: PositiveInt = 1  # rounds at the first rung; the next ones are at reduction times as many
    reduction: PositiveInt = 4  # eta: at least 2

    def __post_init__(self) -> None:
        _check_reduction(self.reduction)

    def build(self, rounds: int) -> Any:
        """Return Optuna's SuccessiveHalvingPruner."""
        return load_optuna().pruners.SuccessiveHalvingPruner(
            min_resource=self.min_rounds, reduction_factor=self.reduction
        )


@dataclass(frozen=True)
class Hyperband(Pruner):
    """Several brackets of successive halving, with different first rungs (Li et al. 2018)."""

    min_rounds: PositiveInt = 1  # rounds at the first rung of the first bracket
    reduction: PositiveInt = 3  # eta: at least 2

    def __post_init__(self) -> None:
        _check_reduction(self.reduction)

    def build(self, rounds: int) -> Any:
        """Return Optuna's HyperbandPruner."""
        return load_optuna().pruners.HyperbandPruner(
            min_resource=self.min_rounds, max_resource=max(rounds, self.min_rounds), reduction_factor=self.reduction
        )


@dataclass(frozen=True)
class Median(Pruner):
    """Ends trials whose best score is below the median of the others at the same round (Golovin et al. 2017)."""

    trials: NonNegativeInt = 4  # ended trials before any is compared
    after: NonNegativeInt = 1  # rounds that every trial completes

    def build(self, rounds: int) -> Any:
        """Return Optuna's MedianPruner."""
        return load_optuna().pruners.MedianPruner(n_startup_trials=self.trials, n_warmup_steps=self.after)


def _check_reduction(reduction: int) -> None:
    if reduction < 2:
        raise ConfigError(f"reduction: {reduction} is not a whole number of at least 2")
