"""The border: every upload is encoded, counted and decoded, and the server gets what was decoded.

A cohort's tensors of one name are encoded in one call, with the bytes of one by one. A codec that loses nothing, and
whose payload has a known length, needs only be counted; tests hold that length to be that of its encoding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from simfl import ledger
from simfl.codecs.base import Codec, Context
from simfl.codecs.identity import Float32
from simfl.cohort.stacking import namespace
from simfl.cohort.stage import Stage
from simfl.errors import ClientError
from simfl.privacy.mechanism import CLIP
from simfl.protocol import Parts, State, Weights

PLAIN = Float32()
STATISTICS = "buffers"  # the engine's own part: running statistics, always in float32

Sent = tuple[Parts, State, list[ledger.Row]]  # what the server gets of a visit, what encoding lost, the ledger's rows
Arrived = tuple[Weights, dict[str, int]]  # what the other side gets of a part, and the length of each payload


class Wire:
    """Uploads of one round of a phase, as seen from a worker."""

    def __init__(self, stage: Stage, phase: int, round_number: int) -> None:
        self.stage, self.phase, self.round = stage, phase, round_number

    def send(
        self, clients: Sequence[int], uploads: Sequence[Parts], received: Parts, memories: Sequence[State]
    ) -> list[Sent]:
        """The uploads of these clients; what encoding lost is to be remembered, with error feedback."""
        sent: list[Sent] = [({}, {}, []) for _ in clients]
        for part in uploads[0]:
            given = [upload[part] for upload in uploads]
            for client, tensors in zip(clients, given, strict=True):
                check_finite(tensors, f"client {client}: upload {part!r}")
            codec = codec_of(self.stage, "upload", part)
            if codec.error_feedback:
                kept = [namespace(memory, "codec").get(part, {}) for memory in memories]
                given = [
                    {name: t + lost.get(name, 0.0) for name, t in tensors.items()}
                    for tensors, lost in zip(given, kept, strict=True)
                ]
            base = received["weights"] if part == "weights" and codec.of == "weights" else {}
            contexts = [context_of(self.stage, self.round, "upload", client, part) for client in clients]
            arrived = transmit_all(codec, given, base, contexts)
            for client, tensors, (there, sizes), (parts, lost, rows) in zip(clients, given, arrived, sent, strict=True):
                parts[part] = there
                if codec.error_feedback:
                    lost[part] = {name: t - there[name] for name, t in tensors.items()}
                rows.append(message(self.stage, self.phase, self.round, client, "upload", part, tensors, sizes))
        return sent


def codec_of(stage: Stage, direction: str, part: str) -> Codec:
    """The wire format of a part; the engine's own travel as they are."""
    return PLAIN if part in (STATISTICS, CLIP) else stage.phase.codec.of_part(direction, part)


def context_of(stage: Stage, round_number: int, direction: str, client: int, part: str) -> Context:
    """Where in the run a part is sent; `client` is −1 for what all of them get."""
    progress = round_number / (stage.phase.rounds - 1) if stage.phase.rounds > 1 else 0.0
    return Context((stage.seed, stage.index, round_number, direction, client, part), progress)


def transmit(codec: Codec, tensors: Weights, base: Weights, context: Context) -> Arrived:
    """Encode and decode one part of one message: what arrives, and the length of each payload.

    With a `base`, base + tensor is what is encoded.
    """
    return transmit_all(codec, [tensors], base, [context])[0]


def transmit_all(codec: Codec, given: Sequence[Weights], base: Weights, contexts: Sequence[Context]) -> list[Arrived]:
    """The same part of several messages, with equal names."""
    if codec.lossless and codec.fixed and not base:
        return [(tensors, {n: codec.size(tuple(t.shape)) for n, t in tensors.items()}) for tensors in given]
    arrived: list[Arrived] = [({}, {}) for _ in given]
    for name in given[0]:
        for rows in _of_one_shape([tensors[name] for tensors in given]):
            stacked = torch.stack([given[k][name] for k in rows])
            whole = stacked + base[name] if base else stacked
            here = [contexts[k].of(name) for k in rows]
            payloads = codec.encode_all(whole, here)
            decoded = codec.decode_all(payloads, tuple(stacked.shape[1:]), here).to(stacked.device)
            decoded = decoded - base[name] if base else decoded
            for k, tensor, payload in zip(rows, decoded, payloads, strict=True):
                arrived[k][0][name], arrived[k][1][name] = tensor, len(payload)
    return arrived


def _of_one_shape(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Places of tensors that can be stacked."""
    places: dict[tuple[int, ...], list[int]] = {}
    for k, tensor in enumerate(tensors):
        places.setdefault(tuple(tensor.shape), []).append(k)
    return list(places.values())


def message(
    stage: Stage,
    phase: int,
    round_number: int,
    client: int,
    direction: str,
    part: str,
    tensors: Weights,
    payload: dict[str, int],
) -> ledger.Row:
    """The ledger's row for one part of one message."""
    aliases = dict(stage.aliases) if part == "weights" else {}
    floats = {name: t.numel() for name, t in stage.module.named_parameters()} if aliases else {}
    charged = ledger.charge(payload, aliases, floats, set(stage.roles.trained), stage.alias_rule)
    values = sum(t.numel() for t in tensors.values())
    return ledger.row(phase, round_number + 1, client, direction, part, values, sum(payload.values()), charged)


def check_finite(tensors: Weights, where: str) -> None:
    """ClientError naming the first tensor that holds NaN or infinity."""
    if not tensors or bool(torch.isfinite(_total(tensors))):
        return
    for name, tensor in tensors.items():  # a finite sum may still overflow: look closely before refusing
        if not bool(torch.isfinite(tensor).all()):
            raise ClientError(f"{where}: {name} is not finite")


def _total(tensors: Weights) -> Tensor:
    return torch.stack([t.sum(dtype=torch.float32) for t in tensors.values()]).sum()
