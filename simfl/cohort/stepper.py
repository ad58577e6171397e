"""Optimizer steps on stacked tensors.

An element-wise optimizer of torch steps all clients at once; any other, or clients whose kept state is at different
steps, is stepped on each client's rows, with the same result. Clients that have finished neither decay nor drift.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simfl.experiment import Local
from simfl.protocol import State, Weights


class Stepper:
    """One optimizer for `weights` ([n, …], stepped in place), with the state each client kept, if any."""

    def __init__(self, local: Local, weights: Weights, kept: list[State]) -> None:
        self.local, self.weights, self.n = local, weights, len(kept)
        counts = {_count(state) for state in kept}
        self.stacked = local.optimizer.stackable and len(counts) == 1
        tensors = list(weights.values()) if self.stacked else [t[k] for k in range(self.n) for t in weights.values()]
        self.tensors = tensors
        self.optimizer = local.optimizer.build(tensors, local.learning_rate)
        self.taken = torch.zeros(self.n, dtype=torch.int64)  # steps of each client in this visit
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
                    self.optimizer.state[self.tensors[k * len(names) + j]] = {key: t.clone() for key, t in row.items()}

    def step(self, gradients: Weights, active: list[bool]) -> None:
        """Clip each client's gradient ([n, …]) and step the clients that are still at work."""
        gradients = clip(gradients, self.local)
        self.taken += torch.tensor(active, dtype=torch.int64)
        if not self.stacked:
            own = [g[k] if active[k] else None for k in range(self.n) for g in gradients.values()]
            for tensor, one in zip(self.tensors, own, strict=True):
                tensor.grad = one
            self.optimizer.step()
            return
        for tensor, gradient in zip(self.tensors, gradients.values(), strict=True):
            tensor.grad = gradient
        if all(active):
            self.optimizer.step()
            return
        held = [k for k, on in enumerate(active) if not on]
        saved = [(t, t[held].clone()) for t in [*self.tensors, *self._moments()]]
        self.optimizer.step()
        for tensor, rows in saved:
            tensor[held] = rows

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
                        value = torch.tensor(float(self.before[k] + int(self.taken[k])))
                    elif self.stacked:
                        value = value[k]
                    out[k].setdefault(key, {})[name] = value.detach().clone()
        return out


def clip(gradients: Weights, local: Local) -> Weights:
    """Each client's gradient ([n, …]) clipped by value, then by its norm over all tensors."""
    if local.clip_value is not None:
        gradients = {name: g.clamp(-local.clip_value, local.clip_value) for name, g in gradients.items()}
    if local.clip_norm is not None:
        squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
        factor = (local.clip_norm / (squares.sqrt() + 1e-6)).clamp_max(1.0)
        gradients = {name: g * factor.reshape(-1, *[1] * (g.dim() - 1)) for name, g in gradients.items()}
    return gradients


def _count(state: State) -> int:
    steps = state.get("step")
    return int(next(iter(steps.values()))) if steps else (-1 if state else 0)


def _of_tensor(state: State, name: str) -> Weights:
    return {key: tensors[name] for key, tensors in state.items() if name in tensors}


def _with_step(merged: Weights, row: Weights) -> Weights:
    return {**merged, "step": row["step"].clone()} if "step" in row else merged
