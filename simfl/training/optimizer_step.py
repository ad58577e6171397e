"""Optimizer steps on stacked tensors, after clipping of each client's gradient.

A stackable optimizer steps all clients at once. Any other is stepped on each client's rows, with the same result; so
are clients whose kept optimizer states have different step counts, or that skip steps. Inactive clients neither move
nor decay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from simfl.experiment import Local
from simfl.protocol import MicroStep, State, Weights
from simfl.stacking import select_namespace
from simfl.training.context import PhaseContext
from simfl.weights import select_names


def clip(gradients: Weights, local: Local) -> Weights:
    """Clip each client's gradient ([n, …]) by value, then by its norm over all tensors."""
    if local.clip_value is not None:
        gradients = {name: g.clamp(-local.clip_value, local.clip_value) for name, g in gradients.items()}
    if local.clip_norm is not None:
        squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients.values()]).sum(0)
        factor = (local.clip_norm / (squares.sqrt() + 1e-6)).clamp_max(1.0)
        gradients = {name: g * factor.reshape(-1, *[1] * (g.dim() - 1)) for name, g in gradients.items()}
    return gradients


class StackedOptimizer:
    """One optimizer for `weights` ([n, …], stepped in place)."""

    def __init__(self, local: Local, weights: Weights, saved: list[State], skips_steps: bool = False) -> None:
        """Build the optimizer.

        Args:
            local: Settings of local training.
            weights: The tensors to step, [n, …].
            saved: Optimizer state that each client kept, n of them; empty states for new optimizers.
            skips_steps: Whether clients skip steps, so that their step counts differ.
        """
        self.local, self.weights, self.n = local, weights, len(saved)
        counts = {_step_count(state) for state in saved}
        self.stacked = local.optimizer.stackable and len(counts) == 1 and not skips_steps
        rows = [list(weights.values())] if self.stacked else [[t[k] for t in weights.values()] for k in range(self.n)]
        self.tensors = [tensor for own in rows for tensor in own]
        self.optimizer = local.optimizer.build([{"params": own} for own in rows], local.learning_rate, self.stacked)
        self.steps_taken = [0] * self.n  # of each client in this update
        self.steps_before = [_step_count(state) for state in saved]
        if any(saved):
            self._load(saved)

    def _load(self, saved: list[State]) -> None:
        names = list(self.weights)
        if self.stacked:
            for j, name in enumerate(names):
                rows = [_of_tensor(state, name) for state in saved]
                merged = {key: torch.stack([row[key] for row in rows]) for key in rows[0] if key != "step"}
                self.optimizer.state[self.tensors[j]] = _with_step(merged, rows[0])
            return
        for k, state in enumerate(saved):
            for j, name in enumerate(names):
                row = _of_tensor(state, name)
                if row:
                    own = {key: t.clone() for key, t in row.items() if key != "step"}
                    self.optimizer.state[self.tensors[k * len(names) + j]] = _with_step(own, row)

    def step(self, gradients: Weights, active: list[bool], rates: Sequence[float]) -> None:
        """Clip each client's gradient ([n, …]) and step the active clients, each at its own learning rate."""
        if not any(active):
            return
        gradients = clip(gradients, self.local)
        self.steps_taken = [count + on for count, on in zip(self.steps_taken, active, strict=True)]
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
        """Return the gradient of each tensor of the optimizer; None for inactive clients."""
        if self.stacked:
            return list(gradients.values())
        return [g[k] if active[k] else None for k in range(self.n) for g in gradients.values()]

    def _step_stacked(self, active: list[bool], rates: Sequence[float]) -> None:
        """Step all clients at once, then restore the rows of inactive ones."""
        inactive = [k for k, on in enumerate(active) if not on]
        before = [(t, t[inactive].clone()) for t in [*self.tensors, *self._moments()]] if inactive else []
        self._step_at([float(rate) for rate, on in zip(rates, active, strict=True) if on], active)
        for tensor, rows in before:
            tensor[inactive] = rows

    def _step_at(self, rates: list[float], active: list[bool]) -> None:
        """Step at these rates of the active clients.

        Where rates differ, all step at the highest and each moves by its share of it, as steps are linear in the rate.
        """
        highest = max(rates)
        self.optimizer.param_groups[0]["lr"] = highest
        if min(rates) == highest:
            self.optimizer.step()
            return
        before = [tensor.clone() for tensor in self.tensors]
        self.optimizer.step()
        remaining = iter(rates)
        shares = torch.tensor([next(remaining) / highest if on else 0.0 for on in active], device=before[0].device)
        for tensor, old in zip(self.tensors, before, strict=True):
            tensor.copy_(torch.lerp(old, tensor, shares.reshape(-1, *[1] * (tensor.dim() - 1)).to(tensor.dtype)))

    def _moments(self) -> list[Tensor]:
        return [
            t for state in self.optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim() > 0
        ]

    def states(self) -> list[State]:
        """Return each client's optimizer state, to be kept: {moment: {tensor: value}}."""
        out: list[State] = [{} for _ in range(self.n)]
        names = list(self.weights)
        for k in range(self.n):
            for j, name in enumerate(names):
                index = j if self.stacked else k * len(names) + j
                for key, value in self.optimizer.state.get(self.tensors[index], {}).items():
                    if key == "step":
                        value = torch.tensor(float(self.steps_before[k] + self.steps_taken[k]))
                    elif self.stacked:
                        value = value[k]
                    out[k].setdefault(key, {})[name] = value.detach().clone()
        return out


def stacked_optimizers(
    context: PhaseContext, weights: Weights, client_states: list[State]
) -> list[tuple[MicroStep, StackedOptimizer]]:
    """Return each micro-step with its optimizer for `weights` [n, …], continued from what the clients have stored."""
    optimizers = []
    for number, micro in enumerate(context.phase.algorithm.micro_steps()):
        names = select_names(weights, micro.trains, micro.excludes, where="algorithm")
        saved = [select_namespace(state, f"optimizer{number}") for state in client_states]
        stepped = {name: weights[name] for name in names}
        skips_steps = micro.active is not None
        optimizers.append((micro, StackedOptimizer(context.phase.local, stepped, saved, skips_steps)))
    return optimizers


def _step_count(state: State) -> int:
    steps = state.get("step")
    return int(next(iter(steps.values()))) if steps else (-1 if state else 0)


def _of_tensor(state: State, name: str) -> Weights:
    return {key: tensors[name] for key, tensors in state.items() if name in tensors}


def _with_step(merged: Weights, row: Weights) -> Weights:
    """Add the step count, which optimizers read on the CPU."""
    return {**merged, "step": row["step"].cpu().clone()} if "step" in row else merged
