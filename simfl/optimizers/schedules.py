"""Learning-rate schedules, of clients and of the server: factors of the rate over time.

    t   time, in the schedule's unit, from 0      w   length of the warm-up      H   horizon, from the warm-up's start
    p   (t − w)/(H − w), the part done, at most 1

During a warm-up the factor rises in a straight line, from one round's or one step's share of w on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simfl.constraints import Amount, Fraction, Positive
from simfl.errors import ConfigError
from simfl.registry import Registry

Unit = Literal["round", "progress", "step", "visit"]


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes; the base is constant."""

    unit: Unit = "round"  # of t: round, progress (rounds and the part of this visit done); step, visit (anew at each)
    warmup: Amount = 0.0  # w, in units

    def factors(self, rounds: int, round: int, steps: int) -> np.ndarray:
        """Float64 [steps]: the factor of each local step of a visit in this round of a phase (counted from 0)."""
        done = np.arange(steps) / max(steps, 1)
        times = {"round": np.full(steps, round), "progress": round + done, "step": np.arange(steps), "visit": done}
        horizon = {"round": rounds, "progress": rounds, "step": steps, "visit": 1}[self.unit]
        t = times[self.unit].astype(np.float64)
        span = 1.0 if self.unit in ("round", "step") else 1.0 / max(steps, 1)
        rise = np.minimum((t + span) / self.warmup, 1.0) if self.warmup else np.ones(steps)
        return rise * self.shape(t, float(horizon))

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """The factor at times `t` but for the warm-up; `horizon` holds where the schedule names none."""
        return np.ones_like(t)


@dataclass(frozen=True)
class Constant(Schedule):
    """The same rate throughout, after a warm-up if there is one."""


@dataclass(frozen=True)
class Cosine(Schedule):
    """From 1 down to `floor` along half a cosine (Loshchilov and Hutter 2017)."""

    horizon: Positive | None = None  # H, in units; null: the phase's rounds, or the visit
    floor: Amount = 0.0  # what is left at the horizon

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """floor + (1 − floor)·(1 + cos πp)/2."""
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + np.cos(np.pi * _part(self, t, self.horizon or horizon)))


@dataclass(frozen=True)
class Polynomial(Schedule):
    """From 1 down to `floor` as (1 − p)^power; with power 1, a straight line."""

    horizon: Positive | None = None  # H, in units; null: the phase's rounds, or the visit
    floor: Amount = 0.0  # what is left at the horizon
    power: Positive = 1.0  # of the fall

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """floor + (1 − floor)·(1 − p)^power."""
        left = 1.0 - _part(self, t, self.horizon or horizon)
        return self.floor + (1.0 - self.floor) * left**self.power


@dataclass(frozen=True)
class Steps(Schedule):
    """Multiplied by `gamma` at each of these times, such as 1.0 to 0.1 at round 5."""

    at: tuple[Amount, ...] = (5.0,)  # times, in units, from the start of the phase or of the visit; FedOCR: round 5
    gamma: Positive = 0.1  # factor at each

    def __post_init__(self) -> None:
        """Refuses a schedule that would change nothing, or times out of order."""
        if not self.at or list(self.at) != sorted(self.at):
            raise ConfigError(f"schedule.at: {list(self.at)} given; allowed: at least one time, in ascending order")

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """gamma to the number of times that have come."""
        return self.gamma ** np.searchsorted(np.asarray(self.at), t, side="right").astype(np.float64)


@dataclass(frozen=True)
class Decay(Schedule):
    """Multiplied by `rate` in each unit: .998 per round is the protocol of FedDyn and FedDC."""

    rate: Fraction = 0.998  # factor per unit

    def shape(self, t: np.ndarray, horizon: float) -> np.ndarray:
        """rate^t."""
        return self.rate**t


def _part(schedule: Schedule, t: np.ndarray, horizon: float) -> np.ndarray:
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
