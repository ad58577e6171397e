"""Sizes of the messages of low-rank adapters: tensors of each round, each client's rank, and changes of the base.

A client of rank k exchanges the first k rows of A and columns of B. A change of the frozen base is sent as factors of
its rank, or whole if that is shorter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.low_rank import FULL_RANK, LowRankPair, rank_axis
from simfl.protocol import Weights

FLOAT_BYTES = 4


@dataclass(frozen=True)
class LowRankMessages:
    """The parts of a phase's messages that depend on the round and on the rank of a client.

    Attributes:
        algorithm: The algorithm, which names the tensors of a round.
        pairs: The low-rank pairs.
        ranks: Rank of each client, int64 [K]; None: all have the same.
    """

    algorithm: Algorithm
    pairs: tuple[LowRankPair, ...] = ()
    ranks: np.ndarray | None = None

    @property
    def selects(self) -> bool:
        """True if rounds differ in the tensors that they change, or clients do not download all of them."""
        kind = type(self.algorithm)
        return kind.travels is not Algorithm.travels or kind.downloads is not Algorithm.downloads

    def rank_of(self, client: int) -> int:
        """Return the rank of a client's adapters."""
        return FULL_RANK if self.ranks is None else int(self.ranks[client])

    def ranks_of(self, clients: Iterable[int]) -> tuple[int, ...]:
        """Return the rank of each client, at most that of the largest adapter."""
        most = max((pair.rank for pair in self.pairs), default=0)
        return tuple(min(most, self.rank_of(client)) for client in clients)

    def base_rank(self, clients: Iterable[int]) -> int:
        """Return the rank of the change of the base after a round of these clients."""
        ranks = self.ranks_of(clients)
        return self.algorithm.base_rank(ranks) if ranks else 0

    def base_sizes(self, rank: int) -> dict[str, int]:
        """Return the bytes of a change of the base of this rank, by tensor."""
        return {
            pair.base: FLOAT_BYTES * min(rank * pair.values_per_rank, pair.rows * pair.columns) for pair in self.pairs
        }

    def sent_in(self, tensors: Weights, round_number: int) -> Weights:
        """Return the tensors that change in a round, from 0."""
        return {name: tensors[name] for name in self.algorithm.travels(tuple(tensors), round_number)}

    def needed_in(self, names: Iterable[str], round_number: int) -> frozenset[str]:
        """Return the tensors that clients need from the server in a round, from 0; the others they know."""
        return frozenset(self.algorithm.downloads(tuple(names), round_number))

    def changed_before(self, names: Iterable[str], round_number: int) -> frozenset[str]:
        """Return the tensors that clients need in a round and the round before has changed; all in the first round."""
        needed = self.needed_in(names, round_number)
        return needed & set(self.algorithm.changes(tuple(names), round_number - 1)) if round_number else needed

    def downloaded(self, sizes: Mapping[str, int], tensors: Weights, sent: Collection[str]) -> dict[str, int]:
        """Return the bytes of what clients download of each tensor: nothing of those that are not among `sent`."""
        counts = {name: t.numel() for name, t in tensors.items()}
        return {
            name: size * self.algorithm.num_downloaded(name, counts[name]) // counts[name] if name in sent else 0
            for name, size in sizes.items()
        }

    def num_downloaded(self, tensors: Weights) -> int:
        """Return the number of values that clients download of tensors."""
        return sum(self.algorithm.num_downloaded(name, t.numel()) for name, t in tensors.items())

    def sizes_at(self, sizes: Mapping[str, int], tensors: Weights, rank: int) -> dict[str, int]:
        """Return the bytes of tensors cut to a rank; they are proportional to the number of values."""
        return {
            name: size * values_at(name, tensors[name], rank) // tensors[name].numel() for name, size in sizes.items()
        }


def values_at(name: str, tensor: Tensor, rank: int) -> int:
    """Return the number of values of a tensor cut to a rank."""
    axis = rank_axis(name)
    return tensor.numel() if axis is None else tensor.numel() // tensor.shape[axis] * min(tensor.shape[axis], rank)


def cut(name: str, stacked: Tensor, rank: int) -> Tensor:
    """Return stacked tensors [n, …] cut to a rank."""
    axis = rank_axis(name)
    return stacked if axis is None else stacked.narrow(axis + 1, 0, min(stacked.shape[axis + 1], rank))


def padded(stacked: Tensor, shape: Sequence[int]) -> Tensor:
    """Return stacked tensors [n, …] with zeros up to a shape."""
    if tuple(stacked.shape[1:]) == tuple(shape):
        return stacked
    full = stacked.new_zeros((len(stacked), *shape))
    full[(slice(None), *(slice(size) for size in stacked.shape[1:]))] = stacked
    return full


def groups_by_rank(messages: LowRankMessages, clients: Sequence[int]) -> dict[int, list[int]]:
    """Return the positions of clients of equal rank, by rank."""
    found: dict[int, list[int]] = {}
    for k, client in enumerate(clients):
        found.setdefault(messages.rank_of(client), []).append(k)
    return found


def take(tensors: Weights, rows: Sequence[int], rank: int) -> Weights:
    """Return rows of stacked tensors [n, …], cut to a rank."""
    index = torch.tensor(rows)
    return {name: cut(name, t[index.to(t.device)], rank).contiguous() for name, t in tensors.items()}
