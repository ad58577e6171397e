"""Optimizer steps on stacked tensors.

A stackable optimizer steps all clients at once; any other, or clients whose kept state is at different steps, is
stepped on each client's rows, with the same result. Clients that have finished neither decay nor drift.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from simfl.experiment import Local
from simfl.protocol import MicroStep, State, Weights
from simfl.stacking import select_namespace
from simfl.training.clipping import clip
from simfl.training.context import PhaseContext
from simfl.weights import select_names


class StackedOptimizer:
    """One optimizer for `weights` ([n, …], stepped in place), with the state each client kept, if any."""

    def __init__(self, local: Local, weights: Weights, kept: list[State], gated: bool = False) -> None:
        """Build the optimizer. `gated`: clients skip steps, so their step counts differ."""
        self.local, self.weights, self.n = local, weights, len(kept)
        counts = {_count(state) for state in kept}
        self.stacked = local.optimizer.stackable and len(counts) == 1 and not gated
        owners = [list(weights.values())] if self.stacked else [[t[k] for t in weights.values()] for k in range(self.n)]
        self.tensors = [tensor for own in owners for tensor in own]
        self.optimizer = local.optimizer.build([{"params": own} for own in owners], local.learning_rate, self.stacked)
        self.taken = [0] * self.n  # steps of each client in this visit
        self.before = [_count(state) for state in kept]
        if any(kept):
            self._load(kept)

    def _load(self, kept: list[State]) -> None:
        names = list(self.weights)
        if self.stacked:
            for j, name in enumerate(names):
                rows = [_of_tensor(state, name) for state in kept]
                merged = {key: torch.stack([row[key] for row in rows]) for key in rows[0] if key != "step"}
                self.optimizer.state[self.tensors[j]] = _with_step(merged, rows[0])
            return
        for k, state in enumerate(kept):
            for j, name in enumerate(names):
                row = _of_tensor(state, name)
                if row:
                    own = {key: t.clone() for key, t in row.items() if key != "step"}
                    self.optimizer.state[self.tensors[k * len(names) + j]] = _with_step(own, row)

    def step(self, gradients: Weights, active: list[bool], rates: Sequence[float]) -> None:
        """Clip each client's gradient ([n, …]) and step the clients still at work, each at its own learning rate."""
        if not any(active):
            return
        gradients = clip(gradients, self.local)
        self.taken = [count + on for count, on in zip(self.taken, active, strict=True)]
        for tensor, gradient in zip(self.tensors, self._rows(gradients, active), strict=True):
            tensor.grad = gradient
        if self.stacked:
            self._step_stacked(active, rates)
        else:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = float(rate)
            self.optimizer.step()
        for tensor in self.tensors:
            tensor.grad = None

    def _rows(self, gradients: Weights, active: list[bool]) -> list[Tensor | None]:
        """The gradient of each tensor of the optimizer; None for clients that have finished."""
        if self.stacked:
            return list(gradients.values())
        return [g[k] if active[k] else None for k in range(self.n) for g in gradients.values()]

    def _step_stacked(self, active: list[bool], rates: Sequence[float]) -> None:
        held = [k for k, on in enumerate(active) if not on]
        saved = [(t, t[held].clone()) for t in [*self.tensors, *self._moments()]] if held else []
        self._step_at([float(rate) for rate, on in zip(rates, active, strict=True) if on], active)
        for tensor, rows in saved:
            tensor[held] = rows

    def _step_at(self, rates: list[float], active: list[bool]) -> None:
        """One step of all; where rates differ, each client goes its share of the longest, as steps are linear in it."""
        longest = max(rates)
        self.optimizer.param_groups[0]["lr"] = longest
        if min(rates) == longest:
            self.optimizer.step()
            return
        before = [tensor.clone() for tensor in self.tensors]
        self.optimizer.step()
        left = iter(rates)
        shares = torch.tensor([next(left) / longest if on else 0.0 for on in active], device=before[0].device)
        for tensor, old in zip(self.tensors, before, strict=True):
            tensor.copy_(torch.lerp(old, tensor, shares.reshape(-1, *[1] * (tensor.dim() - 1)).to(tensor.dtype)))

    def _moments(self) -> list[Tensor]:
        return [
            t for state in self.optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim() > 0
        ]

    def states(self) -> list[State]:
        """Each client's optimizer state, to be kept: {moment: {tensor: value}}."""
        out: list[State] = [{} for _ in range(self.n)]
        names = list(self.weights)
        for k in range(self.n):
            for j, name in enumerate(names):
                place = j if self.stacked else k * len(names) + j
                for key, value in self.optimizer.state.get(self.tensors[place], {}).items():
                    if key == "step":
                        value = torch.tensor(float(self.before[k] + self.taken[k]))
                    elif self.stacked:
                        value = value[k]
                    out[k].setdefault(key, {})[name] = value.detach().clone()
        return out


def steppers_of(stage: PhaseContext, weights: Weights, kept: list[State]) -> list[tuple[MicroStep, StackedOptimizer]]:
    """Of each micro-step, for clients that update_state `kept`; `weights` [n, …] are stepped in place."""
    steppers = []
    for number, micro in enumerate(stage.phase.algorithm.micro_steps()):
        names = select_names(weights, micro.trains, micro.excludes, where="algorithm")
        before = [select_namespace(memory, f"optimizer{number}") for memory in kept]
        optimized = {name: weights[name] for name in names}
        steppers.append((micro, StackedOptimizer(stage.phase.local, optimized, before, micro.active is not None)))
    return steppers


def _count(state: State) -> int:
    steps = state.get("step")
    return int(next(iter(steps.values()))) if steps else (-1 if state else 0)


def _of_tensor(state: State, name: str) -> Weights:
    return {key: tensors[name] for key, tensors in state.items() if name in tensors}


def _with_step(merged: Weights, row: Weights) -> Weights:
    """With the count of steps, which optimizers read on the CPU."""
    return {**merged, "step": row["step"].cpu().clone()} if "step" in row else merged
