"""Shampoo as in FedShampoo: Gupta et al. 2018; Niwa et al. in Tito et al. 2024 (PFL-DocVQA), Algorithm 1.

G      gradient of a matrix, one row per output       L, R    its statistics, initially identities
every 10 steps    L ← L + G·Gᵀ,   R ← R + Gᵀ·G        every 100     L̃ = (L + rho·I)^(−1/4),   R̃ = (R + rho·I)^(−1/4)
every step        W ← W − eta·Clip(L̃·G·R̃, ±C)         before the first roots L̃ and R̃ are identities

The paper calls the sums a moving average, prints G once transposed, and leaves vectors and the size of blocks open.
Here a vector is a diagonal matrix, g/√(1 + Σg² + rho); kernels are matrices with one row per output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Shampoo(torch.optim.Optimizer):
    """Shampoo, which preconditions each block of a matrix from both sides.

    With `local.keep_optimizer` clients keep their statistics between rounds.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-4,
        clip: float | None = 0.2,  # C: largest magnitude of a preconditioned entry
        rho: float = 1e-4,  # added to the statistics before their roots
        statistics_every: int = 10,  # steps between updates of the statistics
        roots_every: int = 100,  # steps between updates of their roots
        block: int = 1024,  # longest side of a block; larger matrices are split evenly
        average: float | None = None,  # weight of the old statistics in a moving average; None: sums
        stacked: bool = False,  # whether the first axis of every tensor is clients
    ) -> None:
        """Create the optimizer. Raises ValueError for a setting out of range."""
        if clip is not None and clip <= 0:
            raise ValueError(f"clip: {clip} given; allowed: above 0, or null")
        if rho < 0:
            raise ValueError(f"rho: {rho} given; allowed: 0 and more")
        if min(statistics_every, roots_every, block) < 1:
            raise ValueError("statistics_every, roots_every and block: at least 1")
        if average is not None and not 0 <= average < 1:
            raise ValueError(f"average: {average} given; allowed: 0 up to, not including, 1, or null")
        settings = {"clip": clip, "rho": rho, "statistics_every": statistics_every, "roots_every": roots_every}
        super().__init__(params, {"lr": lr, "block": block, "average": average, "stacked": stacked} | settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch's closure is not supported
        """Step every tensor that has a gradient."""
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    tensor.add_(self._direction(tensor, tensor.grad, group), alpha=-group["lr"])

    def _direction(self, tensor: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        layout = Layout(tensor.shape, group["block"], int(group["stacked"]))
        blocks, state = layout.cut(gradient.to(torch.float32)), self.state[tensor]
        if not state:
            state["step"] = torch.zeros(())
            state |= _identities(blocks, layout.is_matrix)
        state["step"] += 1
        count = int(state["step"])
        if count % group["statistics_every"] == 0:
            for side, found in _statistics(blocks, layout.is_matrix).items():
                _update(state[side], found, group["average"])
        if count % group["roots_every"] == 0:
            power = -0.25 if layout.is_matrix else -0.5
            for side in _sides(layout.is_matrix):
                state[f"{side}_root"].copy_(_root(state[side], group["rho"], power, layout.is_matrix))
        direction = _precondition(blocks, state, layout.is_matrix)
        if group["clip"] is not None:
            direction = direction.clamp(-group["clip"], group["clip"])
        return layout.join(direction).to(tensor.dtype)


class Layout:
    """The split of a tensor, after its axis of clients, into blocks [..., rows, columns, height, width]."""

    def __init__(self, shape: torch.Size, block: int, lead: int) -> None:
        """Plan the blocks of a shape with `lead` axes of clients and sides of at most `block`."""
        self.shape, self.lead, own = shape, shape[:lead], shape[lead:]
        self.is_matrix = len(own) > 1
        self.height, self.width = (own[0], math.prod(own[1:])) if self.is_matrix else (1, 1)
        self.rows, self.columns = -(-self.height // block), -(-self.width // block)
        self.tall, self.wide = -(-self.height // max(self.rows, 1)), -(-self.width // max(self.columns, 1))

    def cut(self, tensor: Tensor) -> Tensor:
        """Return blocks of equal size, padded with zeros; a vector is returned unchanged."""
        if not self.is_matrix:
            return tensor
        matrix = tensor.reshape(*self.lead, self.height, self.width)
        padding = (0, self.columns * self.wide - self.width, 0, self.rows * self.tall - self.height)
        padded = torch.nn.functional.pad(matrix, padding)
        return padded.reshape(*self.lead, self.rows, self.tall, self.columns, self.wide).transpose(-3, -2)

    def join(self, blocks: Tensor) -> Tensor:
        """Return the tensor that `cut` into these blocks."""
        if not self.is_matrix:
            return blocks
        whole = blocks.transpose(-3, -2).reshape(*self.lead, self.rows * self.tall, self.columns * self.wide)
        return whole[..., : self.height, : self.width].reshape(self.shape)


def _sides(is_matrix: bool) -> tuple[str, ...]:
    return ("left", "right") if is_matrix else ("left",)


def _identities(blocks: Tensor, is_matrix: bool) -> dict[str, Tensor]:
    """Return identities as statistics and roots."""
    if not is_matrix:
        return {"left": torch.ones_like(blocks), "left_root": torch.ones_like(blocks)}
    lead, (tall, wide) = blocks.shape[:-2], blocks.shape[-2:]
    eyes = {side: torch.eye(size, device=blocks.device) for side, size in (("left", tall), ("right", wide))}
    found = {side: eye.expand(*lead, *eye.shape) for side, eye in eyes.items()}
    return {name: eye.clone() for side, eye in found.items() for name in (side, f"{side}_root")}


def _statistics(blocks: Tensor, is_matrix: bool) -> dict[str, Tensor]:
    return {"left": blocks @ blocks.mT, "right": blocks.mT @ blocks} if is_matrix else {"left": blocks.square()}


def _update(old: Tensor, found: Tensor, average: float | None) -> None:
    if average is None:
        old.add_(found)
    else:
        old.lerp_(found, 1.0 - average)


def _root(statistics: Tensor, rho: float, power: float, is_matrix: bool) -> Tensor:
    """Return (statistics + rho·I)^power, from eigenvalues."""
    if not is_matrix:
        return (statistics + rho) ** power
    values, vectors = torch.linalg.eigh(statistics)
    powers = (values.clamp_min(0.0) + rho).clamp_min(1e-30) ** power
    return (vectors * powers[..., None, :]) @ vectors.mT


def _precondition(blocks: Tensor, state: dict[str, Tensor], is_matrix: bool) -> Tensor:
    return state["left_root"] @ blocks @ state["right_root"] if is_matrix else state["left_root"] * blocks
