"""What will cross the border, message by message, from names and shapes alone.

Made by the functions that a run makes its messages with: what an algorithm sends down and up, the codecs' sizes, the
books of the way down, the ledger's rule for tied weights and the draw of each round's clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from simfl.codecs.base import Codec
from simfl.errors import ConfigError
from simfl.parameter_groups import pick
from simfl.protocol import ClientUpdate, Parts, Server, State, Weights
from simfl.sampling import sample_clients
from simfl.training.context import PhaseContext
from simfl.transport.broadcast import Broadcast, Sizes
from simfl.transport.ledger import Row
from simfl.transport.upload import PLAIN, STATISTICS, LedgerEntry, codec_of

Message = tuple[Row, ...]  # one row of the ledger for each part; whose and when is not filled in


@dataclass(frozen=True)
class Exchange:
    """One round of a phase, counted from 1: what each of its clients gets and sends."""

    round: int
    clients: list[int]  # that train; of centralized examples nothing travels
    download: Mapping[int, Message]
    upload: Mapping[int, Message]


@dataclass(frozen=True)
class Messages:
    """The messages of a phase. `stage` has its network on the meta device; `examples`: of a typical client."""

    stage: PhaseContext
    examples: int = 1

    @cached_property
    def visit(self) -> ClientUpdate:
        """A first visit of a typical client, who is nobody. What it keeps of each example depends on their number."""
        known = {"client": -1, "round": -1, "examples": self.examples, "num_clients": self.stage.num_clients}
        whole = ("client", "key", "round", "step")
        kinds = {name: torch.int64 if name in whole else torch.float32 for name in ClientUpdate._fields}
        return ClientUpdate(**{name: torch.tensor(known.get(name, 1), dtype=kind) for name, kind in kinds.items()})

    @cached_property
    def server(self) -> Server:
        """As it enters the phase."""
        weights = self.stage.binding.values(self.stage.roles.shared)
        return Server(weights, self.stage.phase.algorithm.init_server(weights))

    @cached_property
    def buffers(self) -> Weights:
        """Running statistics that travel."""
        averaged = self.stage.phase.buffers == "average"
        return pick(self.stage.binding.values(self.stage.roles.buffers), self.stage.roles.buffers) if averaged else {}

    @cached_property
    def received(self) -> Parts:
        """What every client gets."""
        statistics = {STATISTICS: self.buffers} if self.buffers else {}
        return self.stage.phase.algorithm.download(self.server) | statistics

    @cached_property
    def state(self) -> State:
        """What a client works with at its first visit."""
        algorithm = self.stage.phase.algorithm
        return algorithm.prepare(self.received, algorithm.init_client(self.received, self.visit), self.visit)

    @cached_property
    def trained(self) -> Weights:
        """A client's model; what its algorithm trains besides never travels."""
        known = {**self.stage.binding.values(self.stage.roles.personal_params), **self.received["weights"]}
        return pick(known, self.stage.roles.trained)

    @cached_property
    def sent(self) -> Parts:
        """What every client sends."""
        upload = self.stage.phase.algorithm.upload(self.trained, self.received, self.state, self.visit)
        return {**upload} | ({STATISTICS: self.buffers} if self.buffers else {})

    @cached_property
    def down(self) -> Message:
        """A message down, once the codec is at work."""
        return self._message("download", self._packet("download"))

    @cached_property
    def up(self) -> Message:
        """A message up."""
        return self._message("upload", self._packet("upload"))

    def varies(self, direction: str, part: str) -> bool:
        """Whether the bytes of a part depend on its values, so that the plan knows only the most they can be."""
        return not codec_of(self.stage, direction, part).fixed

    def rounds(self) -> Iterator[Exchange]:
        """All rounds of the phase, with the clients that the run's seed draws."""
        stage, books, packet, whole = self.stage, Broadcast(), self._packet("download"), self._whole()
        for number in range(stage.phase.rounds):
            clients = sample_clients(stage.phase, stage.num_clients, stage.seed, stage.index, number)
            served = [] if stage.phase.centralized else clients
            download = dict.fromkeys(served, self.down)
            if self.changing:  # the first is no change, and travels whole
                charged, books = books.book(packet if number else whole, whole, served)
                download = {client: self._message("download", sizes) for client, sizes in charged.items()}
            yield Exchange(number + 1, clients, download, dict.fromkeys(served, self.up))

    @cached_property
    def changing(self) -> set[str]:
        """Parts of which the server sends changes."""
        return {part for part in self.received if codec_of(self.stage, "download", part).sends_changes}

    def _whole(self) -> Sizes:
        """What a client pays who takes no packets of changes."""
        whole = {part: _sizes(PLAIN, self.received[part]) for part in self.changing}
        return {part: whole.get(part, sizes) for part, sizes in self._packet("download").items()}

    def _packet(self, direction: str) -> Sizes:
        parts = self.received if direction == "download" else self.sent
        return {part: _sizes(codec_of(self.stage, direction, part), tensors) for part, tensors in parts.items()}

    def _message(self, direction: str, payload: Sizes) -> Message:
        parts = self.received if direction == "download" else self.sent
        return tuple(
            LedgerEntry(self.stage, p, parts[p]).row(self.stage.index, 0, 0, direction, payload[p]) for p in parts
        )


def _sizes(codec: Codec, tensors: Weights) -> dict[str, int]:
    return {name: codec.size(tuple(t.shape)) for name, t in tensors.items()}


def messages(stage: PhaseContext, examples: int = 1) -> Messages:
    """The messages of a phase; ConfigError for an algorithm of one's own that needs values to know what to send."""
    found = Messages(stage, examples)
    try:
        _ = found.down, found.up
    except Exception as error:  # of an algorithm, which may be anybody's
        name, reason = type(stage.phase.algorithm).__name__, f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"phases.{stage.index}.algorithm: {name} cannot be planned from shapes alone: {reason}"
        ) from None
    return found
