"""The base of all federated algorithms: both halves, as small pure functions. Its defaults are FedAvg.

An algorithm is a frozen dataclass; its fields are its settings. It never sees Ray, files, bytes or other clients'
uploads, and never keeps anything in `self`: what is to be remembered is returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.protocol import (
    AggregatedUpdates,
    Batch,
    ClientUpdate,
    Forward,
    Loss,
    MicroStep,
    ModelFacts,
    Outputs,
    Parts,
    Server,
    State,
    Weights,
)


@dataclass(frozen=True)
class Algorithm:
    """Federated averaging, in parts that can be replaced one by one."""

    # how each uploaded part becomes a mean: "weighting" (the phase's), "clients" (uniform), or "gather" (every upload)
    reduce: ClassVar[Mapping[str, str]] = {"weights": "weighting"}
    personal_params: ClassVar[tuple[str, ...]] = ()  # globs of trained tensors that this algorithm keeps on the client
    # what `models` gives, by name, and how each is run; the engine itself offered_models `local` of every algorithm
    offered_models: ClassVar[Mapping[str, Forward]] = {"global": Forward(), "personal": Forward()}
    limit: ClassVar[str] = ""  # where its global model is FedAvg's, for who reads about it; empty: nowhere
    needs_features: ClassVar[bool] = False  # its loss reads Outputs.features
    needs_targets: ClassVar[bool] = False  # its loss reads Outputs.targets
    hides: ClassVar[str | None] = None  # the unit of privacy that it is made for; None: any, or none
    over_batch: ClassVar[bool] = False  # its loss has a term of a whole batch: `Loss.batch`, or one in `Loss.client`
    needs_positions: ClassVar[bool] = (
        False  # reads batch["position"], an example's place among the client's own, int64 [B]
    )

    def forwards(self) -> dict[str, Forward]:
        """The passes a local step can run, by name."""
        return {"student": Forward()}

    def sgd_with(self) -> tuple[str, ...] | None:
        """The settings of SGD that it is right with, if it needs SGD; None where any local optimizer is right."""
        return None

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """The optimizer steps of one local step, in order."""
        return (MicroStep(runs=tuple(self.forwards()), loss=self.loss),)

    def init_server(self, weights: Weights) -> State:
        """Server memory before the first round of a phase."""
        return {}

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Client memory at its first update, from what it received."""
        return {}

    def prepare(self, received: Parts, state: State, update: ClientUpdate) -> State:
        """What a update works with, from what the client remembers; the functions below are given this."""
        return state

    def extra(self, facts: ModelFacts, received: Parts, state: State, update: ClientUpdate) -> dict[str, Weights]:
        """Further trainable tensors by group: a second model, a projection head. They start here at each update."""
        return {}

    def download(self, server: Server) -> Parts:
        """What every sampled client receives."""
        return {"weights": server.weights}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """The loss of one client's batch."""
        return Loss.of(outputs["student"])

    def observes(self) -> bool:
        """Whether `observe` is to be called."""
        return False

    def observe(
        self,
        outputs: dict[str, Outputs],
        gradients: tuple[Weights, ...],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> State:
        """`state` after a local step, for what changes while a client trains; same keys, shapes and dtypes.

        `gradients`: of each micro-step, unclipped. `trained`: after the step.
        """
        return state

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """What the client sends after its last step: by default the delta of every communicated tensor."""
        return {"weights": {name: trained[name] - w for name, w in received["weights"].items()}}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """New client memory. `sent` is what the server got: after clipping, encoding and decoding."""
        return state

    def aggregate(self, server: Server, means: AggregatedUpdates) -> tuple[Weights, State]:
        """The pseudo-gradient for the server optimizer, and new server memory."""
        return means.parts["weights"], server.state

    def models(self, weights: Weights, state: State) -> dict[str, Weights]:
        """The models that can be evaluated, from the global weights and one client's memory ({} for `global`).

        The engine adds a client's private tensors to all but `global`.
        """
        return {"global": weights, "personal": weights}
