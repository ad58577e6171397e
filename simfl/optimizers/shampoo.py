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
        parts = [
            _Part(tensor, Layout(tensor.shape, group["block"], int(group["stacked"])), self.state[tensor], group)
            for group in self.param_groups
            for tensor in group["params"]
            if tensor.grad is not None
        ]
        for part in parts:
            part.observe()
        _update_roots([part for part in parts if part.count % part.group["roots_every"] == 0])
        for part in parts:
            part.tensor.add_(part.direction(), alpha=-part.group["lr"])


class _Part:
    """A tensor in one step: its blocks, state and settings."""

    def __init__(self, tensor: Tensor, layout: Layout, state: dict[str, Any], group: dict[str, Any]) -> None:
        self.tensor, self.layout, self.state, self.group = tensor, layout, state, group
        assert tensor.grad is not None
        self.blocks = layout.cut(tensor.grad.to(torch.float32))
        if not state:
            state["step"] = torch.zeros(())
            state |= _identities(self.blocks, layout.is_matrix)
        state["step"] += 1
        self.count = int(state["step"])

    def observe(self) -> None:
        """Update the statistics where they are due."""
        if self.count % self.group["statistics_every"] == 0:
            for side, found in _statistics(self.blocks, self.layout.is_matrix).items():
                _update(self.state[side], found, self.group["average"])

    def direction(self) -> Tensor:
        """Return the preconditioned and clipped gradient."""
        direction = _precondition(self.blocks, self.state, self.layout.is_matrix)
        if self.group["clip"] is not None:
            direction = direction.clamp(-self.group["clip"], self.group["clip"])
        return self.layout.join(direction).to(self.tensor.dtype)


def _update_roots(parts: Iterable[_Part]) -> None:
    """Compute the roots of tensors; matrices of equal size are decomposed in one call, whatever tensor they are of.

    Decompositions of small matrices are bound by the time of a call, above all on a GPU. Each root is multiplied
    alone, since a product of many matrices may differ from single ones in the last bit.
    """
    sizes: dict[tuple[int, float, torch.device], list[tuple[Tensor, Tensor]]] = {}
    for part in parts:
        rho, state = part.group["rho"], part.state
        if not part.layout.is_matrix:
            state["left_root"].copy_((state["left"] + rho) ** -0.5)
            continue
        for side in ("left", "right"):
            key = (state[side].shape[-1], rho, state[side].device)
            sizes.setdefault(key, []).append((state[side], state[f"{side}_root"]))
    for (size, rho, _), pairs in sizes.items():
        together = torch.linalg.eigh(torch.cat([statistics.reshape(-1, size, size) for statistics, _ in pairs]))
        counts = [root.numel() // size**2 for _, root in pairs]
        for (_, root), *found in zip(pairs, *(part.split(counts) for part in together), strict=True):
            values, vectors = found[0].reshape(root.shape[:-1]), found[1].reshape(root.shape)
            powers = (values.clamp_min(0.0) + rho).clamp_min(1e-30) ** -0.25
            root.copy_((vectors * powers[..., None, :]) @ vectors.mT)


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


def _precondition(blocks: Tensor, state: dict[str, Tensor], is_matrix: bool) -> Tensor:
    return state["left_root"] @ blocks @ state["right_root"] if is_matrix else state["left_root"] * blocks
