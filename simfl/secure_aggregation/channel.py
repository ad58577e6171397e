"""Uploads as masked integers on the clients' side, and their sum as real numbers on the server's.

A part of an upload is one vector. Without distributed noise, numbers are cut at the clip of the part, rounded to the
fixed-point grid and, where clients are weighted by their examples, scaled by weight / largest weight; the weight itself
is one more integer of the vector, so that the server learns the sum of the weights and no single one.

With distributed noise the update, whose norm the privacy mechanism has clipped, is rotated, rounded on condition of its
norm, and integer noise is added (Kairouz, Liu, Steinke 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from simfl.aggregation.round import Layout
from simfl.codecs.base import MessageContext, message_keys
from simfl.experiment import SecureAggregation
from simfl.privacy.discrete import DiscreteNoise, padded
from simfl.privacy.discrete_noise import discrete_gaussian, skellam
from simfl.privacy.randomness import Randomness
from simfl.protocol import Weights
from simfl.secure_aggregation import hadamard
from simfl.secure_aggregation.fixed_point import FixedPoint
from simfl.secure_aggregation.messages import vector_bytes
from simfl.secure_aggregation.protocol import SecureRound

MASKED = "masked"  # name of the one tensor of a part that leaves a client
MANY_MASKS = 2 * 10**8  # values of all pairwise masks of a round that `masks: auto` computes: about half a second
MAX_TRIES = 1000  # of conditional rounding; at least two of five succeed


@dataclass(frozen=True)
class DistributedNoise:
    """The noise that each client adds to its integers."""

    noise: DiscreteNoise
    sigma: float  # noise multiplier of the sum
    clip: float  # S
    randomness: Randomness = field(repr=False)


@dataclass(frozen=True)
class EncodedPart:
    """One part of n uploads as integers.

    Attributes:
        integers: Unmasked, modulo 2^b, int64 [n, values].
        own: The part as each client knows that it was encoded, without noise, [n, …].
        num_cut: Numbers of each client that were beyond the clip.
        layout: The tensors in the vector.
    """

    integers: Tensor
    own: Weights
    num_cut: list[int]
    layout: Layout


@dataclass(frozen=True)
class SecureChannel:
    """The encoding of a phase's uploads.

    Attributes:
        settings: The settings.
        weighted: Parts that are weighted by the number of examples.
        noise: The noise under the masks; None: there is none.
    """

    settings: SecureAggregation
    weighted: frozenset[str] = frozenset()
    noise: DistributedNoise | None = None

    def num_integers(self, part: str, count: int) -> int:
        """Return the length of the vector of a part with this many numbers."""
        return padded(count) if self.noise else count + (part in self.weighted)

    def payload(self, part: str, num_values: int) -> dict[str, int]:
        """Return the bytes of a masked part with this many numbers."""
        return {MASKED: vector_bytes(self.num_integers(part, num_values), self.settings.bits)}

    def encode(
        self,
        part: str,
        tensors: Weights,
        weights: Sequence[float],
        contexts: Sequence[MessageContext],
        secure: SecureRound,
    ) -> EncodedPart:
        """Encode one part of n uploads.

        Args:
            part: Name of the part.
            tensors: Its finite tensors, [n, …].
            weights: Weights of the clients.
            contexts: Names of the messages, which name the draws.
            secure: The round.
        """
        layout = {name: (tuple(t.shape[1:]), t.dtype) for name, t in tensors.items()}
        rows = [{name: t[k] for name, t in tensors.items()} for k in range(len(weights))]
        if self.noise is not None:
            noisy = [
                self._noisy(_flat(row).numpy(), secure, context.names)
                for row, context in zip(rows, contexts, strict=True)
            ]
            return EncodedPart(
                self._grid(part).wrap(torch.from_numpy(np.stack(noisy))), tensors, [0] * len(rows), layout
            )
        grid, num_cut = self._grid(part), []
        keys = message_keys(contexts, torch.device("cpu")) if self.settings.rounding == "stochastic" else None
        count = sum(t[0].numel() for t in tensors.values())
        integers = torch.empty(len(rows), self.num_integers(part, count), dtype=torch.int64)
        own = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in tensors.items()}
        for k, (row, share) in enumerate(zip(rows, self._shares(part, weights, secure), strict=True)):
            values = _flat(row)
            num_cut.append(int((values.abs() > grid.clip).sum()))
            whole = grid.round_(values.clamp_(-grid.clip, grid.clip).mul_(share), None if keys is None else keys[k])
            integers[k, :count] = grid.wrap(whole.to(torch.int64))
            if part in self.weighted:
                integers[k, count] = int(weights[k])  # below the modulus
            for name, tensor in split(whole.mul_(grid.clip / grid.levels).div_(share)[None], layout).items():
                own[name][k] = tensor[0]
        own = {name: t.to(tensors[name].device) for name, t in own.items()}
        return EncodedPart(integers, own, num_cut, layout)

    def masked(self, integers: Tensor, part: str, clients: Sequence[int], secure: SecureRound) -> Tensor:
        """Return integers [n, values] plus the masks of their clients."""
        masks = secure.masks_of(clients, part, integers.shape[1]).astype(np.int64)
        return self._grid(part).wrap(integers + torch.from_numpy(masks))

    def computes_masks(self, secure: SecureRound, num_integers: int) -> bool:
        """Return whether masks are computed; else sums are taken without them, with the same result."""
        if self.settings.masks != "auto":
            return self.settings.masks == "all"
        degree = len(secure.neighbors(secure.clients[0])) if secure.clients else 0
        return _computes_masks(len(secure.clients), degree, num_integers)

    def mean(self, part: str, total: Tensor, layout: Layout, divisor: float, secure: SecureRound) -> Weights:
        """Return the mean that the server decodes from the sum of the uploads.

        Args:
            part: Name of the part.
            total: Sum of the uploads, int64 [values].
            layout: The tensors in the vector.
            divisor: Sum of the weights, or number of uploads.
            secure: The round.
        """
        grid = self._grid(part)
        if self.computes_masks(secure, len(total)):
            total = total - torch.from_numpy(secure.left_over(part, len(total)).astype(np.int64))
        if part in self.weighted:
            weight = int(grid.centered(total[-1:]))
            assert weight == divisor, f"{part}: weights add up to {weight}, but rows to {divisor}"
            return split(grid.decode(total[None, :-1]) * (secure.max_weight / divisor), layout, single=True)
        values = grid.decode(total[None])
        if self.noise is not None:
            sign = hadamard.signs(len(total), *secure.name)
            values = torch.from_numpy(hadamard.rotate_back(values.numpy(), sign))
        return split(values / divisor, layout, single=True)

    def _grid(self, part: str) -> FixedPoint:
        if self.noise is not None:
            return FixedPoint(self.noise.clip, self.noise.noise.levels, self.settings.bits)
        return FixedPoint(self.settings.clip_of(part), self.settings.levels, self.settings.bits)

    def _shares(self, part: str, weights: Sequence[float], secure: SecureRound) -> list[float]:
        return [weight / secure.max_weight if part in self.weighted else 1.0 for weight in weights]

    def _noisy(self, values: np.ndarray, secure: SecureRound, name: tuple[str | int, ...]) -> np.ndarray:
        """Return a clipped update rotated and rounded, plus this client's share of the noise, int64 [D]."""
        assert self.noise is not None
        spec, variance = self.noise.noise, self.noise.noise.share(self.noise.sigma)
        scaled = np.zeros((1, padded(len(values))))
        scaled[0, : len(values)] = values * (spec.levels / self.noise.clip)
        rotated = hadamard.rotate(scaled, hadamard.signs(scaled.shape[1], *secure.name))[0]
        draws = (spec.mechanism, spec.levels, self.noise.clip.hex(), variance.hex(), *name)
        rounded = _rounded(self.noise.randomness.generator("rounding", *draws), rotated, spec.sensitivity)
        generator = self.noise.randomness.generator("noise", *draws)
        if spec.mechanism == "skellam":
            return rounded + skellam(generator, variance, len(rounded))
        return rounded + discrete_gaussian(generator, int(variance), len(rounded))


def _rounded(generator: np.random.Generator, values: np.ndarray, limit: float) -> np.ndarray:
    """Return values rounded at random to whole numbers, on condition that the norm is at most `limit`, int64.

    Should no try succeed, they are rounded towards zero, which shortens them.
    """
    for _ in range(MAX_TRIES):
        found = np.floor(values + generator.random(len(values)))
        if math.sqrt(float(np.square(found).sum())) <= limit:
            return found.astype(np.int64)
    shortened: np.ndarray = np.trunc(values).astype(np.int64)
    return shortened


def mask_note(settings: SecureAggregation, clients: int, num_integers: int) -> str:
    """Return a line that says that `masks: auto` leaves out the masks of a round; empty if it does not.

    Args:
        settings: The settings.
        clients: Clients of a round.
        num_integers: Length of a client's vector.
    """
    degree = max(0, settings.num_holders(clients) - 1)
    if settings.masks != "auto" or _computes_masks(clients, degree, num_integers):
        return ""
    return (
        f"secure_aggregation.masks: auto leaves out masks that cancel: {clients:,} clients with {degree:,} neighbours"
        f" and {num_integers:,} numbers each are more than {MANY_MASKS:,} values per round; sums are the same, and"
        " masks: all computes them"
    )


def _computes_masks(clients: int, degree: int, num_integers: int) -> bool:
    return clients * degree * num_integers <= MANY_MASKS


def _flat(tensors: Weights) -> Tensor:
    """Return a client's tensors as one vector on the CPU, float64 [values], which is a copy."""
    rows = [t.detach().reshape(-1).to("cpu", torch.float64, copy=True) for t in tensors.values()]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def split(rows: Tensor, layout: Layout, single: bool = False) -> Weights:
    """Return the tensors of vectors [n, values], [n, …]; with `single`, of the only row. Padding is left out."""
    found, start = Weights(), 0
    for name, (shape, dtype) in layout.items():
        end = start + math.prod(shape)
        tensor = rows[:, start:end].reshape(len(rows), *shape).to(dtype)
        found[name], start = (tensor[0] if single else tensor), end
    return found


def weighted_parts(reduce: Mapping[str, str], weighting: str) -> frozenset[str]:
    """Return the parts of an algorithm that are weighted by numbers of examples."""
    return frozenset(part for part, rule in reduce.items() if rule == "weighting" and weighting == "examples")
