"""The way down: what every sampled client receives, encoded once, and what each of them is charged for it.

With `of: weights` (and with a codec that loses nothing) the whole parts travel. With `of: delta` the server sends the
encoded change since the version it last made public; a client that missed rounds downloads the packets in between, or
the whole in float32 where that is cheaper, as at its first visit. Since each change is taken against what was decoded,
what one encoding lost is part of the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simfl import ledger
from simfl.cohort.stage import Stage
from simfl.cohort.wire import PLAIN, STATISTICS, message, transmit
from simfl.protocol import Parts


@dataclass(frozen=True)
class Broadcast:
    """What the server made public so far in this phase; empty unless changes are sent."""

    public: Parts = field(default_factory=dict)
    sizes: tuple[dict[str, dict[str, int]], ...] = ()  # of each version: part -> tensor -> payload
    held: dict[int, int] = field(default_factory=dict)  # client -> number of versions it has

    def send(
        self, stage: Stage, round_number: int, parts: Parts, clients: list[int]
    ) -> tuple[Parts, list[ledger.Row], Broadcast]:
        """What the clients receive, the ledger's rows, and the state after it."""
        codec = stage.phase.codec.download
        if codec.of == "delta" and not codec.lossless:
            return self._send_changes(stage, round_number, parts, clients)
        arrived: Parts = {}
        payload: dict[str, dict[str, int]] = {}
        for part, tensors in parts.items():
            arrived[part], payload[part] = transmit(PLAIN if part == STATISTICS else codec, tensors, {})
        return arrived, _rows(stage, round_number, parts, dict.fromkeys(clients, payload)), self

    def _send_changes(
        self, stage: Stage, round_number: int, parts: Parts, clients: list[int]
    ) -> tuple[Parts, list[ledger.Row], Broadcast]:
        public: Parts = {}
        packet: dict[str, dict[str, int]] = {}
        for part, tensors in parts.items():
            before = self.public.get(part)
            if before is None or part == STATISTICS:
                public[part], packet[part] = transmit(PLAIN, tensors, {})
                continue
            change = {name: t - before[name] for name, t in tensors.items()}
            arrived, packet[part] = transmit(stage.phase.codec.download, change, {})
            public[part] = {name: before[name] + t for name, t in arrived.items()}
        sizes = (*self.sizes, packet)
        whole = {part: {name: PLAIN.size(tuple(t.shape)) for name, t in ts.items()} for part, ts in parts.items()}
        charged = {
            client: _cheapest(sizes[self.held.get(client, 0) :], whole, client in self.held) for client in clients
        }
        after = Broadcast(public, sizes, {**self.held, **dict.fromkeys(clients, len(sizes))})
        return public, _rows(stage, round_number, parts, charged), after


def _cheapest(
    packets: tuple[dict[str, dict[str, int]], ...], whole: dict[str, dict[str, int]], known: bool
) -> dict[str, dict[str, int]]:
    """For each part, the missed packets or the whole, whichever is shorter."""
    out = {}
    for part, full in whole.items():
        missed = {name: sum(packet[part][name] for packet in packets) for name in full}
        out[part] = missed if known and sum(missed.values()) < sum(full.values()) else full
    return out


def _rows(
    stage: Stage, round_number: int, parts: Parts, payload: dict[int, dict[str, dict[str, int]]]
) -> list[ledger.Row]:
    return [
        message(stage, stage.index, round_number, client, "download", part, tensors, payload[client][part])
        for client in payload
        for part, tensors in parts.items()
    ]
