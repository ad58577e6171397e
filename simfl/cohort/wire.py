"""The border: every upload is encoded, counted and decoded, and the server gets what was decoded.

A codec that loses nothing needs only be counted: its payload has a known length, which tests hold to be that of its
encoding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simfl import ledger
from simfl.codecs.base import Codec
from simfl.codecs.identity import Float32
from simfl.cohort.stacking import namespace
from simfl.cohort.stage import Stage
from simfl.errors import ClientError
from simfl.protocol import Parts, State, Weights

PLAIN = Float32()
STATISTICS = "buffers"  # the engine's own part: running statistics, always in float32


class Wire:
    """Uploads of one round of a phase, as seen from a worker."""

    def __init__(self, stage: Stage, phase: int, round_number: int) -> None:
        self.stage, self.phase, self.round = stage, phase, round_number
        self.codec = stage.phase.codec.upload

    def send(
        self, client: int, upload: Parts, received: Parts, memory: State, rows: list[ledger.Row]
    ) -> tuple[Parts, State]:
        """What the server gets, and what encoding lost (to be remembered, with error feedback); appends ledger rows."""
        sent: Parts = {}
        lost: State = {}
        before = namespace(memory, "codec")
        for part, tensors in upload.items():
            check_finite(tensors, f"client {client}: upload {part!r}")
            codec = PLAIN if part == STATISTICS else self.codec
            base = received["weights"] if part == "weights" and codec.of == "weights" else {}
            if codec.error_feedback:
                tensors = {name: t + before.get(part, {}).get(name, 0.0) for name, t in tensors.items()}
            sent[part], payload = transmit(codec, tensors, base)
            if codec.error_feedback:
                lost[part] = {name: t - sent[part][name] for name, t in tensors.items()}
            rows.append(message(self.stage, self.phase, self.round, client, "upload", part, tensors, payload))
        return sent, lost


def transmit(codec: Codec, tensors: Weights, base: Weights) -> tuple[Weights, dict[str, int]]:
    """Encode and decode: what arrives, and the length of each payload.

    With a `base`, base + tensor is what is encoded.
    """
    if codec.lossless and not base:
        return tensors, {name: codec.size(tuple(t.shape)) for name, t in tensors.items()}
    arrived, sizes = {}, {}
    for name, tensor in tensors.items():
        whole = tensor + base[name] if base else tensor
        payload = codec.encode(whole)
        sizes[name] = len(payload)
        decoded = codec.decode(payload, tuple(tensor.shape)).to(tensor.device)
        arrived[name] = decoded - base[name] if base else decoded
    return arrived, sizes


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
