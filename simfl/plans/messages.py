"""Messages of a phase, computed from the names and shapes of tensors.

The same functions as in a run are used: the download and upload of the algorithm, the sizes of the codecs, the
accounting of downloads, the ledger's rule for tied weights, and the sampling of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from simfl.asynchronous.events import ScheduledRound
from simfl.codecs.base import Codec
from simfl.errors import ConfigError
from simfl.parameter_groups import pick
from simfl.protocol import BASE, ClientUpdate, Parts, Server, State, Weights
from simfl.sampling import num_sampled
from simfl.secure_aggregation.channel import SecureChannel
from simfl.secure_aggregation.protocol import Payload, secure_round
from simfl.training.context import PhaseContext
from simfl.transport.broadcast import Broadcast, Sizes, at_ranks, changed_sizes, sent_values
from simfl.transport.late_upload import late_message
from simfl.transport.ledger import Row
from simfl.transport.low_rank import cut
from simfl.transport.secure_upload import protocol_row
from simfl.transport.upload import BUFFERS, PLAIN
from simfl.virtual_time.rounds import Request, RoundSchedule, Start, schedule_round, start_round
from simfl.virtual_time.selection import History
from simfl.virtual_time.settings import RoundTime
from simfl.virtual_time.times import ClientTimes

Message = tuple[Row, ...]  # one ledger row per part; client and round are not filled in


@dataclass(frozen=True)
class RoundMessages:
    """Messages of one round, by client; in virtual time also its schedule."""

    round: int  # from 1
    clients: list[int]  # sampled clients; in centralized training they exchange no messages
    download: Mapping[int, Message]
    upload: Mapping[int, Message]
    dropped: frozenset[int] = frozenset()  # clients that leave before they upload what they trained, or upload late
    schedule: RoundSchedule | None = None  # the round in virtual time
    events: ScheduledRound | None = None  # of asynchronous training, whose `clients` are those that arrive

    @property
    def end(self) -> int:
        """Virtual time at the end of the round in nanoseconds; 0 without virtual time."""
        found = self.events or self.schedule
        return 0 if found is None else found.end


@dataclass(frozen=True)
class PhaseMessages:
    """Messages of a phase."""

    stage: PhaseContext  # with its models on the meta device
    examples: int = 1  # number of examples of a typical client
    _known_uploads: dict[tuple[int, tuple[str, ...]], Message] = field(default_factory=dict)  # by rank and tensors

    @cached_property
    def update(self) -> ClientUpdate:
        """First update of a typical client; state that is kept per example depends on the number of examples."""
        known = {"client": -1, "round": -1, "num_examples": self.examples, "num_clients": self.stage.num_clients}
        integers = ("client", "key", "round", "step", "rank")
        kinds = {name: torch.int64 if name in integers else torch.float32 for name in ClientUpdate._fields}
        return ClientUpdate(**{name: torch.tensor(known.get(name, 1), dtype=kind) for name, kind in kinds.items()})

    @cached_property
    def server(self) -> Server:
        """Server state at the start of the phase."""
        weights = self.stage.network.tensors(self.stage.parameter_groups.shared)
        base = {name: t.float() for name, t in self.stage.network.tensors(self.stage.changed_base).items()}
        state = self.stage.phase.algorithm.init_server(weights, self.stage.task)
        return Server(weights, state, base=base, pairs=self.stage.pairs)

    @cached_property
    def buffers(self) -> Weights:
        """Buffers that are averaged, such as running statistics."""
        return self.stage.network.tensors(self.stage.parameter_groups.averaged_buffers)

    @cached_property
    def received(self) -> Parts:
        """Parts that every client receives."""
        statistics = {BUFFERS: self.buffers} if self.buffers else {}
        base = {BASE: self.stage.network.tensors(self.stage.changed_base)} if self.stage.changed_base else {}
        return self.stage.phase.algorithm.download(self.server) | base | statistics | self._clip_parts[0]

    @cached_property
    def state(self) -> State:
        """Prepared state of a client in its first update."""
        algorithm = self.stage.phase.algorithm
        return algorithm.prepare_state(self.received, algorithm.init_client(self.received, self.update), self.update)

    @cached_property
    def trained(self) -> Weights:
        """Trained parameters of a client's model, without extra parameters of the algorithm."""
        known = {**self.stage.network.tensors(self.stage.parameter_groups.personal_params), **self.received["weights"]}
        known |= self.stage.phase.algorithm.start_weights(self.received, self.update)
        return pick(known, self.stage.parameter_groups.trained)

    @cached_property
    def sent(self) -> Parts:
        """Parts that every client uploads."""
        upload = self.stage.phase.algorithm.upload(self.trained, self.received, self.state, self.update)
        return {**upload} | ({BUFFERS: self.buffers} if self.buffers else {}) | self._clip_parts[1]

    @cached_property
    def _clip_parts(self) -> tuple[Parts, Parts]:
        """Parts of downloads and uploads with which the clip norm adapts."""
        return ({}, {}) if self.stage.mechanism is None else self.stage.mechanism.clip_parts()

    @cached_property
    def down(self) -> Message:
        """Download message, encoded by the codec."""
        return self._message("download", self._sizes("download"))

    @cached_property
    def up(self) -> Message:
        """Upload message."""
        return self._message("upload", self._sizes("upload"))

    def varies(self, direction: str, part: str) -> bool:
        """Return whether the bytes of a part depend on its values; the plan then has an upper bound."""
        return not self.stage.messages.codec(direction, part).fixed_size

    def rounds(self, clients_of: Callable[[int], list[int]] | None = None, clock: int = 0) -> Iterator[RoundMessages]:
        """Yield the messages of all rounds.

        Args:
            clients_of: Returns the clients of a round, from 0; None: those that the seed of the run samples.
            clock: Virtual time at the start of the phase, in nanoseconds.
        """
        if self.stage.phase.asynchronous is not None:
            yield from self._asynchronous_rounds(clock)
            return
        stage, broadcast, base_rank = self.stage, Broadcast(), 0
        for number in range(stage.phase.rounds):
            start = None if stage.times is None else self._start(stage.times, number, clock, clients_of)
            if start is not None:
                clients = start.clients.tolist()
            else:
                clients = stage.sample_clients(number, repeatable=True) if clients_of is None else clients_of(number)
            served = [] if stage.phase.centralized else clients
            download = dict.fromkeys(served, self.down)
            packet, full = self._changed_sizes(number, base_rank)
            if self.changing or packet is not full:
                charged, broadcast = broadcast.charge(self.stage.messages, packet, full, served, number)
                charged = at_ranks(stage.messages, self.received, charged)
                download = self._messages("download", charged)
            elif stage.ranks is not None:
                charged = at_ranks(stage.messages, self.received, dict.fromkeys(served, full))
                download = self._messages("download", charged)
            upload = self.uploads(served, number)
            timed = None
            if start is not None and stage.times is not None:
                timed = self._timed(stage.times, number, clock, start, download, upload)
                assert timed.schedule is not None
                clock, served = timed.schedule.end, [client for client in served if client not in timed.dropped]
            base_rank = 0 if stage.messages.low_rank is None else stage.messages.low_rank.base_rank(served)
            if timed is not None:
                yield timed
            elif stage.messages.secure is None:
                yield RoundMessages(number + 1, clients, download, upload)
            else:
                yield self._secure(stage.messages.secure, number, clients, download, upload)

    def _asynchronous_rounds(self, clock: int) -> Iterator[RoundMessages]:
        """Yield the messages of asynchronous rounds: a client may download in one and upload in a later one."""
        events, times = self.stage.events(clock), self.stage.times
        assert times is not None
        for number in range(self.stage.phase.rounds):
            this = events.round(number)
            upload = self.uploads(this.clients, number)
            upload |= {client: late_message(times.late_upload(client)) for client in this.refused}
            download = dict.fromkeys(this.sampled, self.down)
            yield RoundMessages(number + 1, this.clients, download, upload, frozenset(this.refused), events=this)

    def _changed_sizes(self, number: int, base_rank: int) -> tuple[Sizes, Sizes]:
        """Return the sizes of what changed since the round before, and of the whole; the first message is the whole."""
        full = self._full_sizes()
        packet = self._sizes("download") if number else full
        return changed_sizes(self.stage.messages, number, self.received, packet, full, base_rank)

    def _messages(self, direction: str, charged: Mapping[int, Sizes]) -> dict[int, Message]:
        """Return the message of each client; clients with the same sizes share it."""
        known = {id(sizes): sizes for sizes in charged.values()}
        messages = {key: self._message(direction, sizes) for key, sizes in known.items()}
        return {client: messages[id(sizes)] for client, sizes in charged.items()}

    def _start(
        self, times: ClientTimes, number: int, clock: int, clients_of: Callable[[int], list[int]] | None
    ) -> Start:
        """Return the start of a round in virtual time; losses, which are not known, count as equal."""
        settings = self.stage.phase.time or RoundTime()
        history = History.empty(self.stage.num_clients) if settings.selection.uses_losses else None
        start = start_round(times, settings, self._request(number), clock, history)
        return start if clients_of is None else Start(start.instant, np.array(clients_of(number), np.int64))

    def _request(self, number: int) -> Request:
        stage, phase = self.stage, self.stage.phase
        return Request(num_sampled(phase, stage.num_clients), phase.poisson or 0.0, stage.sampling_seed, number)

    def _timed(
        self,
        times: ClientTimes,
        number: int,
        clock: int,
        start: Start,
        download: Mapping[int, Message],
        upload: Mapping[int, Message],
    ) -> RoundMessages:
        """Return the messages of a round in virtual time: uploads that are applied, and those in vain."""
        received = np.array([message_bytes(download.get(client, ())) for client in start.clients.tolist()], np.int64)
        settings = self.stage.phase.time or RoundTime()
        schedule = schedule_round(times, settings, self._request(number), clock, start, received)
        applied = schedule.clients[schedule.applied].tolist()
        sent = {client: upload[client] for client in applied if client in upload}
        late = schedule.clients[schedule.wasted].tolist()
        sent |= {client: late_message(times.late_upload(client)) for client in late if client in upload}
        dropped = frozenset(start.clients.tolist()) - frozenset(applied)
        return RoundMessages(number + 1, start.clients.tolist(), download, sent, dropped, schedule)

    def download_bytes(self) -> np.ndarray:
        """Return the bytes of a download of the whole model for each client, int64 [K]."""
        stage = self.stage
        if stage.ranks is None:
            return np.full(stage.num_clients, message_bytes(self.down), np.int64)
        charged = at_ranks(stage.messages, self.received, dict.fromkeys(range(stage.num_clients), self._full_sizes()))
        messages = self._messages("download", charged)
        return np.array([message_bytes(messages[client]) for client in range(stage.num_clients)], np.int64)

    def uploads(self, clients: list[int], number: int) -> dict[int, Message]:
        """Return the upload of each client in a round."""
        low_rank = self.stage.messages.low_rank
        if low_rank is None or (low_rank.ranks is None and not low_rank.selects):
            return dict.fromkeys(clients, self.up)
        names = tuple(low_rank.sent_in(self.sent["weights"], number))
        return {client: self._upload_at(low_rank.rank_of(client), names) for client in clients}

    def _upload_at(self, rank: int, names: tuple[str, ...]) -> Message:
        """Return the upload of these tensors, cut to a rank."""
        if (rank, names) not in self._known_uploads:
            spec, rows = self.stage.messages, list[Row]()
            for part, tensors in self.sent.items():
                own = pick(tensors, names) if part == "weights" else tensors
                own = {name: cut(name, t[None], rank)[0] for name, t in own.items()}
                rows.append(spec.entry(part, own).row(0, 0, "upload", spec.upload_sizes(part, own)))
            self._known_uploads[rank, names] = tuple(rows)
        return self._known_uploads[rank, names]

    def _secure(
        self,
        channel: SecureChannel,
        number: int,
        clients: list[int],
        download: Mapping[int, Message],
        upload: Mapping[int, Message],
    ) -> RoundMessages:
        """Return the messages of a round with those of the protocol of secure aggregation."""
        spec = self.stage.messages
        secure = secure_round(channel.settings, spec.secure_name(number), clients)
        sides: dict[str, dict[int, Message]] = {"download": {}, "upload": {}}
        for client, payloads in secure.protocol_payloads().items():
            own = {"download": download[client], "upload": () if client in secure.dropped else upload[client]}
            for side, messages in sides.items():
                messages[client] = own[side] + self._protocol(tuple(one for one in payloads if one[0] == side))
        return RoundMessages(number + 1, clients, sides["download"], sides["upload"], secure.dropped)

    def _protocol(self, payloads: tuple[Payload, ...]) -> Message:
        return tuple(protocol_row(self.stage.messages, 0, 0, payload) for payload in payloads)

    @cached_property
    def changing(self) -> set[str]:
        """Parts of which the server sends the change since the last round."""
        return {part for part in self.received if self.stage.messages.codec("download", part).broadcasts_deltas}

    def _full_sizes(self) -> Sizes:
        """Return the sizes for a client that receives full weights instead of changes."""
        full = {part: _tensor_sizes(PLAIN, self.received[part]) for part in self.changing}
        return {part: full.get(part, sizes) for part, sizes in self._sizes("download").items()}

    def _sizes(self, direction: str) -> Sizes:
        if direction == "upload":
            return {part: self.stage.messages.upload_sizes(part, tensors) for part, tensors in self.sent.items()}
        parts = self.received
        return {
            part: _tensor_sizes(self.stage.messages.codec(direction, part), tensors) for part, tensors in parts.items()
        }

    def _message(self, direction: str, payload: Sizes) -> Message:
        parts = self.received if direction == "download" else self.sent
        spec = self.stage.messages
        if direction == "upload":
            return tuple(spec.entry(p, parts[p]).row(0, 0, direction, payload[p]) for p in parts)
        counts = {p: sent_values(spec, parts, p, payload[p]) for p in parts}
        return tuple(spec.entry(p, parts[p]).row(0, 0, direction, payload[p], counts[p]) for p in parts)


def message_bytes(message: Message) -> int:
    """Return the encoded bytes of a message."""
    return sum(int(row["payload_bytes"]) for row in message)


def _tensor_sizes(codec: Codec, tensors: Weights) -> dict[str, int]:
    return {name: codec.size(tuple(t.shape)) for name, t in tensors.items()}


def phase_messages(stage: PhaseContext, examples: int = 1) -> PhaseMessages:
    """Return the messages of a phase.

    Raises:
        ConfigError: The algorithm needs the values of tensors to compute its messages.
    """
    found = PhaseMessages(stage, examples)
    try:
        _ = found.down, found.up
    except Exception as error:  # user-defined algorithms may raise anything
        name, reason = type(stage.phase.algorithm).__name__, f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"phases.{stage.index}.algorithm: {name} cannot be planned from shapes: {reason}") from None
    return found
