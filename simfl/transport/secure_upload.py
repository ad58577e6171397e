"""Uploads under secure aggregation: encoded as integers, masked, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simfl.aggregation.round import Layout
from simfl.protocol import Parts
from simfl.secure_aggregation.channel import MASKED, SecureChannel
from simfl.secure_aggregation.protocol import Payload, SecureRound
from simfl.transport import ledger
from simfl.transport.upload import MessageSpec, check_finite


@dataclass
class MaskedUploads:
    """The uploads of n clients.

    Attributes:
        sent: What the server adds up: one vector per part, [n, values].
        own: What each client knows of its upload, decoded, [n, …].
        num_cut: Numbers of each client that were beyond the clip.
        layouts: The tensors in the vector of each part.
        rows: Ledger rows of each client.
    """

    sent: Parts = field(default_factory=dict)
    own: Parts = field(default_factory=dict)
    num_cut: list[int] = field(default_factory=list)
    layouts: dict[str, Layout] = field(default_factory=dict)
    rows: list[list[ledger.Row]] = field(default_factory=list)


def send_masked(
    spec: MessageSpec,
    channel: SecureChannel,
    secure: SecureRound,
    clients: Sequence[int],
    weights: Sequence[float],
    upload: Parts,
) -> MaskedUploads:
    """Encode, mask and count the uploads [n, …] of n clients.

    Where masks are not computed (`masks`), the server adds up the same integers without them: all masks are removed
    from the sum, so its bits are the same.

    Raises:
        ClientError: An upload is not finite.
    """
    done = MaskedUploads(num_cut=[0] * len(clients), rows=[[] for _ in clients])
    round_number = int(secure.name[-1])
    for part, tensors in upload.items():
        check_finite(tensors, [f"client {client}: upload {part!r}" for client in clients])
        contexts = [spec.context(round_number, "upload", client, part) for client in clients]
        encoded = channel.encode(part, tensors, weights, contexts, secure)
        integers = encoded.integers
        if channel.computes_masks(secure, integers.shape[1]):
            integers = channel.masked(integers, part, clients, secure)
        done.sent[part], done.own[part] = {MASKED: integers}, encoded.own
        done.layouts[part] = encoded.layout
        done.num_cut = [total + count for total, count in zip(done.num_cut, encoded.num_cut, strict=True)]
        entry = spec.entry(part, {name: t[0] for name, t in tensors.items()})
        payload = channel.payload(part, entry.num_values)
        for client, own_rows in zip(clients, done.rows, strict=True):
            own_rows.append(entry.row(round_number, client, "upload", payload))
    return done


def server_view(channel: SecureChannel, secure: SecureRound, done: MaskedUploads, k: int, client: int) -> Parts:
    """Return what the server sees of the upload of one client, the k-th: its masked integers and nothing else."""
    seen: Parts = {}
    for part, tensors in done.sent.items():
        row = tensors[MASKED][k]
        if not channel.computes_masks(secure, len(row)):
            row = channel.masked(row[None], part, [client], secure)[0]
        seen[part] = {MASKED: row}
    return seen


def protocol_rows(spec: MessageSpec, secure: SecureRound) -> list[ledger.Row]:
    """Return the ledger rows of a round's keys, shares, lists of survivors and answers."""
    return [
        protocol_row(spec, int(secure.name[-1]), client, payload)
        for client, payloads in secure.protocol_payloads().items()
        for payload in payloads
    ]


def protocol_row(spec: MessageSpec, round_number: int, client: int, payload: Payload) -> ledger.Row:
    """Return the ledger row of one message of the protocol, which holds no values of the model."""
    direction, part, count = payload
    return spec.entry(part, {}).row(round_number, client, direction, {part: count})
