"""Selection of a round's clients among those that are available.

Except for `uniform`, selection prefers some clients, and the mean of the uploads is no longer an unbiased estimate of
the mean over all clients: see docs/explanation/time.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from simfl.constraints import Fraction, NonNegativeFloat, PositiveInt
from simfl.errors import ConfigError
from simfl.seeds import SeedName, rng


class History(NamedTuple):
    """Results of earlier rounds, by client.

    Attributes:
        utility: Statistical utility of each client's last update, float64 [K].
        seen: Round of the phase, from 1, of each client's last update, int64 [K]; 0: none.
    """

    utility: np.ndarray
    seen: np.ndarray

    @staticmethod
    def empty(num_clients: int) -> History:
        """Return the history before the first round."""
        return History(np.zeros(num_clients), np.zeros(num_clients, np.int64))

    def after(self, number: int, clients: np.ndarray, losses: np.ndarray, examples: np.ndarray) -> History:
        """Return the history after round `number` (from 0), in which clients [n] trained with these mean losses [n].

        The utility is the number of examples times the mean loss. Oort's is the number times the root of the mean
        squared loss of an example, which clients here do not report; the two are equal if all losses are.
        """
        utility, seen = self.utility.copy(), self.seen.copy()
        known = np.isfinite(losses)
        utility[clients[known]] = examples[known] * losses[known]
        seen[clients] = number + 1
        return History(utility, seen)


class Pool(NamedTuple):
    """Facts from which the clients of a round are selected.

    Attributes:
        clients: Available clients, ascending, int64 [n].
        size: Number of clients to select, at most n.
        seconds: Predicted duration of an update of every client, float64 [K].
        name: Seed, phase and round, which name the draws.
        history: Results of earlier rounds; None: not recorded.
    """

    clients: np.ndarray
    size: int
    seconds: np.ndarray
    name: tuple[SeedName, int, int]
    history: History | None = None

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a generator for draws of this round with this purpose."""
        seed, phase, number = self.name
        return rng(seed, purpose, phase, number)


@dataclass(frozen=True)
class Selection:
    """Base of the policies that select clients."""

    uses_losses: ClassVar[bool] = False  # true: depends on the losses of earlier rounds

    def check(self, num_clients: int) -> None:
        """Raise ConfigError if the settings do not fit K clients."""

    def select(self, pool: Pool) -> np.ndarray:
        """Return the selected clients, ascending, int64 [count]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Uniform(Selection):
    """Every available client is equally likely."""

    def select(self, pool: Pool) -> np.ndarray:
        """Return a sample without replacement; that of a run without profiles, if all clients are available."""
        chosen = pool.generator("clients").choice(len(pool.clients), size=pool.size, replace=False)
        found: np.ndarray = pool.clients[np.sort(chosen)]
        return found


@dataclass(frozen=True)
class Tiers(Selection):
    """Clients of one tier of similar speed per round (TiFL, Chai et al. 2020, arXiv 2001.09249, static selection).

    Tiers are quantiles of the predicted duration of an update. A round draws a tier, among those with enough available
    clients, and samples uniformly within it.
    """

    tiers: PositiveInt = 5  # number of tiers, equal in size
    probabilities: tuple[NonNegativeFloat, ...] = ()  # of the tiers, from the fastest on; empty: equal

    def __post_init__(self) -> None:
        """Check the probabilities."""
        if self.probabilities and len(self.probabilities) != self.tiers:
            raise ConfigError(f"probabilities: {len(self.probabilities)} given, but there are {self.tiers} tiers")
        if self.probabilities and not sum(self.probabilities) > 0:
            raise ConfigError("probabilities: all are 0; allowed: at least one above 0")

    def check(self, num_clients: int) -> None:
        """Raise ConfigError if there are more tiers than clients."""
        if self.tiers > num_clients:
            raise ConfigError(f"tiers: {self.tiers} given, but there are {num_clients} clients")

    def select(self, pool: Pool) -> np.ndarray:
        """Return a sample of one tier; of the largest one where none has enough available clients."""
        order = np.argsort(pool.seconds, kind="stable")
        tier_of = np.empty(len(order), np.int64)
        tier_of[order] = np.arange(len(order), dtype=np.int64) * self.tiers // len(order)
        own = tier_of[pool.clients]
        sizes = np.bincount(own, minlength=self.tiers)
        weights = np.array(self.probabilities or (1.0,) * self.tiers) * (sizes >= pool.size)
        generator = pool.generator("tier")
        if weights.sum() > 0:
            tier = int(np.searchsorted(np.cumsum(weights), generator.random() * weights.sum(), side="right"))
        else:
            tier = int(np.argmax(sizes))
        members = pool.clients[own == tier]
        count = min(pool.size, len(members))
        chosen = pool.generator("clients").choice(len(members), size=count, replace=False)
        found: np.ndarray = members[np.sort(chosen)]
        return found


@dataclass(frozen=True)
class Oort(Selection):
    """Clients with large losses and short durations (Oort, Lai et al. 2021, arXiv 2010.06081, algorithm 1).

    The utility of a client that took part is its statistical utility plus sqrt(0.1·log r / last round), times
    (T/t)^alpha where its duration t exceeds the preferred duration T. A share 1 − epsilon of the clients is drawn by
    utility, among those above `cutoff` times the smallest selected one; the others are clients that did not take part
    yet, drawn by speed. T is a quantile of the predicted durations; Oort's pacer, which moves it, is left out.
    """

    uses_losses: ClassVar[bool] = True

    alpha: NonNegativeFloat = 2.0  # exponent of the penalty of slow clients
    exploration: Fraction = 0.9  # epsilon: share of new clients in the first round
    decay: Fraction = 0.98  # factor of epsilon per round
    least_exploration: Fraction = 0.2  # smallest epsilon
    cutoff: Fraction = 0.95  # c: fraction of the utility of the last selected client from which clients are drawn
    preferred: Fraction = 0.3  # quantile of the predicted durations that is the preferred duration T
    clip: Fraction = 0.95  # quantile of the statistical utilities at which they are cut

    def select(self, pool: Pool) -> np.ndarray:
        """Return known clients by utility and new ones by speed."""
        assert pool.history is not None
        number = int(pool.name[2]) + 1
        new = pool.history.seen[pool.clients] == 0
        known, fresh = pool.clients[~new], pool.clients[new]
        epsilon = max(self.least_exploration, self.exploration * self.decay ** (number - 1))
        num_new = min(len(fresh), max(round(epsilon * pool.size), pool.size - len(known)))
        num_known = pool.size - num_new
        generator = pool.generator("oort")
        exploited = self._by_utility(pool, known, num_known, number, generator)
        speed = 1.0 / np.maximum(pool.seconds[fresh], 1e-9)
        explored = _weighted(generator, fresh, speed, num_new)
        return np.sort(np.concatenate([exploited, explored]))

    def _by_utility(
        self, pool: Pool, clients: np.ndarray, count: int, number: int, generator: np.random.Generator
    ) -> np.ndarray:
        if count == 0:
            return clients[:0]
        assert pool.history is not None
        statistical = pool.history.utility[clients]
        statistical = np.minimum(statistical, np.quantile(statistical, self.clip))
        utility = statistical + np.sqrt(0.1 * np.log(number) / pool.history.seen[clients])
        preferred = np.quantile(pool.seconds, self.preferred, method="lower")
        ratio = preferred / np.maximum(pool.seconds[clients], 1e-9)
        utility *= np.where(ratio < 1.0, ratio**self.alpha, 1.0)
        last = np.sort(utility)[-count]
        good = utility >= self.cutoff * last
        return _weighted(generator, clients[good], utility[good], count)


def _weighted(generator: np.random.Generator, clients: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """Return a sample without replacement with these weights; where too few are positive, the first of the others."""
    if count == 0:
        return clients[:0]
    positive = np.flatnonzero(weights > 0)
    if len(positive) <= count:
        rest = np.flatnonzero(weights <= 0)[: count - len(positive)]
        return clients[np.concatenate([positive, rest])]
    own = weights[positive] / weights[positive].sum()
    return clients[positive[generator.choice(len(positive), size=count, replace=False, p=own)]]
