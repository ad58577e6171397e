"""Server optimizers: a step with the mean of the clients' deltas as pseudo-gradient.

    w   weights               d     pseudo-gradient: the mean of trained − received, so that a step adds it
    m   first moment          v     second moment
    t   steps taken           eta   learning_rate

FedAvg: McMahan et al. 2017. FedAvgM: Hsu et al. 2019. FedAdam, FedYogi, FedAdagrad: Reddi et al. 2021, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from simfl.errors import ConfigError, nearest
from simfl.optimizers.schedules import Constant, Schedule
from simfl.protocol import State, Weights

PIECE_BYTES = 32 << 20  # of tensors that are stepped together


@dataclass(frozen=True)
class ServerOptimizer:
    """The base class of server optimizers: `step` takes weights and state, and returns new ones.

    `simfl.contract.check(MyOptimizer)` tests a subclass.

    Attributes:
        by_tensor: Whether the step of a tensor depends on no other one, so that a few can be stepped at a time.
        counters: Groups of the state that belong to no tensor.
        num_moments: Number of state tensors per stepped tensor, for the memory estimate in the documentation.
        example: Settings for `simfl.contract.check`.
    """

    learning_rate: float = 1.0  # eta
    schedule: Schedule = field(default_factory=Constant)  # of the learning rate, over rounds

    by_tensor: ClassVar[bool] = False
    counters: ClassVar[tuple[str, ...]] = ()
    num_moments: ClassVar[int] = 0
    example: ClassVar[Mapping[str, object]] = {}

    def at(self, round: int, rounds: int) -> Self:
        """Return this optimizer with the learning rate of a round (from 0) of a phase of `rounds` rounds."""
        factor = float(self.schedule.factors(rounds, round, 1)[0])
        return self if factor == 1.0 else replace(self, learning_rate=self.learning_rate * factor, schedule=Constant())

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """Return new weights and new state; the arguments stay unchanged.

        Args:
            weights: The communicated tensors of the global model.
            delta: The pseudo-gradient, float tensors. Weights that it does not name are returned unchanged.
            state: The state after the previous step; {} before the first.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Sgd(ServerOptimizer):
    """w + eta·d. With eta = 1 this is federated averaging."""

    by_tensor: ClassVar[bool] = True

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """Return w + eta·d; there is no state."""
        step = torch._foreach_mul(list(delta.values()), self.learning_rate) if delta else []
        return apply_step(weights, dict(zip(delta, step, strict=True))), state


FORMS = ("ema", "sum")


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """FedAvgM: w + eta·m, with m a moving average of the deltas or, as first published, their decaying sum."""

    beta: float = 0.9  # weight of the old momentum
    form: str = "ema"  # ema: m = beta·m + (1 − beta)·d | sum: m = beta·m + d (Hsu et al. 2019)

    by_tensor: ClassVar[bool] = True
    num_moments: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown form or a beta outside [0, 1)."""
        check_decay("beta", self.beta)
        if self.form not in FORMS:
            raise ConfigError(f"server.form: unknown {self.form!r}; {nearest(self.form, FORMS)}")

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """Return w + eta·m, and the state `momentum`."""
        gain = 1 - self.beta if self.form == "ema" else 1.0
        old = state or {"momentum": filled_like(delta, 0.0)}
        momentum = {name: self.beta * old["momentum"][name] + gain * d for name, d in delta.items()}
        step = {name: self.learning_rate * m for name, m in momentum.items()}
        return apply_step(weights, step), {"momentum": momentum}


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """The base of FedAdam, FedYogi and FedAdagrad: w + eta·m / (√v + tau), with a rule for v."""

    learning_rate: float = 0.01  # eta
    beta1: float = 0.9  # weight of the old m
    tau: float = 1e-3  # the smaller, the more adaptive
    v0: float | None = None  # v before the first step; null: tau²
    eps_inside_root: bool = False  # √(v + tau) instead of √v + tau
    bias_correction: bool = False  # divide m by 1 − beta1^t, and v by 1 − beta2^t if v is a moving average

    by_tensor: ClassVar[bool] = True
    counters: ClassVar[tuple[str, ...]] = ("count",)
    num_moments: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Raise ConfigError for settings out of range."""
        check_decay("beta1", self.beta1)
        if self.tau < 0 or (self.tau == 0 and not self.v0):
            raise ConfigError(f"server.tau: {self.tau} given; allowed: above 0, or 0 with v0 above 0")
        if self.v0 is not None and self.v0 < 0:
            raise ConfigError(f"server.v0: {self.v0} given; allowed: 0 and more")

    def second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        """Return the new v from the old one and the delta."""
        raise NotImplementedError

    def decay(self) -> float:
        """Return the weight of the old v in the new one, for the bias correction; 0 for none."""
        return 0.0

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        """Return w + eta·m / (√v + tau), and the state `momentum`, `second`, `count`."""
        old = state or self._initial_state(delta)
        m = {name: self.beta1 * old["momentum"][name] + (1 - self.beta1) * d for name, d in delta.items()}
        v = {name: self.second_moment(old["second"][name], d) for name, d in delta.items()}
        t = int(old["count"]["steps"]) + 1
        m_bias, v_bias = (1 - self.beta1**t, 1 - self.decay() ** t) if self.bias_correction else (1.0, 1.0)
        step = {}
        for name in delta:
            variance = v[name] / v_bias
            root = torch.sqrt(variance + self.tau) if self.eps_inside_root else torch.sqrt(variance) + self.tau
            step[name] = self.learning_rate * (m[name] / m_bias) / root
        return apply_step(weights, step), {"momentum": m, "second": v, "count": {"steps": torch.tensor(t)}}

    def _initial_state(self, delta: Weights) -> State:
        v0 = self.tau**2 if self.v0 is None else self.v0
        return {
            "momentum": filled_like(delta, 0.0),
            "second": filled_like(delta, v0),
            "count": {"steps": torch.tensor(0)},
        }


@dataclass(frozen=True)
class Adam(Adaptive):
    """FedAdam: w + eta·m / (√v + tau), with v a moving average of the squared deltas."""

    beta2: float = 0.99  # weight of the old v

    def __post_init__(self) -> None:
        """Raise ConfigError for settings out of range."""
        check_decay("beta2", self.beta2)
        super().__post_init__()

    def second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        """Return beta2·v + (1 − beta2)·d²."""
        return self.beta2 * v + (1 - self.beta2) * d.square()

    def decay(self) -> float:
        """Return beta2."""
        return self.beta2


@dataclass(frozen=True)
class Yogi(Adaptive):
    """FedYogi: FedAdam with steps of v towards the squared deltas whose size does not depend on v."""

    beta2: float = 0.99  # weight of the old v

    def __post_init__(self) -> None:
        """Raise ConfigError for settings out of range."""
        check_decay("beta2", self.beta2)
        super().__post_init__()

    def second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        """Return v − (1 − beta2)·d²·sign(v − d²)."""
        return v - (1 - self.beta2) * d.square() * torch.sign(v - d.square())

    def decay(self) -> float:
        """Return beta2."""
        return self.beta2


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad: FedAdam with v the sum of all squared deltas."""

    beta1: float = 0.0  # weight of the old m

    def second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        """Return v + d²."""
        return v + d.square()


def apply_step(weights: Weights, step: Weights) -> Weights:
    """Return weights + step; weights that `step` does not name stay unchanged."""
    for name, change in step.items():
        assert change.is_floating_point(), f"{name}: {change.dtype} cannot be stepped"
    names = [name for name in weights if name in step]
    moved = torch._foreach_add([weights[name] for name in names], [step[name] for name in names]) if names else []
    return weights | dict(zip(names, moved, strict=True))


def step_in_pieces(optimizer: ServerOptimizer, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
    """Return what `optimizer.step` returns, bit for bit; empty `delta`, whose tensors are released as they are used.

    Tensors of at most `PIECE_BYTES` together, or a single larger one, are stepped at a time where the optimizer allows
    it, so that the temporary tensors of the step are as large as these and not as the model.
    """
    if not _steps_by_tensor(type(optimizer)):
        stepped = optimizer.step(weights, dict(delta), state)
        delta.clear()
        return stepped
    weights, names = dict(weights), list(delta)
    new: State = {}
    counted = {key: state[key] for key in optimizer.counters if key in state}
    for piece in _pieces(delta):
        own = {key: {n: group[n] for n in piece if n in group} for key, group in state.items() if key not in counted}
        moved, after = optimizer.step(
            {name: weights[name] for name in piece if name in weights},
            {name: delta.pop(name) for name in piece},
            own | counted,
        )
        weights |= moved
        for key, group in after.items():
            new[key] = new.get(key, {}) | group
    return weights, new if names else state


def _steps_by_tensor(optimizer: type[ServerOptimizer]) -> bool:
    """Return `by_tensor` of the class that defines `step`: a subclass with a step of its own has to say so again."""
    owner = next(cls for cls in optimizer.__mro__ if "step" in vars(cls))
    return bool(vars(owner).get("by_tensor", False))


def _pieces(tensors: Weights) -> list[list[str]]:
    """Divide tensors, in their order, into groups of at most `PIECE_BYTES`."""
    pieces, size = list[list[str]](), PIECE_BYTES
    for name, tensor in tensors.items():
        if size + tensor.nbytes > PIECE_BYTES:
            pieces, size = [*pieces, []], 0
        pieces[-1].append(name)
        size += tensor.nbytes
    return pieces


def step_some(optimizer: ServerOptimizer, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
    """Step the weights that `delta` names; the others keep their values and their state until it is their turn.

    The optimizer's count of steps is that of all rounds.
    """
    resting = [name for name in weights if name not in delta]
    stepped, new = optimizer.step(weights, delta | {name: torch.zeros_like(weights[name]) for name in resting}, state)
    kept = {key: {name: state[key][name] for name in resting if name in state[key]} for key in new.keys() & state}
    return (
        stepped | {name: weights[name] for name in resting},
        {key: tensors | kept.get(key, {}) for key, tensors in new.items()},
    )


def filled_like(like: Weights, value: float) -> Weights:
    """Return tensors of the same names and shapes, filled with a value."""
    return {name: torch.full_like(tensor, value) for name, tensor in like.items()}


def check_decay(key: str, value: float) -> None:
    """Raise ConfigError for a decay outside [0, 1)."""
    if not 0 <= value < 1:
        raise ConfigError(f"server.{key}: {value} given; allowed: 0 up to, not including, 1")
