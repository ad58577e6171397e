"""Encoding of messages, and uploads: each is encoded and counted, and the server gets the decoded values.

The tensors of one name are encoded for all clients in one call, with the same bytes as one by one. A lossless codec
with a payload of known length only needs to be counted; tests check that this length is that of its encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from simfl.codecs.base import Codec, MessageContext
from simfl.codecs.casts import Float32
from simfl.errors import ClientError
from simfl.experiment import Codecs
from simfl.privacy.mechanism import CLIP
from simfl.protocol import BASE, Parts, State, Weights
from simfl.secure_aggregation.channel import SecureChannel
from simfl.seeds import SeedName
from simfl.stacking import select_namespace
from simfl.transport import ledger
from simfl.transport.ledger import LedgerEntry, TiedWeights
from simfl.transport.low_rank import LowRankMessages, groups_by_rank, padded, take

PLAIN = Float32()
BUFFERS = "buffers"  # a part besides the algorithm's own: running statistics, always sent in float32


class Transmitted(NamedTuple):
    """One part of a message as the receiver gets it, and the length of each tensor's payload in bytes."""

    tensors: Weights
    payload: dict[str, int]


@dataclass(frozen=True)
class MessageSpec:
    """The formats of the messages of a phase and the accounting of their bytes.

    Attributes:
        codecs: Codecs of the algorithm's parts.
        seed: Seed of the experiment.
        phase: Number of the phase, from 0.
        num_rounds: Rounds of the phase.
        tied_weights: The rule by which tied tensors are charged.
        secure: The encoding of uploads under secure aggregation; None without it.
        low_rank: Sizes of the messages of low-rank adapters; None for algorithms that send all tensors to everyone.
    """

    codecs: Codecs
    seed: int
    phase: int
    num_rounds: int
    tied_weights: TiedWeights = field(default_factory=TiedWeights)
    secure: SecureChannel | None = None
    low_rank: LowRankMessages | None = None

    def codec(self, direction: str, part: str) -> Codec:
        """Return the codec of a part; buffers and the clipping norm are sent in float32."""
        return PLAIN if part in (BUFFERS, CLIP, BASE) else self.codecs.of_part(direction, part)

    def sends_changes(self, part: str) -> bool:
        """Return whether downloads of a part are changes, of which a client needs all since its last round."""
        return part == BASE or self.codec("download", part).broadcasts_deltas

    def selects(self, part: str) -> bool:
        """Return whether rounds differ in the tensors of a part that are sent."""
        return part == "weights" and self.low_rank is not None and self.low_rank.selects

    def secure_name(self, round_number: int) -> tuple[SeedName, ...]:
        """Return the name of a round of secure aggregation, from which its keys, masks and dropouts follow."""
        return (self.seed, "secure_aggregation", self.phase, round_number)

    def upload_sizes(self, part: str, tensors: Weights) -> dict[str, int]:
        """Return the bytes of each tensor of an uploaded part; the maximum, where they depend on values."""
        if self.secure is not None:
            return self.secure.payload(part, sum(t.numel() for t in tensors.values()))
        codec = self.codec("upload", part)
        return {name: codec.size(tuple(t.shape)) for name, t in tensors.items()}

    def is_known(self, round_number: int) -> bool:
        """Return whether clients have what a download contains before it arrives: the initial weights of the run."""
        return self.codecs.shared_start and self.phase == 0 and round_number == 0

    def context(self, round_number: int, direction: str, client: int, part: str) -> MessageContext:
        """Return the identity of a message for its codec; `client` is −1 for what all clients receive."""
        progress = round_number / (self.num_rounds - 1) if self.num_rounds > 1 else 0.0
        return MessageContext((self.seed, self.phase, round_number, direction, client, part), progress)

    def entry(self, part: str, tensors: Weights) -> LedgerEntry:
        """Return the ledger entry of a part. `tensors`: the part of any of the messages."""
        return LedgerEntry(self.phase, part, tensors, self.tied_weights)


class ReceivedUploads(NamedTuple):
    """The uploads of n clients as the server gets them.

    Attributes:
        sent: Decoded parts, [n, …].
        residuals: Encoding error of each client by part, to be stored by the client; only with error feedback.
        rows: Ledger rows of each client.
    """

    sent: Parts
    residuals: list[State]
    rows: list[list[ledger.Row]]


def send_uploads(
    spec: MessageSpec,
    round_number: int,
    clients: Sequence[int],
    upload: Parts,
    received: Parts,
    client_states: Sequence[State],
    checked: bool = True,
) -> ReceivedUploads:
    """Encode, count and decode the stacked uploads of these clients.

    Args:
        spec: Message formats of the phase.
        round_number: Round of the phase, from 0.
        clients: Numbers of the n clients.
        upload: Parts to send, [n, …].
        received: The decoded download.
        client_states: Stored state of each client, with residuals of earlier encodings.
        checked: Whether uploads are checked to be finite before they are encoded.

    Raises:
        ClientError: An upload is not finite, if `checked`.
    """
    sent: Parts = {}
    residuals: list[State] = [{} for _ in clients]
    rows: list[list[ledger.Row]] = [[] for _ in clients]
    for part, tensors in upload.items():
        if checked:
            check_finite(tensors, [f"client {client}: upload {part!r}" for client in clients])
        codec = spec.codec("upload", part)
        if codec.error_feedback:
            stored = [select_namespace(state, "codec").get(part, {}) for state in client_states]
            tensors = _with_residuals(tensors, stored)
        base = received["weights"] if part == "weights" and codec.encode == "weights" else {}
        contexts = [spec.context(round_number, "upload", client, part) for client in clients]
        if spec.low_rank is not None and spec.low_rank.ranks is not None:
            sent[part], part_rows = _send_at_ranks(spec, spec.low_rank, part, tensors, base, contexts, clients)
        else:
            sent[part], payloads = transmit_stacked(codec, tensors, base, contexts)
            entry = spec.entry(part, {name: t[0] for name, t in tensors.items()})
            messages = zip(clients, payloads, strict=True)
            part_rows = [entry.row(round_number, client, "upload", payload) for client, payload in messages]
        if codec.error_feedback:
            for k, own in enumerate(residuals):
                own[part] = {name: t[k] - sent[part][name][k] for name, t in tensors.items()}
        for row, client_rows in zip(part_rows, rows, strict=True):
            client_rows.append(row)
    return ReceivedUploads(sent, residuals, rows)


def _send_at_ranks(
    spec: MessageSpec,
    low_rank: LowRankMessages,
    part: str,
    tensors: Weights,
    base: Weights,
    contexts: Sequence[MessageContext],
    clients: Sequence[int],
) -> tuple[Weights, list[ledger.Row]]:
    """Encode a part of n clients, each cut to its rank; return it padded with zeros, and a ledger row of each."""
    codec, round_number = spec.codec("upload", part), int(contexts[0].names[2])
    arrived = {name: torch.zeros_like(t) for name, t in tensors.items()}
    rows: list[ledger.Row] = [{} for _ in clients]
    for rank, members in groups_by_rank(low_rank, clients).items():
        own = take(tensors, members, rank)
        own_base = {name: t[0] for name, t in take({n: t[None] for n, t in base.items()}, [0], rank).items()}
        decoded, payloads = transmit_stacked(codec, own, own_base, [contexts[k] for k in members])
        entry = spec.entry(part, {name: t[0] for name, t in own.items()})
        for name, tensor in decoded.items():
            index = torch.tensor(members, device=tensor.device)
            arrived[name][index] = padded(tensor, tensors[name].shape[1:]).to(arrived[name].dtype)
        for k, payload in zip(members, payloads, strict=True):
            rows[k] = entry.row(round_number, clients[k], "upload", payload)
    return arrived, rows


def _with_residuals(tensors: Weights, residuals: Sequence[Weights]) -> Weights:
    """Add to each client's tensors [n, …] the error of its earlier encodings."""
    zeros = {name: torch.zeros_like(t[0]) for name, t in tensors.items()}
    return {
        name: t + torch.stack([own.get(name, zeros[name]).to(t.device) for own in residuals])
        for name, t in tensors.items()
    }


def transmit(codec: Codec, tensors: Weights, context: MessageContext) -> Transmitted:
    """Encode and decode one part of one message."""
    arrived, (payload,) = transmit_stacked(codec, {name: t[None] for name, t in tensors.items()}, {}, [context])
    return Transmitted({name: t[0] for name, t in arrived.items()}, payload)


def transmit_stacked(
    codec: Codec, tensors: Weights, base: Weights, contexts: Sequence[MessageContext]
) -> tuple[Weights, list[dict[str, int]]]:
    """Encode and decode one part of n messages ([n, …]); return it decoded, and the payload lengths of each message.

    With a `base`, base + tensor is what is encoded.
    """
    if codec.lossless and codec.fixed_size and not base:
        lengths = {name: codec.size(tuple(t.shape[1:])) for name, t in tensors.items()}
        return tensors, [lengths] * len(contexts)
    arrived: Weights = {}
    payload_lengths: list[dict[str, int]] = [{} for _ in contexts]
    for name, tensor in tensors.items():
        own_contexts = [context.child(name) for context in contexts]
        payloads = codec.encode_stacked(tensor + base[name] if base else tensor, own_contexts)
        decoded = codec.decode_stacked(payloads, tuple(tensor.shape[1:]), own_contexts).to(tensor.device)
        arrived[name] = (decoded - base[name] if base else decoded).to(tensor.dtype)  # codecs decode to float32
        for own, payload in zip(payload_lengths, payloads, strict=True):
            own[name] = len(payload)
    return arrived, payload_lengths


def check_finite(tensors: Weights, names: Sequence[str]) -> None:
    """Raise ClientError for the first row and tensor ([n, …]) with NaN or infinity. `names`: the name of each row."""
    if bool(rows_are_finite(tensors).all()):
        return
    for k, row_name in enumerate(names):
        for name, tensor in tensors.items():  # the sum of finite values may overflow: check each value
            if not bool(torch.isfinite(tensor[k]).all()):
                raise ClientError(f"{row_name}: {name} is not finite")


def rows_are_finite(tensors: Weights) -> Tensor:
    """Return whether each row of tensors [n, …] is finite, [n]; false also where the sum of its values overflows."""
    sums = [t.reshape(len(t), -1).sum(1, dtype=torch.float32) for t in tensors.values()]
    return torch.isfinite(torch.stack(sums).sum(0)) if sums else torch.ones(0, dtype=torch.bool)
