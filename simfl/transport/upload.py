"""The border: every upload is encoded, counted and decoded, and the server gets what was decoded.

A cohort's tensors of one name are encoded in one call, with the bytes of one by one. A codec that loses nothing, and
whose payload has a known length, needs only be counted; tests hold that length to be that of its encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from simfl.codecs.base import Codec, Context
from simfl.codecs.identity import Float32
from simfl.errors import ClientError
from simfl.privacy.mechanism import CLIP
from simfl.protocol import Parts, State, Weights
from simfl.stacking import namespace
from simfl.training.context import PhaseContext
from simfl.transport import ledger

PLAIN = Float32()
STATISTICS = "buffers"  # the engine's own part: running statistics, always in float32

Arrived = tuple[Weights, dict[str, int]]  # what the other side gets of a part, and the length of each payload


class ReceivedUploads(NamedTuple):
    """The uploads of n clients, as the server gets them."""

    sent: Parts  # [n, …]
    lost: list[State]  # of each client what encoding lost, by part: to be remembered, with error feedback
    rows: list[list[ledger.Row]]  # of each client


class UploadChannel:
    """Uploads of one round of a phase, as seen from a worker."""

    def __init__(self, stage: PhaseContext, phase: int, round_number: int) -> None:
        self.stage, self.phase, self.round = stage, phase, round_number

    def send(
        self, clients: Sequence[int], upload: Parts, received: Parts, memories: Sequence[State], look: bool = True
    ) -> ReceivedUploads:
        """The uploads of these clients, stacked, encoded and decoded.

        ClientError for an upload that is not finite, unless nobody is to `look` yet: see `finite`.
        """
        sent: Parts = {}
        lost: list[State] = [{} for _ in clients]
        rows: list[list[ledger.Row]] = [[] for _ in clients]
        for part, given in upload.items():
            if look:
                check_finite(given, [f"client {client}: upload {part!r}" for client in clients])
            codec = codec_of(self.stage, "upload", part)
            if codec.error_feedback:
                given = _with_lost(given, [namespace(memory, "codec").get(part, {}) for memory in memories])
            base = received["weights"] if part == "weights" and codec.encode == "weights" else {}
            contexts = [context_of(self.stage, self.round, "upload", client, part) for client in clients]
            sent[part], sizes = transmit_all(codec, given, base, contexts)
            if codec.error_feedback:
                for k, own in enumerate(lost):
                    own[part] = {name: t[k] - sent[part][name][k] for name, t in given.items()}
            bill = LedgerEntry(self.stage, part, {name: t[0] for name, t in given.items()})
            for client, payload, lines in zip(clients, sizes, rows, strict=True):
                lines.append(bill.row(self.phase, self.round, client, "upload", payload))
        return ReceivedUploads(sent, lost, rows)


def _with_lost(given: Weights, lost: Sequence[Weights]) -> Weights:
    """What each client is to send, and what earlier encodings lost of it."""
    nothing = {name: torch.zeros_like(t[0]) for name, t in given.items()}
    return {
        name: t + torch.stack([own.get(name, nothing[name]).to(t.device) for own in lost]) for name, t in given.items()
    }


def codec_of(stage: PhaseContext, direction: str, part: str) -> Codec:
    """The wire format of a part; the engine's own travel as they are."""
    return PLAIN if part in (STATISTICS, CLIP) else stage.phase.codec.of_part(direction, part)


def context_of(stage: PhaseContext, round_number: int, direction: str, client: int, part: str) -> Context:
    """Where in the run a part is sent; `client` is −1 for what all of them get."""
    progress = round_number / (stage.phase.rounds - 1) if stage.phase.rounds > 1 else 0.0
    return Context((stage.seed, stage.index, round_number, direction, client, part), progress)


def transmit(codec: Codec, tensors: Weights, base: Weights, context: Context) -> Arrived:
    """Encode and decode one part of one message: what arrives, and the length of each payload.

    With a `base`, base + tensor is what is encoded.
    """
    arrived, (sizes,) = transmit_all(codec, {name: t[None] for name, t in tensors.items()}, base, [context])
    return {name: t[0] for name, t in arrived.items()}, sizes


def transmit_all(
    codec: Codec, given: Weights, base: Weights, contexts: Sequence[Context]
) -> tuple[Weights, list[dict[str, int]]]:
    """The same part of several messages ([n, …]): what arrives ([n, …]), and of each the length of each payload."""
    if codec.lossless and codec.fixed and not base:
        sizes = {name: codec.size(tuple(t.shape[1:])) for name, t in given.items()}
        return given, [sizes] * len(contexts)
    arrived: Weights = {}
    lengths: list[dict[str, int]] = [{} for _ in contexts]
    for name, tensor in given.items():
        here = [context.of(name) for context in contexts]
        payloads = codec.encode_all(tensor + base[name] if base else tensor, here)
        decoded = codec.decode_all(payloads, tuple(tensor.shape[1:]), here).to(tensor.device)
        arrived[name] = decoded - base[name] if base else decoded
        for own, payload in zip(lengths, payloads, strict=True):
            own[name] = len(payload)
    return arrived, lengths


class LedgerEntry:
    """What a part of one message costs, under the rule for tied weights."""

    def __init__(self, stage: PhaseContext, part: str, tensors: Weights) -> None:
        """`tensors`: the part of any of the messages."""
        self.stage, self.part = stage, part
        self.aliases = dict(stage.aliases) if part == "weights" else {}
        self.floats = stage.network.floats if self.aliases else dict[str, int]()
        self.values = sum(t.numel() for t in tensors.values())
        self._known: dict[int, tuple[dict[str, int], int, int]] = {}  # payloads, which many messages share, by identity

    def row(self, phase: int, round_number: int, client: int, direction: str, payload: dict[str, int]) -> ledger.Row:
        """The ledger's row. `payload`: bytes of each tensor."""
        if id(payload) not in self._known:
            trained = set(self.stage.roles.trained) if self.aliases else set[str]()
            charged = ledger.charge(payload, self.aliases, self.floats, trained, self.stage.alias_rule)
            self._known[id(payload)] = payload, sum(payload.values()), charged
        _, total, charged = self._known[id(payload)]
        return ledger.row(phase, round_number + 1, client, direction, self.part, self.values, total, charged)


def check_finite(tensors: Weights, where: Sequence[str]) -> None:
    """ClientError naming the first client and tensor ([n, …]) with NaN or infinity; `where`: what each is called."""
    if bool(finite(tensors).all()):
        return
    for k, name_of_client in enumerate(where):
        for name, tensor in tensors.items():  # a finite sum may still overflow: look closely before refusing
            if not bool(torch.isfinite(tensor[k]).all()):
                raise ClientError(f"{name_of_client}: {name} is not finite")


def finite(tensors: Weights) -> Tensor:
    """Whether each row of tensors [n, …] is finite; false too where a sum of its values overflows. [n], [0] of none."""
    totals = [t.reshape(len(t), -1).sum(1, dtype=torch.float32) for t in tensors.values()]
    return torch.isfinite(torch.stack(totals).sum(0)) if totals else torch.ones(0, dtype=torch.bool)
