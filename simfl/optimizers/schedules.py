"""Learning-rate schedules of clients and server: factors of the learning rate over time.

    t   time in the schedule's unit, from 0       w   length of the warm-up      H   horizon, from the warm-up's start
    p   (t − w)/(H − w), the fraction completed, at most 1

During a warm-up the factor rises linearly, starting with one unit's share of w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from simfl.constraints import Fraction, NonNegativeFloat, PositiveFloat
from simfl.errors import ConfigError
from simfl.registry import Registry

Unit = Literal["round", "progress", "step", "client_update"]


@dataclass(frozen=True)
class Schedule:
    """A schedule of the learning rate; the base is constant.

    `example` are settings for `simfl.contract.check`.
    """

    unit: Unit = "round"  # of t: round, progress (round + fraction of the client update), step, client_update
    warmup: NonNegativeFloat = 0.0  # w, in units

    example: ClassVar[Mapping[str, object]] = {}

    def factors(self, rounds: int, round: int, steps: int) -> np.ndarray:
        """Return the factor of each local step of a client update, float64 [steps].

        Args:
            rounds: Rounds of the phase.
            round: The round, from 0.
            steps: Local steps of the update.
        """
        done = np.arange(steps) / max(steps, 1)
        times = {"round": np.full(steps, round), "progress": round + done, "step": np.arange(steps)}
        times["client_update"] = done
        horizon = {"round": rounds, "progress": rounds, "step": steps, "client_update": 1}[self.unit]
        t = times[self.unit].astype(np.float64)
        span = 1.0 if self.unit in ("round", "step") else 1.0 / max(steps, 1)
        rise = np.minimum((t + span) / self.warmup, 1.0) if self.warmup else np.ones(steps)
        return rise * self.shape(t, float(horizon))

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """Return the factor at times `t`, without warm-up; `horizon` is the default H."""
        return np.ones_like(t)


@dataclass(frozen=True)
class Constant(Schedule):
    """A constant rate, after a warm-up if there is one."""


@dataclass(frozen=True)
class Cosine(Schedule):
    """A half cosine from 1 down to `floor` (Loshchilov and Hutter 2017)."""

    horizon: PositiveFloat | None = None  # H, in units; null: the phase's rounds, or the client update
    floor: NonNegativeFloat = 0.0  # factor at the horizon

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """Return floor + (1 − floor)·(1 + cos πp)/2."""
        return self.floor + (1.0 - self.floor) * 0.5 * (
            1.0 + np.cos(np.pi * _completed(self, t, self.horizon or horizon))
        )


@dataclass(frozen=True)
class Polynomial(Schedule):
    """A polynomial (1 − p)^power from 1 down to `floor`; linear with power 1."""

    horizon: PositiveFloat | None = None  # H, in units; null: the phase's rounds, or the client update
    floor: NonNegativeFloat = 0.0  # factor at the horizon
    power: PositiveFloat = 1.0  # exponent

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """Return floor + (1 − floor)·(1 − p)^power."""
        left = 1.0 - _completed(self, t, self.horizon or horizon)
        return self.floor + (1.0 - self.floor) * left**self.power


@dataclass(frozen=True)
class Steps(Schedule):
    """A step function: the rate is multiplied by `gamma` at each of these times."""

    at: tuple[NonNegativeFloat, ...] = (5.0,)  # times, in units, from the start of phase or client update; FedOCR: 5
    gamma: PositiveFloat = 0.1  # factor at each

    def __post_init__(self) -> None:
        """Raise ConfigError for no times, or times out of order."""
        if not self.at or list(self.at) != sorted(self.at):
            raise ConfigError(f"schedule.at: {list(self.at)} given; allowed: at least one time, in ascending order")

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """Return gamma to the number of times that have passed."""
        return self.gamma ** np.searchsorted(np.asarray(self.at), t, side="right").astype(np.float64)


@dataclass(frozen=True)
class Decay(Schedule):
    """Exponential decay by `rate` per unit: .998 per round is the protocol of FedDyn and FedDC."""

    rate: Fraction = 0.998  # factor per unit

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """Return rate^t."""
        return self.rate**t


def _completed(schedule: Schedule, t: np.ndarray, horizon: float) -> np.ndarray:
    return np.clip((t - schedule.warmup) / max(horizon - schedule.warmup, 1e-12), 0.0, 1.0)


SCHEDULES: Registry[Schedule] = Registry(
    {
        "constant": "simfl.optimizers.schedules:Constant",
        "cosine": "simfl.optimizers.schedules:Cosine",
        "decay": "simfl.optimizers.schedules:Decay",
        "polynomial": "simfl.optimizers.schedules:Polynomial",
        "steps": "simfl.optimizers.schedules:Steps",
    }
)
