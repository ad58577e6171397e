"""The privacy mechanism of a phase: clip the units, sum them, add noise, and only then encode.

    S  clip norm     sigma  noise multiplier     M  divisor of a client's sum     K  divisor of the sum over clients

Every upload is checked against the `Release` of the mechanism: a tensor that it did not release is not uploaded. With
`noise: client` each message carries N(0, (sigma S)²) / M, and an average of K messages sigma·S / (M √K). With
`noise: central` messages carry no noise, and the trusted server adds sigma·S / (M K) to the average.

Adaptive clipping (Andrew et al. 2021): with its update, each unit releases one bit minus one half: whether the update
was within the clip norm. The update divided by S and the bit form one Gaussian mechanism with multiplier sigma, where
the update has the multiplier z and the count r·sigma, with sigma^-2 = z^-2 + (2 r sigma)^-2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from simfl.errors import PrivacyError
from simfl.experiment import Privacy
from simfl.privacy.correlated import Correlation
from simfl.privacy.noise import noised
from simfl.privacy.parts import clipped_parts, noise_scales
from simfl.privacy.randomness import Randomness
from simfl.privacy.units import Clipped, clipped
from simfl.protocol import AggregatedUpdates, Parts, Weights
from simfl.seeds import SeedName
from simfl.weights import scale

CLIP = "clip"  # part of a message: the download holds the clip norm, the upload the count of units within it


@dataclass(frozen=True)
class Release:
    """The parts that a client may upload, because they went through the mechanism."""

    parts: Parts

    def admit(self, upload: Parts, where: str) -> None:
        """Raise PrivacyError for the first tensor of an upload that is not the released object."""
        for part, tensors in upload.items():
            for name, tensor in tensors.items():
                if self.parts.get(part, {}).get(name) is not tensor:
                    raise PrivacyError(f"{where}: {part} {name} was not clipped and noised, and may not be uploaded")


@dataclass(frozen=True)
class Mechanism:
    """The privacy mechanism of a phase, the same on every worker."""

    privacy: Privacy
    sigma: float = math.nan  # noise multiplier of everything that a unit contributes; NaN: nothing can be released
    randomness: Randomness = field(default_factory=Randomness.fresh)  # the same on every worker
    copies: Mapping[str, int] = field(
        default_factory=dict
    )  # tied tensor -> number of its further names, if they count in the norm
    correlation: Correlation | None = None  # of the server's noise over the rounds of the phase; None: independent

    @property
    def unit(self) -> str:
        """The unit of privacy: record, group or client."""
        return self.privacy.unit

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier sigma."""
        assert not math.isnan(self.sigma), "the noise multiplier is not set"
        return self.sigma

    @property
    def adds_noise(self) -> bool:
        """True if the noise multiplier is set and above 0."""
        return self.sigma > 0.0

    def sampling_seed(self, seed: int) -> int:
        """Return the seed of the sampling of clients, groups and records, for the experiment's `seed`."""
        if self.correlation is not None:  # clients take turns in one order for the whole phase
            return self.randomness.at(self.correlation.first_step).sampling_seed(seed)
        return self.randomness.sampling_seed(seed)

    @property
    def update_multiplier(self) -> float:
        """The noise multiplier z of the updates; larger than sigma if a count is released too."""
        adaptive = self.privacy.adaptive
        if adaptive is None:
            return self.noise_multiplier
        return self.noise_multiplier / math.sqrt(1 - 1 / (2 * adaptive.count_noise) ** 2)

    def admit(self, upload: Parts, release: Release | None, bare_steps: int, client: int) -> None:
        """Raise PrivacyError for an upload that the mechanism did not release.

        Args:
            upload: The upload that the algorithm returned.
            release: What the mechanism released for this client.
            bare_steps: With examples as units, the number of local steps whose gradient was not noised.
            client: The client.
        """
        if self.unit != "record":
            (release or Release({})).admit(upload, f"client {client}")
        elif bare_steps or set(upload) != {"weights"}:
            what = f"{bare_steps} local steps are" if bare_steps else f"{sorted(set(upload) - {'weights'})} is"
            raise PrivacyError(f"client {client}: {what} not noised, so nothing may be uploaded")

    def clip_of(self, received: Parts) -> float | None:
        """Return the clip norm S of this round, as the client received it."""
        return float(received[CLIP]["norm"]) if CLIP in received else self.privacy.clip

    def clipped(self, updates: Weights, received: Parts) -> Clipped:
        """Clip n units' updates [n, …] of the weights to the norm that the client received, and sum them."""
        return clipped(updates, self.clip_of(received), self.copies)

    def clipped_parts(self, updates: Parts, received: Parts) -> Clipped:
        """Clip n units' updates [n, …] of all parts, and sum them; see `simfl.privacy.parts`."""
        if not self.privacy.parts:
            return self.clipped(updates["weights"], received)
        return clipped_parts(self.privacy, updates, self.clip_of(received), self.copies)

    def part_multiplier(self, part: str) -> float:
        """Return the noise of a sum of this part over the clip norm of the weights."""
        return self.update_multiplier * noise_scales(self.privacy)[part]

    def release(self, units: Clipped | None, received: Parts, name: tuple[SeedName, ...]) -> Release:
        """Return the message of one client; noise alone if no unit was sampled (`units` is None).

        Args:
            units: The clipped units.
            received: The decoded download.
            name: Names the random draws: phase, round and client.
        """
        clip, own = self.clip_of(received), self.privacy.noise == "client"
        total = units.total if units is not None else {n: torch.zeros_like(t) for n, t in received["weights"].items()}
        divisor = self.divisor(0 if units is None else len(units.norms))
        others = {} if units is None else units.others
        if own and clip is not None:
            total = self.noised(total, self.part_multiplier("weights") * clip, ("noise", clip, *name))
            others = {part: self._noised_part(part, tensors, clip, name) for part, tensors in others.items()}
        parts: Parts = {part: scale(tensors, 1.0 / divisor) for part, tensors in {"weights": total, **others}.items()}
        if CLIP in received and clip is not None:
            norms = received[CLIP]["norm"].new_zeros(0) if units is None else units.norms
            parts[CLIP] = self._count(norms, clip, own, divisor, name)
        return Release(parts)

    def _noised_part(
        self, part: str, tensors: Weights, clip: float, name: tuple[SeedName, ...], share: float = 1.0
    ) -> Weights:
        """Add the noise of a part other than the weights; `share` is the weight of one unit in the sum."""
        return self.noised(tensors, self.part_multiplier(part) * clip * share, ("noise", clip, *name, part))

    def noised(self, tensors: Weights, deviation: float, name: tuple[SeedName | float, ...]) -> Weights:
        """Add noise with this standard deviation. `name` tells the draws of the run apart."""
        return noised(tensors, deviation, self._named(name), self.randomness)

    def _named(self, name: tuple[SeedName | float, ...]) -> tuple[SeedName, ...]:
        texts = (one.hex() if isinstance(one, float) else one for one in name)
        return (self.unit, self.privacy.noise, *texts)

    def _count(self, norms: Tensor, clip: float, own: bool, divisor: float, name: tuple[SeedName, ...]) -> Weights:
        assert self.privacy.adaptive is not None
        alone = {"left_alone": ((norms <= clip).to(torch.float32) - 0.5).sum()[None]}
        if own:
            deviation = self.privacy.adaptive.count_noise * self.noise_multiplier
            alone = self.noised(alone, deviation, ("count", clip, *name))
        return scale(alone, 1.0 / divisor)

    def divisor(self, units: int) -> float:
        """Return M: the requested number of units or, with `denominator: realised`, the actual one; never 0."""
        requested = self.privacy.groups_per_client if self.privacy.unit == "group" else 1
        fixed = self.privacy.denominator == "fixed" and requested is not None
        return float(requested if fixed and requested is not None else max(1, units))

    def averaged(
        self,
        means: AggregatedUpdates | None,
        units: Sequence[int],
        expected: float,
        received: Parts,
        name: tuple[SeedName, ...],
    ) -> AggregatedUpdates | None:
        """Return the average that the server steps with. A round without clients releases noise alone, if there is any.

        Args:
            means: The aggregated updates; None in a round without clients.
            units: Number of units of each client that returned an update.
            expected: Expected number of clients of a round.
            received: The decoded download.
            name: Names the random draws.
        """
        if self.unit == "record" or (means is None and not self.noise_multiplier):
            return means
        if means is None and self.privacy.noise == "distributed":  # no sum was unmasked
            return None
        fixed = self.privacy.denominator == "fixed"
        clients = expected if fixed else float(max(1, len(units)))
        if means is None:
            means = self._empty(received)
        elif fixed:
            means = self._with_public_counts(means, len(units), expected)
        smallest = min((self.divisor(n) for n in units), default=self.divisor(0))
        share = 1.0 / (self.noise_cohort(clients) * smallest)
        if self.privacy.noise == "central" or not units:
            means = self._noised(means, share, received, name)
        return means

    def _with_public_counts(self, means: AggregatedUpdates, clients: int, expected: float) -> AggregatedUpdates:
        """Return means over the expected number of clients, with counts that do not depend on who was sampled."""
        if clients != expected:
            parts = {part: scale(tensors, clients / expected) for part, tensors in means.means.items()}
            means = replace(means, means=parts, num_sampled=max(1, round(expected)))
        return means if self.privacy.min_clients is None else replace(means, num_clients=self.privacy.min_clients)

    def noise_cohort(self, clients: float) -> float:
        """Return the clients that the server's noise is divided by: those of the deployment, or of the round."""
        deployment = self.privacy.deployment
        return clients if deployment is None else float(deployment.clients_per_round)

    def average_deviation(self, units: Sequence[int], expected: float, received: Parts) -> float | None:
        """Return the standard deviation of the noise in each value of the average that `averaged` returns.

        None where it differs between rounds or values, or where steps, and not averages, have noise.
        """
        clip = self.clip_of(received)
        if self.unit == "record" or self.correlation is not None or self.privacy.noise == "distributed" or clip is None:
            return None
        clients = expected if self.privacy.denominator == "fixed" else float(max(1, len(units)))
        one = self.part_multiplier("weights") * clip / self.noise_cohort(clients)
        if self.privacy.noise == "central" or not units:
            return one / min((self.divisor(n) for n in units), default=self.divisor(0))
        return one * math.sqrt(math.fsum(self.divisor(n) ** -2 for n in units))

    def _noised(
        self, means: AggregatedUpdates, share: float, received: Parts, name: tuple[SeedName, ...]
    ) -> AggregatedUpdates:
        """Add the server's noise; `share` is the weight of one unit in the average."""
        clip = self.clip_of(received)
        deviation = 0.0 if clip is None else self.part_multiplier("weights") * clip * share
        noisy = self._server_noise(means.means["weights"], deviation, ("noise", clip or 0.0, *name))
        parts = {**means.means, "weights": noisy}
        if clip is not None:
            for part in self.privacy.parts:
                parts[part] = self._noised_part(part, parts[part], clip, name, share)
        if CLIP in parts and self.privacy.adaptive is not None:
            deviation = self.privacy.adaptive.count_noise * self.noise_multiplier * share
            parts[CLIP] = self.noised(parts[CLIP], deviation, ("count", clip or 0.0, *name))
        return replace(means, means=parts)

    def _server_noise(self, tensors: Weights, deviation: float, name: tuple[SeedName | float, ...]) -> Weights:
        """Add the noise of a round; `name` ends in the phase, the round and the place."""
        if self.correlation is None:
            return self.noised(tensors, deviation, name)
        *rest, phase, number, place = name
        return self.correlation.noised(
            tensors, deviation, self._named((*rest, phase, place)), int(number), self.randomness
        )

    def _empty(self, received: Parts) -> AggregatedUpdates:
        parts: Parts = {"weights": {name: torch.zeros_like(t) for name, t in received["weights"].items()}}
        if CLIP in received:
            parts[CLIP] = {"left_alone": torch.zeros(1)}
        return AggregatedUpdates(parts, {}, 0, 0, 0.0)

    def clip_parts(self) -> tuple[Parts, Parts]:
        """Return the parts that adaptive clipping adds to a download and to an upload, with values of zero."""
        if self.privacy.adaptive is None or self.privacy.clip is None:
            return {}, {}
        return {CLIP: {"norm": torch.zeros(1)}}, {CLIP: {"left_alone": torch.zeros(1)}}

    def next_clip(self, clip: float | None, means: AggregatedUpdates) -> float | None:
        """Return the clip norm of the next round: multiplied by exp(−eta·(fraction within it − gamma))."""
        adaptive = self.privacy.adaptive
        if adaptive is None or clip is None:
            return clip
        fraction = float(means.means[CLIP]["left_alone"]) + 0.5
        return clip * math.exp(-adaptive.learning_rate * (fraction - adaptive.quantile))
