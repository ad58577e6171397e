"""Server optimizers: a step with the mean of the clients' deltas as pseudo-gradient.

    w   weights               d     delta, the mean of trained − received
    m   first moment          v     second moment
    t   steps taken           eta   learning_rate

FedAvg: McMahan et al. 2017. FedAvgM: Hsu et al. 2019. FedAdam, FedYogi, FedAdagrad: Reddi et al. 2021, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from simfl.errors import ConfigError, nearest
from simfl.optimizers.schedules import Constant, Schedule
from simfl.protocol import State, Weights


@dataclass(frozen=True)
class ServerOptimizer:
    """State in, state out. `delta` points downhill (trained − received), so a step adds it."""

    learning_rate: float = 1.0  # eta
    schedule: Schedule = field(default_factory=Constant)  # of the learning rate, over rounds

    def at(self, round: int, rounds: int) -> Self:
        """This optimizer with the learning rate of a round (counted from 0) of so many."""
        factor = float(self.schedule.factors(rounds, round, 1)[0])
        return self if factor == 1.0 else replace(self, learning_rate=self.learning_rate * factor, schedule=Constant())

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """New weights and new state; `state` is empty before the first step.

        `delta` names the tensors to step, all of them float; other weights are returned as they are.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Sgd(ServerOptimizer):
    """w + eta·d. With eta = 1 this is federated averaging."""

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """`state` stays empty."""
        step = torch._foreach_mul(list(delta.values()), self.learning_rate) if delta else []
        return _moved(weights, dict(zip(delta, step, strict=True))), state


FORMS = ("ema", "sum")


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """FedAvgM: w + eta·m, with m a moving average of the deltas or, as first published, their decaying sum."""

    beta: float = 0.9  # share of the old momentum
    form: str = "ema"  # ema: m = beta·m + (1 − beta)·d | sum: m = beta·m + d (Hsu et al. 2019)

    def __post_init__(self) -> None:
        """Refuses an unknown form and a beta outside of [0, 1)."""
        _check_decay("beta", self.beta)
        if self.form not in FORMS:
            raise ConfigError(f"server.form: unknown {self.form!r}; {nearest(self.form, FORMS)}")

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """`state`: momentum."""
        gain = 1 - self.beta if self.form == "ema" else 1.0
        old = state or {"momentum": _filled(delta, 0.0)}
        momentum = {name: self.beta * old["momentum"][name] + gain * d for name, d in delta.items()}
        return _moved(weights, {name: self.learning_rate * m for name, m in momentum.items()}), {"momentum": momentum}


@dataclass(frozen=True)
class Adam(ServerOptimizer):
    """FedAdam: w + eta·m / (√v + tau), with v a moving average of the squared deltas."""

    learning_rate: float = 0.01  # eta
    beta1: float = 0.9  # share of the old m
    beta2: float = 0.99  # share of the old v
    tau: float = 1e-3  # the smaller, the more adaptive
    v0: float | None = None  # v before the first step; None: tau²
    eps_inside_root: bool = False  # √(v + tau) instead of √v + tau
    bias_correction: bool = False  # m / (1 − beta1^t), v / (1 − beta2^t)

    def __post_init__(self) -> None:
        """Refuses settings out of range."""
        _check_decay("beta2", self.beta2)
        _check_adaptive(self.beta1, self.tau, self.v0)

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """`state`: momentum, second, count."""

        def second(v: Tensor, d: Tensor) -> Tensor:
            return self.beta2 * v + (1 - self.beta2) * d.square()

        return _adaptive(self, second, self.beta2, weights, delta, state)


@dataclass(frozen=True)
class Yogi(ServerOptimizer):
    """FedYogi: as FedAdam, but v moves towards the squared deltas by steps that do not depend on v's own size."""

    learning_rate: float = 0.01  # eta
    beta1: float = 0.9  # share of the old m
    beta2: float = 0.99  # share of the old v
    tau: float = 1e-3  # the smaller, the more adaptive
    v0: float | None = None  # v before the first step; None: tau²
    eps_inside_root: bool = False  # √(v + tau) instead of √v + tau
    bias_correction: bool = False  # m / (1 − beta1^t), v / (1 − beta2^t)

    def __post_init__(self) -> None:
        """Refuses settings out of range."""
        _check_decay("beta2", self.beta2)
        _check_adaptive(self.beta1, self.tau, self.v0)

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """`state`: momentum, second, count."""

        def second(v: Tensor, d: Tensor) -> Tensor:
            return v - (1 - self.beta2) * d.square() * torch.sign(v - d.square())

        return _adaptive(self, second, self.beta2, weights, delta, state)


@dataclass(frozen=True)
class Adagrad(ServerOptimizer):
    """FedAdagrad: as FedAdam, but v is the sum of all squared deltas."""

    learning_rate: float = 0.01  # eta
    beta1: float = 0.0  # share of the old m
    tau: float = 1e-3  # the smaller, the more adaptive
    v0: float | None = None  # v before the first step; None: tau²
    eps_inside_root: bool = False  # √(v + tau) instead of √v + tau
    bias_correction: bool = False  # m / (1 − beta1^t); v is a sum and has no bias

    def __post_init__(self) -> None:
        """Refuses settings out of range."""
        _check_adaptive(self.beta1, self.tau, self.v0)

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """`state`: momentum, second, count."""
        return _adaptive(self, lambda v, d: v + d.square(), 0.0, weights, delta, state)


def _adaptive(
    rule: Adam | Yogi | Adagrad,
    second: Callable[[Tensor, Tensor], Tensor],
    decay: float,
    weights: Weights,
    delta: Weights,
    state: State,
) -> tuple[Weights, State]:
    """One step of w + eta·m / (√v + tau). `second`(old v, d) is the new v; `decay` is its share of the old one."""
    v0 = rule.tau**2 if rule.v0 is None else rule.v0
    old = state or {"momentum": _filled(delta, 0.0), "second": _filled(delta, v0), "count": {"steps": torch.tensor(0)}}
    m = {name: rule.beta1 * old["momentum"][name] + (1 - rule.beta1) * d for name, d in delta.items()}
    v = {name: second(old["second"][name], d) for name, d in delta.items()}
    t = int(old["count"]["steps"]) + 1
    m_bias, v_bias = (1 - rule.beta1**t, 1 - decay**t) if rule.bias_correction else (1.0, 1.0)
    step = {}
    for name in delta:
        variance = v[name] / v_bias
        root = torch.sqrt(variance + rule.tau) if rule.eps_inside_root else torch.sqrt(variance) + rule.tau
        step[name] = rule.learning_rate * (m[name] / m_bias) / root
    return _moved(weights, step), {"momentum": m, "second": v, "count": {"steps": torch.tensor(t)}}


def _moved(weights: Weights, step: Weights) -> Weights:
    for name, change in step.items():
        assert change.is_floating_point(), f"{name}: {change.dtype} is not stepped"
    names = [name for name in weights if name in step]
    moved = torch._foreach_add([weights[name] for name in names], [step[name] for name in names]) if names else []
    return weights | dict(zip(names, moved, strict=True))


def _filled(like: Weights, value: float) -> Weights:
    return {name: torch.full_like(tensor, value) for name, tensor in like.items()}


def _check_decay(key: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"server.{key}: {value} given; allowed: 0 up to, not including, 1")


def _check_adaptive(beta1: float, tau: float, v0: float | None) -> None:
    _check_decay("beta1", beta1)
    if tau < 0 or (tau == 0 and not v0):
        raise ConfigError(f"server.tau: {tau} given; allowed: above 0, or 0 with v0 above 0")
    if v0 is not None and v0 < 0:
        raise ConfigError(f"server.v0: {v0} given; allowed: 0 and more")
