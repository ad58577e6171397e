"""The download: encoded once for all sampled clients, and charged to each of them.

With `encode: weights` (and with a lossless codec) whole parts are sent. In the first round of a run they are charged
like any other, and clients start from the initial weights, which they have from the seed or a public checkpoint
(`codec.shared_start`). With `encode: update` the server sends the
encoded change since the version it last made public; a client that missed rounds downloads the packets in between, or
the whole in float32 where that is shorter, as in its first round. Each change is taken against the decoded version, so
the error of one encoding becomes part of the next change.

Where rounds change different tensors, or the frozen base (`simfl.transport.low_rank`), a client is charged what changed
since its last round, or the whole where that is shorter. Every client has the frozen base of the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from simfl.aggregation.columns import Columns
from simfl.codecs.base import Codec, MessageContext
from simfl.protocol import BASE, Parts, Weights
from simfl.timing import timed
from simfl.transport.ledger import FLOAT_BYTES
from simfl.transport.upload import PLAIN, MessageSpec, Transmitted, transmit

Sizes = dict[str, dict[str, int]]  # part -> tensor -> payload in bytes
NEVER = -1  # in place of a client: those that were not sampled yet


class BroadcastResult(NamedTuple):
    """The result of a broadcast: the decoded download, its ledger rows, and the broadcast state afterwards."""

    received: Parts
    rows: Columns
    broadcast: Broadcast


@dataclass(frozen=True)
class Broadcast:
    """The server's broadcast state in a phase; empty unless changes are sent.

    Attributes:
        public: The version that clients have decoded so far.
        packets: Sizes of the newest packets, as far back as they are together shorter than the whole.
        missed: Client -> packets since its last round; all other clients download the whole. `NEVER` stands for
            clients that were not sampled yet and have the frozen base of the start.
    """

    public: Parts = field(default_factory=dict)
    packets: tuple[Sizes, ...] = ()
    missed: dict[int, int] = field(default_factory=dict)

    @timed("encode")
    def send(
        self, spec: MessageSpec, round_number: int, parts: Parts, clients: list[int], base_rank: int = 0
    ) -> BroadcastResult:
        """Send parts to these clients.

        Args:
            spec: Message formats of the phase.
            round_number: Round of the phase, from 0.
            parts: Parts to send.
            clients: Numbers of the clients.
            base_rank: Rank of the change of the frozen base by the round before.
        """
        arrived, public, packet, whole = Parts(), Parts(), Sizes(), Sizes()
        for part, tensors in parts.items():
            codec, context = spec.codec("download", part), spec.context(round_number, "download", -1, part)
            if part == BASE:
                arrived[part] = tensors
                continue
            held = self._held(spec, part, tensors, round_number)
            if not codec.broadcasts_deltas:
                arrived[part], packet[part] = transmit(codec, tensors, context)
                whole[part] = packet[part]
                arrived[part] |= tensors if spec.is_known(round_number) else held
                if not codec.lossless and spec.selects(part):
                    public[part] = arrived[part]
                continue
            whole[part] = {name: PLAIN.size(tuple(t.shape)) for name, t in tensors.items()}
            public[part], packet[part] = self._send_change(codec, part, tensors, held, context)
        packet, whole = changed_sizes(spec, round_number, parts, packet, whole, base_rank)
        if public or packet is not whole:
            charged, after = self.charge(spec, packet, whole, clients, round_number)
        else:
            charged, after = dict.fromkeys(clients, packet), self
        rows = _rows(spec, round_number, parts, at_ranks(spec, parts, charged))
        return BroadcastResult({**arrived, **public}, rows, replace(after, public=public))

    def _held(self, spec: MessageSpec, part: str, tensors: Weights, round_number: int) -> Weights:
        """Return the tensors that clients have without this download: as they know them, or as they last arrived."""
        if spec.low_rank is None or not spec.selects(part):
            return {}
        before, needed = self.public.get(part, {}), spec.low_rank.needed_in(tensors, round_number)
        unchanged = needed - spec.low_rank.changed_before(tensors, round_number)
        known = {name: t for name, t in tensors.items() if name not in needed}
        return known | {name: t for name, t in before.items() if name in unchanged}

    def _send_change(
        self, codec: Codec, part: str, tensors: Weights, held: Weights, context: MessageContext
    ) -> Transmitted:
        """Send the change of a part, or all of it in float32 the first time; return its new public version."""
        before = self.public.get(part)
        if before is None:
            return transmit(PLAIN, tensors, context)
        change = {name: t - before[name] for name, t in tensors.items() if name not in held}
        arrived, sizes = transmit(codec, change, context)
        public = {name: held[name] if name in held else before[name] + arrived[name] for name in tensors}
        return Transmitted(public, dict.fromkeys(tensors, 0) | sizes)

    def charge(
        self, spec: MessageSpec, packet: Sizes, whole: Sizes, clients: list[int], round_number: int
    ) -> tuple[dict[int, Sizes], Broadcast]:
        """Return the sizes charged to each client for this packet, and the broadcast state afterwards.

        `whole`: sizes for a client that takes no packets; float32 for a part of which changes are sent.
        """
        sums = frozenset(part for part in whole if spec.sends_changes(part))
        packets = (*self.packets, packet)
        before = {NEVER: 0} if round_number == 0 and BASE in whole else self.missed
        never = before.get(NEVER)
        cheapest: dict[int | None, Sizes] = {}  # few clients have missed different numbers of packets
        for count in {before.get(client, never) for client in clients}:
            cheapest[count] = _cheapest(packets, count, whole, sums)
        charged = {client: cheapest[before.get(client, never)] for client in clients}
        packets = _drop_useless(packets, whole, sums)
        missed = {client: count + 1 for client, count in before.items()} | dict.fromkeys(clients, 0)
        missed = {client: count for client, count in missed.items() if count <= len(packets)}
        return charged, replace(self, packets=packets, missed=missed)


def changed_sizes(
    spec: MessageSpec, round_number: int, parts: Parts, packet: Sizes, whole: Sizes, base_rank: int
) -> tuple[Sizes, Sizes]:
    """Return the sizes of what the round before has changed, and of the whole.

    `packet` and `whole` are those of the parts that codecs encode. They are returned as one object where clients are
    charged the same for both.
    """
    low_rank = spec.low_rank
    if low_rank is None or not (low_rank.selects or BASE in parts):
        return (packet, packet) if packet == whole else (packet, whole)
    if low_rank.selects:
        tensors = parts["weights"]
        changed, needed = low_rank.changed_before(tensors, round_number), low_rank.needed_in(tensors, round_number)
        packet = {**packet, "weights": low_rank.downloaded(packet["weights"], tensors, changed)}
        whole = {**whole, "weights": low_rank.downloaded(whole["weights"], tensors, needed)}
    if BASE in parts:
        full = {name: PLAIN.size(tuple(t.shape)) for name, t in parts[BASE].items()}
        packet, whole = {**packet, BASE: low_rank.base_sizes(base_rank)}, {**whole, BASE: full}
    return packet, whole


def at_ranks(spec: MessageSpec, parts: Parts, charged: dict[int, Sizes]) -> dict[int, Sizes]:
    """Return the sizes charged to each client, with the adapters cut to its rank."""
    low_rank = spec.low_rank
    if low_rank is None or low_rank.ranks is None:
        return charged
    known: dict[tuple[int, int], Sizes] = {}  # few of them differ
    found = {}
    for client, sizes in charged.items():
        key = id(sizes), low_rank.rank_of(client)
        if key not in known:
            own = {part: low_rank.sizes_at(sizes[part], parts[part], key[1]) for part in sizes if part != BASE}
            known[key] = {part: own.get(part, sizes[part]) for part in sizes}
        found[client] = known[key]
    return found


def sent_values(spec: MessageSpec, parts: Parts, part: str, sizes: dict[str, int]) -> int:
    """Return the number of values in one download of a part, from its sizes at a client's rank."""
    low_rank = spec.low_rank
    if low_rank is None or (part != BASE and low_rank.ranks is None and not low_rank.selects):
        return sum(t.numel() for t in parts[part].values())
    if part == BASE:
        return _total(sizes) // FLOAT_BYTES
    if low_rank.ranks is None:
        return low_rank.num_downloaded({name: t for name, t in parts[part].items() if sizes[name]})
    full = {name: spec.codec("download", part).size(tuple(t.shape)) for name, t in parts[part].items()}
    return sum(t.numel() * min(sizes[name], full[name]) // full[name] for name, t in parts[part].items())


def _cheapest(packets: tuple[Sizes, ...], missed: int | None, whole: Sizes, sums: frozenset[str]) -> Sizes:
    """Return, for each part, the shorter of the whole and all that was sent since the client's last round."""
    if missed is None:
        return whole
    needed = _since(packets[-1 - missed :], whole, sums)
    return {part: needed[part] if _total(needed[part]) < _total(full) else full for part, full in whole.items()}


def _drop_useless(packets: tuple[Sizes, ...], whole: Sizes, sums: frozenset[str]) -> tuple[Sizes, ...]:
    """Drop the oldest packets while all packets together are no shorter than the whole, for every part."""
    while packets and all(_total(sizes) >= _total(whole[part]) for part, sizes in _since(packets, whole, sums).items()):
        packets = packets[1:]
    return packets


def _since(packets: tuple[Sizes, ...], whole: Sizes, sums: frozenset[str]) -> Sizes:
    """Return the sizes of what packets bring: all changes of the parts in `sums`, and the newest values of others.

    Tensors that clients do not need any more (of size 0 in the whole) are left out.
    """
    return {
        part: {
            name: (sum if part in sums else max)(packet[part][name] for packet in packets) if size else 0
            for name, size in full.items()
        }
        for part, full in whole.items()
    }


def _total(sizes: dict[str, int]) -> int:
    return sum(sizes.values())


def _rows(spec: MessageSpec, round_number: int, parts: Parts, payload: dict[int, Sizes]) -> Columns:
    """Return the ledger rows of a download, client by client. `payload`: sizes by client; few of them differ."""
    entries = {part: spec.entry(part, tensors) for part, tensors in parts.items()}
    different = {id(sizes): sizes for sizes in payload.values()}
    places = {key: place for place, key in enumerate(different)}
    templates = Columns.of(
        entry.row(round_number, 0, "download", sizes[part], sent_values(spec, parts, part, sizes[part]))
        for sizes in different.values()
        for part, entry in entries.items()
    )
    if len(different) > 1:
        chosen = np.array([places[id(sizes)] for sizes in payload.values()], np.int64)
    else:
        chosen = np.zeros(len(payload), np.int64)
    rows = (chosen[:, None] * len(entries) + np.arange(len(entries))).reshape(-1)
    return templates.take(rows).with_column("client", np.repeat(np.array(list(payload), np.int64), len(entries)))
