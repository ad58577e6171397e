"""The mechanism of a phase: units are clipped and summed, noise is added, then comes the codec, in that order.

    S  clip      sigma  noise multiplier      M  what a client's sum is divided by      K  what the clients' are

The engine calls it and holds every upload to the receipt that it gives: tensors that did not come from here do not
travel. With `noise: client` each message carries N(0, (sigma S)²) / M, an average of K of them sigma·S / (M √K). With
`noise: central` messages are bare and the server, which is trusted, adds sigma·S / (M K) to the average.

Adaptive clipping (Andrew et al. 2021): with each update a unit gives the bit whether it was left alone, less one half.
Update over S and bit together are one Gaussian of multiplier sigma where the update's own is z and the count's r·sigma
with sigma^-2 = z^-2 + (2 r sigma)^-2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from simfl.errors import PrivacyError
from simfl.experiment import Privacy
from simfl.privacy.noise import noised
from simfl.privacy.units import Clipped, clipped
from simfl.protocol import AggregatedUpdates, Parts, Weights
from simfl.seeds import Name
from simfl.weights import scale

CLIP = "clip"  # the engine's own part: down goes the clip, up comes the count of units that it left alone


@dataclass(frozen=True)
class Release:
    """What may leave a client, and that it went through the mechanism."""

    parts: Parts

    def admit(self, upload: Parts, where: str) -> None:
        """PrivacyError naming the first tensor of an upload that is not the released one itself."""
        for part, tensors in upload.items():
            for name, tensor in tensors.items():
                if self.parts.get(part, {}).get(name) is not tensor:
                    raise PrivacyError(f"{where}: {part} {name} was not clipped and noised, and may not leave")


@dataclass(frozen=True)
class Mechanism:
    """Made once for a phase, the same on every worker."""

    privacy: Privacy
    sigma: float = (
        math.nan
    )  # noise multiplier of everything that a unit gives; where it is not known nothing is released
    seed: int = 0
    copies: Mapping[str, int] = field(default_factory=dict)  # further names of tied tensors, where they count

    @property
    def unit(self) -> str:
        return self.privacy.unit

    @property
    def noise_multiplier(self) -> float:
        """Sigma."""
        assert not math.isnan(self.sigma), "nobody said how much noise there is to be"
        return self.sigma

    @property
    def update_multiplier(self) -> float:
        """z: of the updates alone; more than sigma where a count is released too."""
        adaptive = self.privacy.adaptive
        if adaptive is None:
            return self.noise_multiplier
        return self.noise_multiplier / math.sqrt(1 - 1 / (2 * adaptive.count_noise) ** 2)

    def admit(self, upload: Parts, release: Release | None, bare_steps: int, client: int) -> None:
        """PrivacyError for an upload that did not come through here, whatever the algorithm made of it.

        `bare_steps`: local steps with a gradient that was not noised, where examples are the unit.
        """
        if self.unit != "record":
            (release or Release({})).admit(upload, f"client {client}")
        elif bare_steps or set(upload) != {"weights"}:
            what = f"{bare_steps} local steps are" if bare_steps else f"{sorted(set(upload) - {'weights'})} is"
            raise PrivacyError(f"client {client}: {what} not noised, and its upload may not leave")

    def clip_of(self, received: Parts) -> float | None:
        """S in this round, as the client received it."""
        return float(received[CLIP]["norm"]) if CLIP in received else self.privacy.clip

    def clipped(self, updates: Weights, received: Parts) -> Clipped:
        """The sum of n units' `updates` [n, …], each clipped to what the client was told."""
        return clipped(updates, self.clip_of(received), self.copies)

    def release(self, units: Clipped | None, received: Parts, name: tuple[Name, ...]) -> Release:
        """One client's units as one message; nothing but noise where none was sampled (None)."""
        clip, own = self.clip_of(received), self.privacy.noise == "client"
        total = units.total if units is not None else {n: torch.zeros_like(t) for n, t in received["weights"].items()}
        divisor = self.divisor(0 if units is None else len(units.norms))
        if own and clip is not None:
            total = noised(total, self.update_multiplier * clip, ("noise", self.seed, *name), self.privacy.secure)
        parts: Parts = {"weights": scale(total, 1.0 / divisor)}
        if CLIP in received and clip is not None:
            norms = received[CLIP]["norm"].new_zeros(0) if units is None else units.norms
            parts[CLIP] = self._count(norms, clip, own, divisor, name)
        return Release(parts)

    def _count(self, norms: Tensor, clip: float, own: bool, divisor: float, name: tuple[Name, ...]) -> Weights:
        assert self.privacy.adaptive is not None
        alone = {"left_alone": ((norms <= clip).to(torch.float32) - 0.5).sum()[None]}
        if own:
            deviation = self.privacy.adaptive.count_noise * self.noise_multiplier
            alone = noised(alone, deviation, ("count", self.seed, *name), self.privacy.secure)
        return scale(alone, 1.0 / divisor)

    def divisor(self, units: int) -> float:
        """M: the number asked for, or with `realised` that of the units at hand; never 0."""
        asked = self.privacy.groups_per_client if self.privacy.unit == "group" else 1
        fixed = self.privacy.denominator == "fixed" and asked is not None
        return float(asked if fixed and asked is not None else max(1, units))

    def averaged(
        self,
        means: AggregatedUpdates | None,
        units: Sequence[int],
        expected: float,
        received: Parts,
        name: tuple[Name, ...],
    ) -> AggregatedUpdates | None:
        """The average that the server steps with. A round without anybody releases noise alone, if there is any.

        `units`: of each client that came back; `expected`: clients that a round has on average.
        """
        if self.unit == "record" or (means is None and not self.noise_multiplier):
            return means
        fixed = self.privacy.denominator == "fixed"
        clients = expected if fixed else float(max(1, len(units)))
        if means is None:
            means = self._of_nobody(received)
        elif fixed and clients != len(units):
            parts = {part: scale(tensors, len(units) / clients) for part, tensors in means.parts.items()}
            means = replace(means, parts=parts)
        share = 1.0 / (clients * min((self.divisor(n) for n in units), default=self.divisor(0)))
        if self.privacy.noise == "central" or not units:
            means = self._noised(means, share, received, name)
        return means

    def _noised(
        self, means: AggregatedUpdates, share: float, received: Parts, name: tuple[Name, ...]
    ) -> AggregatedUpdates:
        """`share`: of one unit in the average."""
        clip, secure = self.clip_of(received), self.privacy.secure
        deviation = 0.0 if clip is None else self.update_multiplier * clip * share
        parts = {
            **means.parts,
            "weights": noised(means.parts["weights"], deviation, ("noise", self.seed, *name), secure),
        }
        if CLIP in parts and self.privacy.adaptive is not None:
            deviation = self.privacy.adaptive.count_noise * self.noise_multiplier * share
            parts[CLIP] = noised(parts[CLIP], deviation, ("count", self.seed, *name), secure)
        return replace(means, parts=parts)

    def _of_nobody(self, received: Parts) -> AggregatedUpdates:
        parts: Parts = {"weights": {name: torch.zeros_like(t) for name, t in received["weights"].items()}}
        if CLIP in received:
            parts[CLIP] = {"left_alone": torch.zeros(1)}
        return AggregatedUpdates(parts, {}, 0, 0, 0.0)

    def next_clip(self, clip: float | None, means: AggregatedUpdates) -> float | None:
        """The clip of the next round: times exp(−eta·(share left alone − gamma))."""
        adaptive = self.privacy.adaptive
        if adaptive is None or clip is None:
            return clip
        share = float(means.parts[CLIP]["left_alone"]) + 0.5
        return clip * math.exp(-adaptive.learning_rate * (share - adaptive.quantile))
