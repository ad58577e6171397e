"""Gaussian noise that is correlated over the rounds of a phase, by a matrix factorization (`simfl.factorizations`).

The server adds a row of C⁻¹Z to the average of a round. A row of Z is a keyed draw, named by its round, so the noise of
a round is a function of the key and the round: it is in no checkpoint, from which whoever reads it could subtract it,
and a run that is resumed draws that of the earlier rounds of the phase again. In between, the few vectors that the next
round depends on stay in memory, in float64.

The noise multiplier sigma is the deviation of Z over S·‖C‖, where ‖C‖ is the largest norm of a column: that of a single
participation. All rounds of a phase together are one Gaussian mechanism with the multiplier sigma·‖C‖ / sens(C), at
whatever rounds a client takes part, so sampling amplifies nothing; except for a banded C with bins of clients that are
sampled at a rate (`Factorization.amplifies`), where each participation is a Poisson-sampled Gaussian with sigma.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simfl.experiment import Phase, Privacy
from simfl.factorizations.base import Factor, Factorization, Participation, Workload, root_mean_square
from simfl.optimizers.server import Momentum
from simfl.privacy.accounting import Event
from simfl.privacy.noise import BLOCK, added
from simfl.privacy.randomness import Draw, Randomness, normals
from simfl.protocol import Weights
from simfl.sampling import bin_rate, participation_of
from simfl.seeds import SeedName


def workload_of(phase: Phase) -> Workload:
    """Return the models of a phase as functions of the averages; adaptive server optimizers count as plain SGD."""
    server = phase.server
    rates = np.array([server.at(number, phase.rounds).learning_rate for number in range(phase.rounds)])
    if isinstance(server, Momentum):
        gain = 1 - server.beta if server.form == "ema" else 1.0
        return Workload(tuple((rates * gain).tolist()), server.beta)
    return Workload(tuple(rates.tolist()))


@dataclass(frozen=True)
class Correlation:
    """Correlated noise of one phase, and the participation of clients that it relies on.

    Attributes:
        factorization: Settings of the factorization.
        participation: Rounds in which a client may take part.
        workload: Models after each round as functions of the averages.
        first_step: Rounds of the run before this phase.
        bin_rate: Rate at which clients of a bin are sampled; None: a fixed number of clients.
    """

    factorization: Factorization
    participation: Participation
    workload: Workload
    first_step: int = 0
    bin_rate: float | None = None
    _stream: NoiseStream = field(
        default_factory=lambda: NoiseStream(), init=False, repr=False, compare=False
    )  # of the last round

    @staticmethod
    def of(privacy: Privacy, phases: Sequence[Phase], index: int, num_clients: int) -> Correlation | None:
        """Return the correlated noise of a phase; None if its noise is independent.

        Raises:
            ConfigError: Sampling cannot keep the participation.
        """
        if privacy.factorization is None:
            return None
        phase = phases[index]
        participation = participation_of(phase, num_clients, privacy.factorization)
        rate = None if phase.poisson is None else bin_rate(phase, participation.separation)
        before = sum(one.rounds for one in phases[:index])
        return Correlation(privacy.factorization, participation, workload_of(phase), before, rate)

    @cached_property
    def factor(self) -> Factor:
        """The optimized matrix C."""
        return self.factorization.factor(self.participation, self.workload)

    def events(self, sigma: float, charged: int, unit: str) -> list[tuple[Event, int]]:
        """Return the events of the first rounds of the phase, and how often each happened.

        Args:
            sigma: The noise multiplier.
            charged: Rounds that are paid for; more than the phase has only where a line of the account is damaged.
            unit: The privacy unit.
        """
        rounds = min(charged, self.participation.rounds)
        if rounds == 0:
            return []
        if self.amplified_by_sampling(unit):
            assert self.bin_rate is not None
            return [(Event(sigma, self.bin_rate), self.participation.first(rounds).participations)]
        return [(Event(sigma * self.factor.column_norm / self.factor.sensitivity(rounds), 1.0), 1)]

    def amplified_by_sampling(self, unit: str) -> bool:
        """Return whether each participation of a unit is a Poisson-sampled Gaussian; proven for clients alone."""
        return self.bin_rate is not None and self.factorization.amplifies and unit == "client"

    def error(self) -> float:
        """Return the root mean squared error of a model, per parameter, in units of the deviation that sigma implies.

        The mean is over the rounds of the phase.
        """
        return root_mean_square(self.factor.squared_errors(self.workload)) * self.factor.column_norm

    def noised(
        self, tensors: Weights, deviation: float, name: tuple[SeedName, ...], round: int, randomness: Randomness
    ) -> Weights:
        """Return tensors plus the noise of a round.

        Args:
            tensors: The tensors, on one device.
            deviation: sigma·S times the weight of a unit; Z has ‖C‖ times this deviation.
            name: Names the draws of the phase; round and deviation are added to it.
            round: The round of the phase, from 0.
            randomness: The source of the draws, with the keys of earlier rounds.
        """
        if deviation == 0.0 or not tensors:
            return tensors
        sizes = tuple((key, tensor.numel()) for key, tensor in tensors.items())
        rows = NoiseRows(self.factor, self.first_step, randomness, (*name, float(deviation).hex()), sizes)
        return added(tensors, deviation * self.factor.column_norm, self._stream.row(rows, round))


@dataclass(frozen=True)
class NoiseRows:
    """Everything that the rows of C⁻¹Z depend on.

    Attributes:
        factor: The matrix C.
        first_step: Rounds of the run before the phase.
        randomness: The source of Z.
        name: Names the draws of the phase.
        sizes: Name of each tensor and its number of values.
    """

    factor: Factor
    first_step: int
    randomness: Randomness
    name: tuple[SeedName, ...]
    sizes: tuple[tuple[str, int], ...]

    def draw(self, round: int) -> Draw:
        """Return the draw of a row of Z."""
        return normals(self.randomness.at(self.first_step + round), *self.name, round)

    def zero_states(self) -> dict[str, np.ndarray]:
        """Return the states before the first round, float64 [num_states, d] for each tensor."""
        return {tensor: np.zeros((self.factor.num_states, size)) for tensor, size in self.sizes}


class NoiseStream:
    """The states after a row of C⁻¹Z; for a round other than the next one, the rows before it are made again."""

    def __init__(self) -> None:
        """Start with no row."""
        self._rows: NoiseRows | None = None
        self._states: dict[str, np.ndarray] = {}
        self._next = 0

    def row(self, rows: NoiseRows, round: int) -> Draw:
        """Return the draw of a row, which must draw every block of every tensor once."""
        if rows != self._rows or round != self._next:
            self._rows, self._states, self._next = rows, rows.zero_states(), 0
            for earlier in range(round):
                self._skip(rows, earlier)
        self._next = round + 1
        return self._correlated(rows.factor, rows.draw(round), round)

    def _skip(self, rows: NoiseRows, round: int) -> None:
        draw, memory = self._correlated(rows.factor, rows.draw(round), round), np.empty(BLOCK)
        for tensor, size in rows.sizes:
            for index in range(-(-size // BLOCK)):
                draw(tensor, index, memory[: min(BLOCK, size - index * BLOCK)])

    def _correlated(self, factor: Factor, draw: Draw, round: int) -> Draw:
        states = self._states

        def correlated(tensor: str, index: int, out: np.ndarray) -> None:
            draw(tensor, index, out)
            first = index * BLOCK
            factor.advance(round, out, states[tensor][:, first : first + len(out)])

        return correlated
