"""Ranks of the clients' low-rank adapters: by shares of the clients, a list, a column of the data, or their devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from simfl.data.base import Split
from simfl.data.partition.base import column
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError, DataError, nearest
from simfl.seeds import rng

TOLERANCE = 1e-6  # of the sum of shares


def by_share(shares: Mapping[int, float], num_clients: int, seed: int, where: str) -> np.ndarray:
    """Return the rank of each client, int64 [K]: as many clients of each rank as its share says, drawn by the seed.

    Counts are rounded to the nearest sum, the largest remainders up. Raises ConfigError for invalid shares.
    """
    ranks = [_rank(key, where) for key in shares]
    if abs(sum(shares.values()) - 1.0) > TOLERANCE:
        raise ConfigError(f"{where}: the shares add up to {sum(shares.values()):g}; allowed: a sum of 1")
    exact = np.array(list(shares.values()), np.float64) * num_clients
    counts = np.floor(exact + TOLERANCE).astype(np.int64)
    most = np.argsort(-(exact - counts), kind="stable")[: num_clients - int(counts.sum())]
    counts[most] += 1
    return np.asarray(rng(seed, "ranks").permutation(np.repeat(np.array(ranks, np.int64), counts)))


def by_client(ranks: Sequence[int], num_clients: int, where: str) -> np.ndarray:
    """Return a list of ranks as int64 [K]; raise ConfigError if it has another length."""
    if len(ranks) != num_clients:
        raise ConfigError(f"{where}: {len(ranks)} ranks given, but there are {num_clients} clients; allowed: one each")
    return np.array(ranks, np.int64)


def by_column(name: str, split: Split, partition: Partition, where: str) -> np.ndarray:
    """Return the rank of each client, int64 [K], from a column that has one value for all examples of a client.

    Raises:
        ConfigError: There is no such column, or it has values that are no ranks, or several for one client.
    """
    return np.array([_rank(value, where) for value in client_values(name, split, partition, where)], np.int64)


def client_values(name: str, split: Split, partition: Partition, where: str) -> list[object]:
    """Return the value of each client in a column that has one for all examples of a client.

    Raises:
        ConfigError: There is no such column, or it has several values for one client.
    """
    try:
        codes, values = column(split, name)
    except (ConfigError, DataError) as error:
        raise ConfigError(f"{where}: {str(error).partition(': ')[2]}") from error
    found = []
    for client in range(len(partition)):
        own = np.unique(codes[partition.rows(client)])
        if len(own) != 1:
            raise ConfigError(f"{where}: column {name!r} has {len(own)} values for client {client}; allowed: one")
        found.append(values[int(own[0])].as_py())
    return found


def by_device(ranks: Mapping[str, float], devices: Sequence[str], known: Collection[str], where: str) -> np.ndarray:
    """Return the rank of each client, int64 [K], by the name of its device.

    Raises:
        ConfigError: A name is not among the `known` devices, or a client's device has no rank.
    """
    for name in ranks:
        if name not in known:
            raise ConfigError(f"{where}: unknown device {name!r}; {nearest(name, known)}")
    for name in dict.fromkeys(devices):
        if name not in ranks:
            raise ConfigError(f"{where}: clients have the device {name!r}, for which no rank is given")
    return np.array([int(ranks[name]) for name in devices], np.int64)


def _rank(value: object, where: str) -> int:
    """Return a rank; raise ConfigError for anything but a whole number of at least 1."""
    text = str(value)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{where}: {value!r} is not a rank; allowed: whole numbers of at least 1")
    return int(text)
