"""Everything a run's future depends on, after a whole number of rounds: what a commit holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from simfl.client_state import EMPTY, FileClientStore
from simfl.experiment import Phase
from simfl.parameter_groups import pick
from simfl.privacy.mechanism import CLIP
from simfl.protocol import Parts, Server, Weights
from simfl.training.context import PhaseContext
from simfl.transport.broadcast import Broadcast
from simfl.transport.upload import BUFFERS
from simfl.weights import State, flatten, sha256, unflatten


@dataclass(frozen=True)
class Snapshot:
    """State between two rounds. Client memory is held by its digests."""

    phase: int = 0
    round: int = 0  # finished rounds of the phase
    step: int = 0  # finished rounds of the run
    base: Weights = field(default_factory=dict)  # tensors as earlier phases left them
    server: Server = field(default_factory=lambda: Server({}))
    buffers: Weights = field(default_factory=dict)  # running statistics of the global model
    memory: Mapping[int, str] = field(default_factory=dict)  # client -> digest
    broadcast: Broadcast = field(default_factory=Broadcast)
    clip: float | None = None  # to which the next round clips, where it adapts
    charged: Mapping[int, int] = field(default_factory=dict)  # phase -> rounds that the privacy budget has paid for

    def client_state(self, client: int) -> str:
        """The digest of a client's memory."""
        return self.memory.get(client, EMPTY)

    @property
    def companions(self) -> Parts:
        """What the engine itself sends beside an algorithm's parts: running statistics, the clip that adapts."""
        clip = {} if self.clip is None else {CLIP: {"norm": torch.tensor([self.clip])}}
        return ({BUFFERS: self.buffers} if self.buffers else {}) | clip

    @property
    def model(self) -> Weights:
        """The global model: every tensor that training has moved or will move."""
        return {**self.base, **self.server.weights, **self.buffers}

    @property
    def weights_sha256(self) -> str:
        return sha256(self.model)

    def begin(self, stage: PhaseContext) -> Snapshot:
        """Enter a phase: its own trained set, algorithm and optimizer, starting from the model so far."""
        values = {**stage.binding.values(stage.roles.shared + stage.roles.buffers), **self.base}
        weights = pick(values, stage.roles.shared)
        server = Server({n: t.detach().clone() for n, t in weights.items()})
        server = replace(server, state=stage.phase.algorithm.init_server(server.weights, stage.task))
        averaged = stage.roles.buffers if stage.phase.buffers == "average" else ()
        buffers = {n: t.clone() for n, t in pick(values, averaged).items()}
        privacy = None if stage.mechanism is None else stage.mechanism.privacy
        clip = privacy.clip if privacy is not None and privacy.adaptive is not None else None
        return replace(self, server=server, buffers=buffers, broadcast=Broadcast(), clip=clip)

    def end(self, memory: Mapping[int, str]) -> Snapshot:
        """Leave a phase: what it trained becomes the base of the next; `memory` is what clients keep."""
        return replace(
            self, phase=self.phase + 1, round=0, base=self.model, server=Server({}), buffers={}, memory=memory
        )

    def on(self, device: torch.device) -> Snapshot:
        """The same, with its tensors on the device where the server computes."""

        def moved(groups: State) -> State:
            return {key: {name: t.to(device) for name, t in group.items()} for key, group in groups.items()}

        lists = moved({"base": self.base, "weights": self.server.weights, "buffers": self.buffers})
        server = Server(lists["weights"], moved(self.server.state), moved(self.server.optimizer))
        broadcast = replace(self.broadcast, public=moved(self.broadcast.public))
        return replace(self, base=lists["base"], server=server, buffers=lists["buffers"], broadcast=broadcast)

    def tensors(self) -> Weights:
        """All tensors under one level of names, for a commit."""
        groups: State = {"base": self.base, "weights": self.server.weights, "buffers": self.buffers}
        groups |= {f"state:{key}": group for key, group in self.server.state.items()}
        groups |= {f"optimizer:{key}": group for key, group in self.server.optimizer.items()}
        groups |= {f"public:{part}": group for part, group in self.broadcast.public.items()}
        return flatten(groups)

    def facts(self) -> dict[str, Any]:
        """All that is not a tensor, as JSON."""
        return {
            "phase": self.phase,
            "round": self.round,
            "step": self.step,
            "memory": {str(client): digest for client, digest in sorted(self.memory.items())},
            "packets": list(self.broadcast.packets),
            "missed": {str(client): count for client, count in sorted(self.broadcast.missed.items())},
            "clip": self.clip,
            "charged": {str(phase): rounds for phase, rounds in sorted(self.charged.items())},
        }

    @staticmethod
    def restore(tensors: Weights, facts: Mapping[str, Any]) -> Snapshot:
        """The snapshot that a commit was made from, to the bit."""
        groups = unflatten(tensors)

        def under(prefix: str) -> State:
            return {key.partition(":")[2]: group for key, group in groups.items() if key.startswith(f"{prefix}:")}

        missed = {int(client): count for client, count in facts["missed"].items()}
        return Snapshot(
            facts["phase"],
            facts["round"],
            facts["step"],
            groups.get("base", {}),
            Server(groups.get("weights", {}), under("state"), under("optimizer")),
            groups.get("buffers", {}),
            {int(client): digest for client, digest in facts["memory"].items()},
            Broadcast(under("public"), tuple(facts["packets"]), missed),
            facts["clip"],
            {int(phase): rounds for phase, rounds in facts["charged"].items()},
        )


def kept(memory: Mapping[int, str], phase: Phase, store: FileClientStore) -> dict[int, str]:
    """The digests of what clients keep of their memory when they enter a phase."""
    out = {}
    for client, digest in sorted(memory.items()):
        groups = store.get(digest)
        names = _kept_names(phase, list(groups))
        out[client] = store.put({name: groups[name] for name in names}) if names else EMPTY
    return out


def _kept_names(phase: Phase, names: list[str]) -> list[str]:
    return [name for name in names if name.partition(":")[0].rstrip("0123456789") in phase.carry_over]
