"""The state of a run between two rounds: everything that its future depends on, and what a checkpoint stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from simfl.client_state import EMPTY, FileClientStore
from simfl.errors import RunError
from simfl.experiment import Phase
from simfl.parameter_groups import pick
from simfl.privacy.mechanism import CLIP
from simfl.protocol import Parts, Server, Weights
from simfl.runs.checkpoint import StoredCheckpoint
from simfl.runs.folder import JsonObject
from simfl.training.context import PhaseContext
from simfl.transport.broadcast import Broadcast
from simfl.transport.upload import BUFFERS
from simfl.weights import State, flatten, sha256, unflatten

CHANGED_BASE = "changed_base"  # in a checkpoint: frozen tensors that the algorithm changes
SELECTION = "selection"  # in a checkpoint: what the selection of clients has learned
CARRIED_WITH = {"buffers": "personal_params", "model_state": "algorithm"}  # kinds of client state that go together


@dataclass(frozen=True)
class Snapshot:
    """State of a run between two rounds. Client states are on the disk; the snapshot holds their digests."""

    phase: int = 0
    round: int = 0  # finished rounds of the phase
    step: int = 0  # finished rounds of the run
    base_weights: Weights = field(default_factory=dict)  # tensors that earlier phases trained, as these left them
    server: Server = field(default_factory=lambda: Server({}))
    buffers: Weights = field(default_factory=dict)  # running statistics of the global model
    client_states: Mapping[int, str] = field(default_factory=dict)  # client -> digest of its state
    broadcast: Broadcast = field(default_factory=Broadcast)
    clip: float | None = None  # clip norm of the next round; None unless it adapts
    charged: Mapping[int, int] = field(default_factory=dict)  # phase -> rounds charged to the privacy budget
    clock: int = 0  # virtual time at which the server is ready for the next round, in nanoseconds
    phase_clock: int = 0  # virtual time at the start of the phase, in nanoseconds
    versions: Mapping[int, str] = field(default_factory=dict)  # digests of downloads that clients in flight train on
    selection: Weights = field(default_factory=dict)  # what the selection of clients has learned of each; see `History`
    base_rank: int = 0  # rank of the last round's change of the frozen base, see `Algorithm.base_change`

    def client_state(self, client: int) -> str:
        """Return the digest of a client's state; of a client without one, that of the empty state."""
        return self.client_states.get(client, EMPTY)

    @property
    def stored_digests(self) -> set[str]:
        """Digests of everything that the state needs in the store: client states, and versions of the model."""
        return {*self.client_states.values(), *self.versions.values()}

    @property
    def extra_parts(self) -> Parts:
        """The parts that are sent in addition to the algorithm's: running statistics and the adaptive clip norm."""
        clip = {} if self.clip is None else {CLIP: {"norm": torch.tensor([self.clip])}}
        return ({BUFFERS: self.buffers} if self.buffers else {}) | clip

    @property
    def model(self) -> Weights:
        """The global model: every tensor that has been trained, or is trained in this phase."""
        return {**self.base_weights, **self.server.base, **self.server.weights, **self.buffers}

    @property
    def weights_sha256(self) -> str:
        """The hash of the global model."""
        return sha256(self.model)

    def enter_phase(self, context: PhaseContext) -> Snapshot:
        """Enter a phase: start its trained tensors from the model so far, and its algorithm and optimizer afresh."""
        groups = context.parameter_groups
        values = {**context.network.tensors(groups.shared + groups.buffers), **self.base_weights}
        weights = pick(values, groups.shared)
        server = Server({n: t.detach().clone() for n, t in weights.items()})
        base = pick({**context.network.tensors(context.changed_base), **self.base_weights}, context.changed_base)
        server = replace(
            server,
            state=context.phase.algorithm.init_server(server.weights, context.task),
            base={name: t.detach().to(torch.float32, copy=True) for name, t in base.items()},
        )
        buffers = {n: t.clone() for n, t in pick(values, groups.averaged_buffers).items()}
        privacy = None if context.mechanism is None else context.mechanism.privacy
        clip = privacy.clip if privacy is not None and privacy.adaptive is not None else None
        return replace(self, server=server, buffers=buffers, broadcast=Broadcast(), clip=clip, base_rank=0)

    def leave_phase(self, client_states: Mapping[int, str]) -> Snapshot:
        """Leave a phase: its model becomes the base of the next one.

        Args:
            client_states: The digests of the states that the clients carry over, see `carry_over_states`.
        """
        return replace(
            self,
            phase=self.phase + 1,
            round=0,
            base_weights=self.model,
            server=Server({}),
            buffers={},
            client_states=client_states,
            phase_clock=self.clock,
            versions={},
            selection={},
        )

    def to(self, device: torch.device) -> Snapshot:
        """Return the snapshot with its tensors on the device where the server computes."""

        def moved(groups: State) -> State:
            return {key: {name: t.to(device) for name, t in group.items()} for key, group in groups.items()}

        lists = moved({"base": self.base_weights, "weights": self.server.weights, "buffers": self.buffers})
        changed = moved({"base": self.server.base})["base"]
        server = Server(
            lists["weights"], moved(self.server.state), moved(self.server.optimizer), changed, self.server.pairs
        )
        broadcast = replace(self.broadcast, public=moved(self.broadcast.public))
        return replace(self, base_weights=lists["base"], server=server, buffers=lists["buffers"], broadcast=broadcast)

    def tensors(self) -> Weights:
        """Return all tensors under one level of names, for a checkpoint."""
        groups: State = {"base": self.base_weights, "weights": self.server.weights, "buffers": self.buffers}
        groups |= {f"state:{key}": group for key, group in self.server.state.items()}
        groups |= {f"optimizer:{key}": group for key, group in self.server.optimizer.items()}
        groups |= {f"public:{part}": group for part, group in self.broadcast.public.items()}
        groups |= {CHANGED_BASE: self.server.base} if self.server.base else {}
        groups |= {SELECTION: self.selection} if self.selection else {}
        return flatten(groups)

    def values(self) -> JsonObject:
        """Return everything that is not a tensor, as JSON, for a checkpoint."""
        changed: JsonObject = {"base_rank": self.base_rank} if self.server.base else {}
        changed |= {"clock": self.clock} if self.clock else {}
        changed |= {"phase_clock": self.phase_clock} if self.phase_clock else {}
        if self.versions:
            changed["versions"] = {str(version): digest for version, digest in sorted(self.versions.items())}
        return changed | {
            "phase": self.phase,
            "round": self.round,
            "step": self.step,
            "client_states": {str(client): digest for client, digest in sorted(self.client_states.items())},
            "packets": list(self.broadcast.packets),
            "missed": {str(client): count for client, count in sorted(self.broadcast.missed.items())},
            "clip": self.clip,
            "charged": {str(phase): rounds for phase, rounds in sorted(self.charged.items())},
        }

    @staticmethod
    def restore(stored: StoredCheckpoint) -> Snapshot:
        """Return the snapshot that a checkpoint was written from, bit-identical.

        Raises:
            RunError: The checkpoint lacks a value, or has one that this simfl does not know.
        """
        groups = unflatten(stored.tensors)

        def under(prefix: str) -> State:
            return {key.partition(":")[2]: group for key, group in groups.items() if key.startswith(f"{prefix}:")}

        values: JsonObject = stored.values
        try:
            missed = {int(client): count for client, count in values["missed"].items()}
            snapshot = Snapshot(
                values["phase"],
                values["round"],
                values["step"],
                groups.get("base", {}),
                Server(groups.get("weights", {}), under("state"), under("optimizer"), groups.get(CHANGED_BASE, {})),
                groups.get("buffers", {}),
                {int(client): digest for client, digest in values["client_states"].items()},
                Broadcast(under("public"), tuple(values["packets"]), missed),
                values["clip"],
                {int(phase): rounds for phase, rounds in values["charged"].items()},
                base_rank=values["base_rank"] if groups.get(CHANGED_BASE) else 0,
                clock=values.get("clock", 0),
                phase_clock=values.get("phase_clock", 0),
                versions={int(version): digest for version, digest in values.get("versions", {}).items()},
                selection=groups.get(SELECTION, {}),
            )
        except KeyError as error:
            raise RunError(f"checkpoint after round {stored.step}: the value {error} is missing") from None
        if unknown := sorted(values.keys() - snapshot.values().keys()):
            raise RunError(f"checkpoint after round {stored.step}: the value {unknown[0]!r} is unknown")
        return snapshot


def carry_over_states(client_states: Mapping[int, str], phase: Phase, store: FileClientStore) -> dict[int, str]:
    """Write the part of each client's state that the phase to be entered carries over, and return the digests."""
    carried = {}
    for client, digest in sorted(client_states.items()):
        groups = store.get(digest)
        names = [name for name in groups if CARRIED_WITH.get(_kind(name), _kind(name)) in phase.carry_over]
        carried[client] = store.write({name: groups[name] for name in names}) if names else EMPTY
    store.sync(carried.values())
    return carried


def _kind(group: str) -> str:
    """Return the kind of a group of a client's state: `optimizer` of `optimizer1:momentum`."""
    return group.partition(":")[0].rstrip("0123456789")
