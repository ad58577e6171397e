"""A partition assigns rows of a split to clients; a manifest is its file format.

A partition is four integer arrays for any number of clients, so a million clients need no Python object each. Its
manifest is canonical JSON: equal bytes on every machine. It ends with the SHA-256 of its own content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from simfl.errors import DataError

FORMAT = "simfl-partition-1"
HELD_OUT_FORMAT = "simfl-partition-2"  # with held-out rows, which the first format lacks


@dataclass(frozen=True, eq=False)
class Partition:
    """The example rows of every client, and its named groups (providers), if the partition has groups.

    `order` is sorted by client, then group, then row. Each array of starts has one more entry than there are items.
    """

    order: np.ndarray  # int64 [n]: rows of the split's examples
    starts: np.ndarray  # int64 [K+1]: client k holds order[starts[k]:starts[k+1]]
    group_starts: np.ndarray  # int64 [G+1] into order; [0] if there are no groups
    group_clients: np.ndarray  # int64 [K+1]: client k has groups group_clients[k] to group_clients[k+1]
    group_names: pa.Array = field(default_factory=lambda: pa.nulls(0, pa.string()))  # string [G]
    metas: tuple[dict[str, Any], ...] = ()  # metadata of each client (task, answer list); or empty
    held_out_order: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # int64 [h], as `order`
    held_out_starts: np.ndarray | None = None  # int64 [K+1], as `starts`; None: no rows are held out

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Return the number of examples of each client, int64 [K]."""
        return np.diff(self.starts)

    @cached_property
    def mean_size(self) -> float:
        """Return the mean number of examples per client."""
        return float(self.sizes.mean())

    @property
    def num_groups(self) -> np.ndarray:
        """Return the number of groups of each client, int64 [K]."""
        return np.diff(self.group_clients)

    def rows(self, client: int) -> np.ndarray:
        """Return the example rows of one client, int64."""
        return self.order[self.starts[client] : self.starts[client + 1]]

    @property
    def holds_out(self) -> bool:
        """Return whether rows of clients are held out from training."""
        return self.held_out_starts is not None

    def held_out(self, client: int) -> np.ndarray:
        """Return the rows of one client that are held out from training, int64."""
        if self.held_out_starts is None:
            return self.held_out_order
        return self.held_out_order[self.held_out_starts[client] : self.held_out_starts[client + 1]]

    def groups(self, client: int) -> list[tuple[str, np.ndarray]]:
        """Return the named groups of one client with their example rows; empty if the partition has no groups."""
        first, last = self.group_clients[client], self.group_clients[client + 1]
        return [
            (self.group_names[g].as_py(), self.order[self.group_starts[g] : self.group_starts[g + 1]])
            for g in range(first, last)
        ]

    def with_empty_groups(self, names: Sequence[Sequence[str]]) -> Partition:
        """Return the partition in which each client has further groups, without examples, after its own.

        Args:
            names: Names of the further groups of each client.
        """
        none = np.zeros(0, np.int64)
        return self.with_groups(names, [[none] * len(own) for own in names])

    def with_groups(self, names: Sequence[Sequence[str]], rows: Sequence[Sequence[np.ndarray]]) -> Partition:
        """Return the partition in which each client has further groups after its own.

        Args:
            names: Names of the further groups of each client.
            rows: Example rows of each of them, int64, which no other group has.
        """
        sizes, known, all_names, order = list[int](), self.group_names.to_pylist(), list[str](), list[np.ndarray]()
        for client, (more, own) in enumerate(zip(names, rows, strict=True)):
            first, last = self.group_clients[client], self.group_clients[client + 1]
            sizes += [*np.diff(self.group_starts[first : last + 1]).tolist(), *map(len, own)]
            all_names += [*known[first:last], *more]
            order += [self.rows(client), *own]
        added = [sum(map(len, own)) for own in rows]
        counts = [len(more) for more in names]
        return replace(
            self,
            order=np.concatenate([self.order[:0], *order]),
            starts=self.starts + np.cumsum([0, *added]),
            group_starts=np.cumsum([0, *sizes]),
            group_clients=self.group_clients + np.cumsum([0, *counts]),
            group_names=pa.array(all_names, pa.string()),
        )

    def with_empty_clients(self, more: int) -> Partition:
        """Return the partition with further clients, without examples and groups, after its own."""
        return replace(
            self,
            starts=np.append(self.starts, np.full(more, self.starts[-1])),
            group_clients=np.append(self.group_clients, np.full(more, self.group_clients[-1])),
            metas=self.metas and (*self.metas, *({} for _ in range(more))),
        )

    def meta(self, client: int) -> dict[str, Any]:
        """Return the metadata of one client; empty if there are none."""
        return self.metas[client] if self.metas else {}

    def manifest(self, spec: Mapping[str, Any], data_sha256: str, seed: int) -> bytes:
        """Return the partition as canonical JSON, with its settings, data hash, seed and own SHA-256."""
        spec = {key: value for key, value in spec.items() if key != "holdout" or value is not None}
        body: dict[str, Any] = {"format": FORMAT, "spec": spec, "data_sha256": data_sha256, "seed": int(seed)}
        body["clients"] = _write_rows(self.order, self.starts)
        if self.held_out_starts is not None:
            body |= {"format": HELD_OUT_FORMAT, "held_out": _write_rows(self.held_out_order, self.held_out_starts)}
        if len(self.group_names):
            body["groups"] = _write_groups(self)
        if self.metas:
            body["meta"] = list(self.metas)
        return _canonical(body | {"sha256": _sha256(body)})

    @staticmethod
    def from_owners(
        client_of_row: np.ndarray,
        clients: int,
        groups: tuple[np.ndarray, pa.Array] | None = None,
        metas: Sequence[dict[str, Any]] = (),
    ) -> Partition:
        """Build the partition that assigns each row to its client.

        Args:
            client_of_row: Client of each row, int64 [N]; -1 for rows without a client.
            clients: K.
            groups: Group of each row as codes [N], and the names of the groups.
            metas: Metadata of each client.
        """
        kept = np.flatnonzero(client_of_row >= 0)
        client = client_of_row[kept]
        starts = _starts(client, clients)
        if groups is None:
            none = np.zeros(clients + 1, np.int64)
            return Partition(kept[np.argsort(client, kind="stable")], starts, none[:1], none, metas=tuple(metas))
        code = groups[0][kept]
        by = np.lexsort((code, client))
        client, code = client[by], code[by]
        first = np.flatnonzero(np.diff(client, prepend=-1) | np.diff(code, prepend=-1))
        group_starts = np.append(first, len(kept)).astype(np.int64)
        names = groups[1].take(pa.array(code[first]))
        return Partition(kept[by], starts, group_starts, _starts(client[first], clients), names, tuple(metas))

    @staticmethod
    def read(manifest: bytes, data_sha256: str) -> Partition:
        """Read the partition of a manifest.

        Raises:
            DataError: The manifest was altered, or made from other data than `data_sha256`.
        """
        body = _parse(manifest)
        stored = body.pop("sha256", None)
        if stored != _sha256(body):
            raise DataError(f"partition manifest: content hashes to {_sha256(body)[:16]}, expected {str(stored)[:16]}")
        if body["data_sha256"] != data_sha256:
            raise DataError(
                f"partition manifest: made from data {body['data_sha256'][:16]}, the data given is {data_sha256[:16]}"
            )
        order, starts = _read_rows(body["clients"])
        partition = Partition(order, starts, *_read_groups(body.get("groups"), starts), tuple(body.get("meta", ())))
        if body["format"] == FORMAT:
            return partition
        held_out, held_out_starts = _read_rows(body["held_out"])
        if len(both := np.intersect1d(order, held_out)):
            raise DataError(f"partition manifest: row {both[0]} is held out and trained on")
        return replace(partition, held_out_order=held_out, held_out_starts=held_out_starts)


def _starts(owner: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))]).astype(np.int64)


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode() + b"\n"


def _sha256(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def manifest_sha256(manifest: bytes) -> str:
    """Return the SHA-256 stored in a manifest."""
    return str(_parse(manifest).get("sha256"))


def _parse(manifest: bytes) -> dict[str, Any]:
    try:
        body = json.loads(manifest)
    except ValueError as error:
        raise DataError(f"partition manifest: not JSON ({error})") from None
    if not isinstance(body, dict) or body.get("format") not in (FORMAT, HELD_OUT_FORMAT):
        given = body.get("format") if isinstance(body, dict) else type(body).__name__
        raise DataError(f"partition manifest: format {given!r}, allowed: {FORMAT!r}, {HELD_OUT_FORMAT!r}")
    return body


def row_ranges(rows: np.ndarray) -> str:
    """Return rows, int64 [n], as a manifest writes them: sorted, with consecutive ones as `first-last`."""
    return _write_rows(np.sort(rows), np.array([0, len(rows)]))[0]


def _write_rows(order: np.ndarray, starts: np.ndarray) -> list[str]:
    """Return one text per client: its rows in order, with consecutive rows as `first-last`."""
    new = np.diff(order, prepend=-2) != 1
    new[starts[:-1][starts[:-1] < len(order)]] = True
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(order)) - 1
    runs = list(map(str, order[first].tolist()))
    for long in np.flatnonzero(last > first).tolist():
        runs[long] += f"-{order[last[long]]}"
    cuts = np.searchsorted(first, starts).tolist()
    return [",".join(runs[a:b]) for a, b in pairwise(cuts)]


def _read_rows(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    runs = [run.partition("-") for text in texts for run in text.split(",") if run]
    first = np.array([int(a) for a, _, _ in runs], np.int64)
    lengths = np.array([int(b or a) for a, _, b in runs], np.int64) - first + 1
    ends = np.cumsum(lengths)
    order = np.repeat(first - (ends - lengths), lengths) + np.arange(lengths.sum())
    per_client = np.array([text.count(",") + 1 if text else 0 for text in texts], np.int64)
    return order, np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(per_client)])].astype(np.int64)


def _write_groups(partition: Partition) -> list[list[list[Any]]]:
    """Return, for each client, its groups as [name, number of rows] in the order of its rows."""
    sizes = np.diff(partition.group_starts).tolist()
    named = [[name, size] for name, size in zip(partition.group_names.to_pylist(), sizes, strict=True)]
    cuts = partition.group_clients.tolist()
    return [named[a:b] for a, b in pairwise(cuts)]


def _read_groups(groups: list[list[list[Any]]] | None, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    if groups is None:
        none = np.zeros(len(starts), np.int64)
        return none[:1], none, pa.nulls(0, pa.string())
    flat = [group for client in groups for group in client]
    sizes = np.array([size for _, size in flat], np.int64)
    counts = np.array([len(client) for client in groups], np.int64)
    names = pa.array([name for name, _ in flat], pa.string())
    return np.concatenate([[0], np.cumsum(sizes)]), np.concatenate([[0], np.cumsum(counts)]), names
