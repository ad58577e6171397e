"""One round of the protocol: who takes part, who drops out, masks, their removal, and the bytes of its messages.

    1 keys      sampled clients send public keys and receive those of their neighbours
    2 shares    each client sends shares of its secret key and of the seed of its own mask to its neighbours
    3 upload    each client sends its masked vector; `dropout` of them leave before
    4 unmask    survivors send one share per neighbour; `late_dropout` of them leave before

The server adds up the masked vectors. From `threshold` shares each it recovers the seeds of the survivors' own masks
and the secret keys of those that left before 3, whose pairwise masks did not cancel, and subtracts these masks. It
never gets both secrets of one client. Neighbours are all clients, or those of a k-regular graph (SecAgg+, Bell et al.
2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simfl.experiment import SecureAggregation
from simfl.secure_aggregation import messages, shamir
from simfl.secure_aggregation.masks import (
    ClientSecrets,
    agreed,
    expand,
    mask,
    pair_seed,
    public_keys,
    secrets_of,
    word,
)
from simfl.seeds import SeedName, rng

Payload = tuple[str, str, int]  # direction, part, bytes
NONE: Mapping[int, np.ndarray] = {}


@dataclass(frozen=True)
class SecureRound:
    """The protocol of one round, as every process can compute it.

    Attributes:
        settings: The settings.
        name: Seed, phase and round, which name all draws.
        clients: The sampled clients, ascending.
        dropped: Clients that leave before their upload.
        late: Clients that leave between their upload and the unmasking.
        max_weight: Largest weight of a client, public; uploads are weighted by their part of it.
    """

    settings: SecureAggregation
    name: tuple[SeedName, ...]
    clients: tuple[int, ...]
    dropped: frozenset[int]
    late: frozenset[int]
    max_weight: float = 1.0

    @cached_property
    def senders(self) -> list[int]:
        """The clients whose masked uploads arrive."""
        return [client for client in self.clients if client not in self.dropped]

    @cached_property
    def responders(self) -> list[int]:
        """The clients that answer to the unmasking."""
        return [client for client in self.senders if client not in self.late]

    @property
    def threshold(self) -> int:
        """t: shares that recover a secret; by default more than half of those who hold one."""
        return self.settings.threshold_for(len(self.clients))

    @property
    def _least(self) -> int:
        return max(self.settings.min_survivors or 0, self.threshold)

    @property
    def refusal(self) -> str:
        """Why the round cannot be finished; empty if it can."""
        counts = f"{len(self.clients)} sampled, {len(self.senders)} uploads, {len(self.responders)} answers"
        if len(self.senders) < self._least:
            return f"secure aggregation needs {self._least} uploads ({counts})"
        answering = set(self.responders)
        fewest = min((len(answering.intersection(self.holders(client))) for client in self.clients), default=0)
        if fewest < self.threshold:
            return f"secure aggregation needs {self.threshold} shares of each secret, found {fewest} ({counts})"
        return ""

    @cached_property
    def _ring(self) -> dict[int, tuple[int, ...]]:
        """Neighbours on a ring in random order, k / 2 on each side; empty where all clients are neighbours."""
        neighbors, n = self.settings.neighbors, len(self.clients)
        if neighbors is None or neighbors >= n - 1:
            return {}
        order = rng(*self.name, "neighbors").permutation(n)
        steps = [step for step in range(-(neighbors // 2), neighbors // 2 + 1) if step]
        return {
            self.clients[order[i]]: tuple(sorted(self.clients[order[(i + step) % n]] for step in steps))
            for i in range(n)
        }

    def neighbors(self, client: int) -> tuple[int, ...]:
        """Return the clients with which a client has pairwise masks, ascending."""
        return self._ring[client] if self._ring else tuple(other for other in self.clients if other != client)

    def holders(self, client: int) -> list[int]:
        """Return the clients that hold shares of a client's secrets: itself and its neighbours, ascending."""
        return sorted((client, *self.neighbors(client)))

    # Clients

    def mask_of(self, client: int, part: str, count: int) -> np.ndarray:
        """Return the mask that a client adds to its vector, modulo 2^32 or 2^64."""
        found: np.ndarray = self.masks_of([client], part, count)[0]
        return found

    def masks_of(self, clients: Sequence[int], part: str, count: int) -> np.ndarray:
        """Return the masks that clients add to their vectors, modulo 2^32 or 2^64, [clients, count].

        The mask of two of these clients is computed once, for both.
        """
        totals, row = np.empty((len(clients), count), word(self.settings.bits)), {c: k for k, c in enumerate(clients)}
        for client in clients:
            totals[row[client]] = mask(self._secrets(client).seed, part, count, self.settings.bits)
        for client in clients:
            others = [other for other in self.neighbors(client) if other not in row or other > client]
            own, key = totals[row[client]], self._secrets(client).key
            self._add_pairs(
                own, key, client, others, part, {other: totals[row[other]] for other in others if other in row}
            )
        return totals

    def _add_pairs(
        self,
        total: np.ndarray,
        key: bytes,
        client: int,
        others: Sequence[int],
        part: str,
        of_others: Mapping[int, np.ndarray] = NONE,
    ) -> None:
        """Add a client's pairwise masks with others to its vector, and the opposite to theirs, in place."""
        places = [self._place[other] for other in others]
        for other, agreement in zip(others, agreed(key, self._public_keys[places]).tolist(), strict=True):
            low, high = sorted((client, other))
            pairwise = mask(pair_seed(agreement, *self.name, low, high), part, len(total), self.settings.bits)
            lower, higher = (total, of_others.get(other)) if client == low else (of_others.get(other), total)
            if lower is not None:
                np.add(lower, pairwise, out=lower)
            if higher is not None:
                np.subtract(higher, pairwise, out=higher)

    def _secrets(self, client: int) -> ClientSecrets:
        return secrets_of(*self.name, "secrets", client)

    @cached_property
    def _place(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self.clients)}

    @cached_property
    def _public_keys(self) -> np.ndarray:
        """The public key of each client, which the server has distributed."""
        return public_keys([self._secrets(client).key for client in self.clients])

    # Server

    def left_over(self, part: str, count: int) -> np.ndarray:
        """Return the masks in the sum of the masked uploads, from secrets that are recovered from shares."""
        total = np.zeros(count, word(self.settings.bits))
        for client in self.senders:
            np.add(total, mask(self._recovered(client, "seed"), part, count, self.settings.bits), out=total)
        surviving = set(self.senders)
        for client in sorted(self.dropped):
            others = [other for other in self.neighbors(client) if other in surviving]
            if others:  # what they have added is the opposite of what this client would have
                opposite = np.zeros_like(total)
                self._add_pairs(opposite, self._recovered(client, "key"), client, others, part)
                np.subtract(total, opposite, out=total)
        return total

    def _recovered(self, client: int, kind: str) -> bytes:
        """Return a secret of a client, from the first `threshold` shares that survivors hold."""
        answering = set(self.responders)
        holders = [other for other in self.holders(client) if other in answering][: self.threshold]
        points = np.array([self._place[other] + 1 for other in holders], np.int64)
        return shamir.recover(points, self.shares(client, kind, points))

    def shares(self, client: int, kind: str, points: np.ndarray) -> np.ndarray:
        """Return the shares at these points of a client's secret `key` or `seed`, int64 [points, 16]."""
        secret = getattr(self._secrets(client), kind)
        digest = int.from_bytes(expand(*self.name, "shares", client, kind))
        generator = np.random.Generator(np.random.Philox(key=digest % 2**128))
        coefficients = generator.integers(0, shamir.PRIME, (self.threshold - 1, shamir.WORDS))
        return shamir.share(secret, coefficients, points)

    # Bytes

    def protocol_payloads(self) -> dict[int, list[Payload]]:
        """Return the messages of each sampled client besides download and masked upload."""
        return {client: self._payloads(client) for client in self.clients}

    def _payloads(self, client: int) -> list[Payload]:
        neighbors, surviving = self.neighbors(client), set(self.senders)
        shares = len(messages.encode_shares((0,))) * len(neighbors)
        found = [
            ("upload", messages.KEYS, len(messages.encode_keys())),
            ("download", messages.KEYS, len(messages.encode_directory((0,))) * len(neighbors)),
            ("upload", messages.SHARES, shares),
            ("download", messages.SHARES, shares),
        ]
        if client in surviving and client not in self.late and len(self.senders) >= self._least:
            arrived = [other for other in neighbors if other in surviving]
            found += [
                ("download", messages.SURVIVORS, len(messages.encode_survivors(arrived))),
                ("upload", messages.UNMASK, len(messages.encode_unmask((0,))) * (len(neighbors) + 1)),
            ]
        return found


def secure_round(
    settings: SecureAggregation, name: tuple[SeedName, ...], clients: Sequence[int], max_weight: float = 1.0
) -> SecureRound:
    """Return the protocol of a round, with the clients that its name lets drop out."""
    dropped, late = set[int](), set[int]()
    for client in clients:
        leaves, leaves_late = rng(*name, "dropout", client).random(2)
        if leaves < settings.dropout:
            dropped.add(client)
        elif leaves_late < settings.late_dropout:
            late.add(client)
    return SecureRound(settings, name, tuple(sorted(clients)), frozenset(dropped), frozenset(late), max_weight)
