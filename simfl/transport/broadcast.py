"""The way down: what every sampled client receives, encoded once, and what each of them is charged for it.

With `encode: weights` (and with a codec that loses nothing) whole parts travel. With `encode: update` the server sends the
encoded change since the version it last made public; a client that missed rounds downloads the packets in between, or
the whole in float32 where that is cheaper, as at its first visit. Since each change is taken against what was decoded,
what one encoding lost is part of the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simfl.codecs.base import Codec, Context
from simfl.protocol import Parts, Weights
from simfl.timing import timed
from simfl.training.context import PhaseContext
from simfl.transport import ledger
from simfl.transport.upload import PLAIN, Arrived, LedgerEntry, codec_of, context_of, transmit

Sizes = dict[str, dict[str, int]]  # part -> tensor -> payload in bytes


@dataclass(frozen=True)
class Broadcast:
    """What the server made public so far in this phase; empty unless changes are sent."""

    public: Parts = field(default_factory=dict)
    packets: tuple[Sizes, ...] = ()  # the newest, as far back as they are together shorter than the whole
    missed: dict[int, int] = field(default_factory=dict)  # client -> packets since its visit; others take the whole

    @timed("encode")
    def send(self, stage: PhaseContext, round_number: int, parts: Parts, clients: list[int]) -> BroadcastResult:
        """What the clients receive, the ledger's rows, and the state after it."""
        arrived, public, packet, whole = Parts(), Parts(), Sizes(), Sizes()
        for part, tensors in parts.items():
            codec, context = codec_of(stage, "download", part), context_of(stage, round_number, "download", -1, part)
            if not codec.sends_changes:
                arrived[part], packet[part] = transmit(codec, tensors, {}, context)
                whole[part] = packet[part]
                continue
            whole[part] = {name: PLAIN.size(tuple(t.shape)) for name, t in tensors.items()}
            public[part], packet[part] = self._change(codec, part, tensors, context)
        if not public:
            return arrived, _rows(stage, round_number, parts, dict.fromkeys(clients, packet)), self
        charged, after = self.book(packet, whole, clients)
        return {**arrived, **public}, _rows(stage, round_number, parts, charged), replace(after, public=public)

    def _change(self, codec: Codec, part: str, tensors: Weights, context: Context) -> Arrived:
        """What is public of a part after its change was sent; what was never public is sent as it is."""
        before = self.public.get(part)
        if before is None:
            return transmit(PLAIN, tensors, {}, context)
        change = {name: t - before[name] for name, t in tensors.items()}
        arrived, sizes = transmit(codec, change, {}, context)
        return {name: before[name] + t for name, t in arrived.items()}, sizes

    def book(self, packet: Sizes, whole: Sizes, clients: list[int]) -> tuple[dict[int, Sizes], Broadcast]:
        """What each client is charged for when `packet` is sent, and the books after it.

        `whole`: what a client pays who takes no packets: float32 for a part of which changes are sent.
        """
        packets = (*self.packets, packet)
        charged = {client: _cheapest(packets, self.missed.get(client), whole) for client in clients}
        packets = _worthwhile(packets, whole)
        missed = {client: count + 1 for client, count in self.missed.items()} | dict.fromkeys(clients, 0)
        missed = {client: count for client, count in missed.items() if count <= len(packets)}
        return charged, replace(self, packets=packets, missed=missed)


BroadcastResult = tuple[
    Parts, list[ledger.Row], Broadcast
]  # what clients receive, the ledger's rows, what is public then


def _cheapest(packets: tuple[Sizes, ...], missed: int | None, whole: Sizes) -> Sizes:
    """For each part, the packets missed before this one and this one, or the whole, whichever is shorter."""
    if missed is None:
        return whole
    needed = _summed(packets[-1 - missed :], whole)
    return {part: needed[part] if _total(needed[part]) < _total(full) else full for part, full in whole.items()}


def _worthwhile(packets: tuple[Sizes, ...], whole: Sizes) -> tuple[Sizes, ...]:
    """Without the oldest ones, as long as all that are left are no shorter than the whole, for every part."""
    while packets and all(_total(sizes) >= _total(whole[part]) for part, sizes in _summed(packets, whole).items()):
        packets = packets[1:]
    return packets


def _summed(packets: tuple[Sizes, ...], whole: Sizes) -> Sizes:
    return {
        part: {name: sum(packet[part][name] for packet in packets) for name in full} for part, full in whole.items()
    }


def _total(sizes: dict[str, int]) -> int:
    return sum(sizes.values())


def _rows(stage: PhaseContext, round_number: int, parts: Parts, payload: dict[int, Sizes]) -> list[ledger.Row]:
    bills = {part: LedgerEntry(stage, part, tensors) for part, tensors in parts.items()}
    return [
        bill.row(stage.index, round_number, client, "download", sizes[part])
        for client, sizes in payload.items()
        for part, bill in bills.items()
    ]
