"""The download: encoded once for all sampled clients, and charged to each of them.

With `encode: weights` (and with a lossless codec) whole parts are sent. In the first round of a run they are charged
like any other, and clients start from the initial weights, which they have from the seed or a public checkpoint
(`codec.shared_start`). With `encode: update` the server sends the
encoded change since the version it last made public; a client that missed rounds downloads the packets in between, or
the whole in float32 where that is shorter, as in its first round. Each change is taken against the decoded version, so
the error of one encoding becomes part of the next change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simfl.codecs.base import Codec, MessageContext
from simfl.protocol import Parts, Weights
from simfl.timing import timed
from simfl.transport import ledger
from simfl.transport.upload import PLAIN, MessageSpec, Transmitted, transmit

Sizes = dict[str, dict[str, int]]  # part -> tensor -> payload in bytes


class BroadcastResult(NamedTuple):
    """The result of a broadcast: the decoded download, its ledger rows, and the broadcast state afterwards."""

    received: Parts
    rows: list[ledger.Row]
    broadcast: Broadcast


@dataclass(frozen=True)
class Broadcast:
    """The server's broadcast state in a phase; empty unless changes are sent.

    Attributes:
        public: The version that clients have decoded so far.
        packets: Sizes of the newest packets, as far back as they are together shorter than the whole.
        missed: Client -> packets since its last round; all other clients download the whole.
    """

    public: Parts = field(default_factory=dict)
    packets: tuple[Sizes, ...] = ()
    missed: dict[int, int] = field(default_factory=dict)

    @timed("encode")
    def send(self, spec: MessageSpec, round_number: int, parts: Parts, clients: list[int]) -> BroadcastResult:
        """Send parts to these clients; `round_number` counts from 0."""
        arrived, public, packet, whole = Parts(), Parts(), Sizes(), Sizes()
        for part, tensors in parts.items():
            codec, context = spec.codec("download", part), spec.context(round_number, "download", -1, part)
            if not codec.broadcasts_deltas:
                arrived[part], packet[part] = transmit(codec, tensors, context)
                whole[part] = packet[part]
                if spec.is_known(round_number):
                    arrived[part] = tensors
                continue
            whole[part] = {name: PLAIN.size(tuple(t.shape)) for name, t in tensors.items()}
            public[part], packet[part] = self._send_change(codec, part, tensors, context)
        if not public:
            return BroadcastResult(arrived, _rows(spec, round_number, parts, dict.fromkeys(clients, packet)), self)
        charged, after = self.charge(packet, whole, clients)
        rows = _rows(spec, round_number, parts, charged)
        return BroadcastResult({**arrived, **public}, rows, replace(after, public=public))

    def _send_change(self, codec: Codec, part: str, tensors: Weights, context: MessageContext) -> Transmitted:
        """Send the change of a part, or all of it in float32 the first time; return its new public version."""
        before = self.public.get(part)
        if before is None:
            return transmit(PLAIN, tensors, context)
        change = {name: t - before[name] for name, t in tensors.items()}
        arrived, sizes = transmit(codec, change, context)
        return Transmitted({name: before[name] + t for name, t in arrived.items()}, sizes)

    def charge(self, packet: Sizes, whole: Sizes, clients: list[int]) -> tuple[dict[int, Sizes], Broadcast]:
        """Return the sizes charged to each client for this packet, and the broadcast state afterwards.

        `whole`: sizes for a client that takes no packets; float32 for a part of which changes are sent.
        """
        packets = (*self.packets, packet)
        charged = {client: _cheapest(packets, self.missed.get(client), whole) for client in clients}
        packets = _drop_useless(packets, whole)
        missed = {client: count + 1 for client, count in self.missed.items()} | dict.fromkeys(clients, 0)
        missed = {client: count for client, count in missed.items() if count <= len(packets)}
        return charged, replace(self, packets=packets, missed=missed)


def _cheapest(packets: tuple[Sizes, ...], missed: int | None, whole: Sizes) -> Sizes:
    """Return, for each part, the shorter of the whole and all packets since the client's last round."""
    if missed is None:
        return whole
    needed = _sum(packets[-1 - missed :], whole)
    return {part: needed[part] if _total(needed[part]) < _total(full) else full for part, full in whole.items()}


def _drop_useless(packets: tuple[Sizes, ...], whole: Sizes) -> tuple[Sizes, ...]:
    """Drop the oldest packets while all packets together are no shorter than the whole, for every part."""
    while packets and all(_total(sizes) >= _total(whole[part]) for part, sizes in _sum(packets, whole).items()):
        packets = packets[1:]
    return packets


def _sum(packets: tuple[Sizes, ...], whole: Sizes) -> Sizes:
    return {
        part: {name: sum(packet[part][name] for packet in packets) for name in full} for part, full in whole.items()
    }


def _total(sizes: dict[str, int]) -> int:
    return sum(sizes.values())


def _rows(spec: MessageSpec, round_number: int, parts: Parts, payload: dict[int, Sizes]) -> list[ledger.Row]:
    entries = {part: spec.entry(part, tensors) for part, tensors in parts.items()}
    return [
        entry.row(round_number, client, "download", sizes[part])
        for client, sizes in payload.items()
        for part, entry in entries.items()
    ]
