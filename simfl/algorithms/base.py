"""The base class of all federated algorithms. Its defaults are FedAvg.

To write an algorithm, subclass `Algorithm`, override the methods in which it differs from FedAvg, and name the class in
an experiment: `algorithm: {name: "package.module:MyAlgorithm"}`. `simfl.contract.check(MyAlgorithm)` tests it.

An algorithm is a frozen dataclass whose fields are its settings. Its methods are pure functions of tensors: each
returns new values, and none keeps anything in `self`. The engine calls them in this order:

    phase begins        init_server
    each round          download
    each client update  init_client (first update only), prepare_state, start_weights, extra_params
    each local step     for each of micro_steps: the passes of forwards, then its loss; at the end after_step
    after the steps     upload, then update_state
    as uploads arrive   contribution
    end of the round    aggregate, base_change, metrics; the server optimizer then steps with the pseudo-gradient
    evaluation          eval_weights

Methods of the client see one client: what it `received`, its own `state`, and the facts of its `update`. Methods of the
server see the aggregated uploads. No method sees Ray, files, bytes, or the uploads of single clients unless `reduce`
declares "gather".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from simfl.protocol import (
    AggregatedUpdates,
    Batch,
    ClientUpdate,
    Forward,
    Loss,
    MicroStep,
    ModelInfo,
    Outputs,
    Parts,
    Server,
    State,
    Task,
    Weights,
)


@dataclass(frozen=True)
class Algorithm:
    """Federated averaging, in parts that a subclass replaces one by one.

    Attributes:
        reduce: How each uploaded part is aggregated: "weighting" (mean, weighted by the phase's `weighting`), "clients"
            (mean over clients) or "gather" (all uploads). It is an error to upload a part that is missing here. Parts
            that `contribution` adds are reduced in the same way.
        personal_params: Globs of trained tensors that stay on the client.
        frozen_params: Globs of tensors that the algorithm does not train.
        needs_pairs: Whether the algorithm needs low-rank adapters, whose factors it then finds in `Server.pairs`.
        assigns: Whether `aggregate` returns the way to values that the server must reach exactly, so that its optimizer
            must be `sgd` at the rate 1.
        changes_base: Whether `base_change` changes frozen tensors, those of the low-rank pairs.
        eval_models: Models that can be evaluated, and the pass that evaluates each. `eval_weights` returns their
            tensors; running statistics are those of the model that the pass names (`Forward.model`). The engine adds
            the model `local`, a client's model at the end of its last update.
        needs_features: Whether a loss reads `Outputs.features`, or `extra_params` reads `ModelInfo.outputs`.
        needs_targets: Whether a loss reads `Outputs.targets`.
        needs_logits: Whether a loss reads `Outputs.logits`; objectives may compute losses without them.
        needs_positions: Whether a loss reads `batch["position"]`, the index of an example among the client's own
            examples, int64 [B].
        needs_whole_batch: Whether a loss has a term over the whole batch, in `batch_term` or `client_term`.
        privacy_unit: The unit of privacy that the algorithm requires ("record", "group", "client"); None: any or none.
        fedavg_limit: When the global model is bit-identical to FedAvg's, for the documentation; empty: never.
        fedavg_settings: Experiment settings at which it is, by `--set` path; `simfl.contract.check` tests it.
        example: Experiment settings, by `--set` path, that `simfl.contract.check` needs for a small experiment.
    """

    reduce: ClassVar[Mapping[str, str]] = {"weights": "weighting"}
    personal_params: ClassVar[tuple[str, ...]] = ()
    frozen_params: ClassVar[tuple[str, ...]] = ()
    needs_pairs: ClassVar[bool] = False
    assigns: ClassVar[bool] = False
    changes_base: ClassVar[bool] = False
    eval_models: ClassVar[Mapping[str, Forward]] = {"global": Forward(), "personal": Forward()}
    needs_features: ClassVar[bool] = False
    needs_targets: ClassVar[bool] = False
    needs_logits: ClassVar[bool] = False
    needs_positions: ClassVar[bool] = False
    needs_whole_batch: ClassVar[bool] = False
    privacy_unit: ClassVar[str | None] = None
    fedavg_limit: ClassVar[str] = ""
    fedavg_settings: ClassVar[Mapping[str, object] | None] = None
    example: ClassVar[Mapping[str, object]] = {}

    def supported_sgd_settings(self) -> tuple[str, ...] | None:
        """Return None if any local optimizer is valid, else the settings of SGD that are; () for plain SGD alone.

        `clip_norm` and `clip_value` count as settings of SGD here.
        """
        return None

    def least_uploads(self) -> int:
        """Return the smallest number of uploads that `aggregate` is defined for, such as Krum's 2f + 3."""
        return 0

    def least_rounds(self) -> int:
        """Return the smallest number of rounds of a phase in which all stages of the algorithm take place."""
        return 1

    def why_synchronous(self) -> str:
        """Return why updates from different versions of the model cannot be combined; empty if they can.

        By default, an algorithm can run asynchronously if its server adds up deltas as FedAvg's does, since client
        updates are functions of what each client received. Override it for a rule that holds for stale updates too.
        """
        kind = type(self)
        if "gather" in self.reduce.values():
            return "compares single uploads of one version"
        if any(
            getattr(kind, name) is not getattr(Algorithm, name) for name in ("aggregate", "contribution", "base_change")
        ):
            return "combines the uploads of a round by a rule that assumes one version"
        selects = any(getattr(kind, name) is not getattr(Algorithm, name) for name in ("travels", "num_downloaded"))
        if selects or self.client_ranks() is not None:
            return "sends other tensors in each round or to each client"
        return ""

    def products(self) -> Literal["", "logged", "needed"]:
        """Return how the clients' products of low-rank pairs are used; the server computes them from the uploads.

        "logged": for `metrics` alone, and left out where the server does not see single uploads; "needed": for
        `aggregate` or `base_change`; "": they are not.
        """
        return ""

    def travels(self, names: Sequence[str], round: int) -> tuple[str, ...]:
        """Return those of the shared tensors that change in this round, from 0: the others are not sent."""
        return tuple(names)

    def changes(self, names: Sequence[str], round: int) -> tuple[str, ...]:
        """Return those of the shared tensors that the server changes in a round, from 0: those that clients send."""
        return self.travels(names, round)

    def num_downloaded(self, name: str, count: int) -> int:
        """Return how many of the `count` values of a shared tensor clients download, if it has changed."""
        return count

    def client_ranks(self) -> Mapping[int | str, int | float] | tuple[int, ...] | str | None:
        """Return the ranks of the clients' low-rank adapters.

        Shares of the clients by rank, ranks by device, one for each client, or a column of the data. None: all clients
        train adapters of the model's rank.
        """
        return None

    def has_contributions(self) -> bool:
        """Return whether the engine calls `contribution`; if not, the decoded uploads are added up."""
        return type(self).contribution is not Algorithm.contribution

    def downloads(self, names: Sequence[str], round: int) -> tuple[str, ...]:
        """Return those of the shared tensors that clients need from the server in a round, from 0.

        The others have their initial values again, or are computed in `start_weights`.
        """
        return tuple(names)

    # Client

    def forwards(self) -> dict[str, Forward]:
        """Return the forward passes of a local step, by name."""
        return {"student": Forward()}

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """Return the optimizer steps of one local step, in order; by default one step on `loss` of all passes."""
        return (MicroStep(forwards=tuple(self.forwards()), loss=self.loss),)

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Return the state of a client before its first update."""
        return {}

    def prepare_state(self, received: Parts, state: State, update: ClientUpdate) -> State:
        """Return the state that this update works with, computed from the client's state.

        All methods below receive the result as `state`.
        """
        return state

    def start_weights(self, received: Parts, update: ClientUpdate) -> Weights:
        """Return trained tensors from which the client starts in place of those it received."""
        return {}

    def extra_params(self, model: ModelInfo, received: Parts, state: State, update: ClientUpdate) -> dict[str, Weights]:
        """Return further trainable tensors by group, such as a second model or a projection head.

        They are among the trained tensors as `extra/<group>/<name>`, and are initialised like this at every update.
        """
        return {}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the loss of one client's batch.

        Args:
            outputs: Results of the passes, by name. Passes of earlier micro-steps are there too, detached.
            batch: The batch [B, ...], with `mask` [B], 1 for real examples and 0 for padding.
            trained: All trained tensors at this step.
            received: The download, without gradient.
            state: The result of `prepare_state`, or of the last `after_step`.
            update: The facts of the client update; `update.step` counts the local steps.
        """
        return Loss.from_outputs(outputs["student"])

    def needs_after_step(self) -> bool:
        """Return whether the engine calls `after_step`."""
        return False

    def after_step(
        self,
        outputs: dict[str, Outputs],
        gradients: tuple[Weights, ...],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> State:
        """Return the state after a local step, with the same keys, shapes and dtypes.

        Args:
            outputs: Results of all passes of this step, detached.
            gradients: The gradient of each micro-step, before clipping.
            batch: The batch of this step.
            trained: The trained tensors after the step.
            received: The download.
            state: The state before the step.
            update: The facts of the client update.
        """
        return state

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """Return the parts to send after the last local step; by default the delta of every communicated tensor.

        Here and in `update_state`, `update.step` equals `update.num_steps`.
        """
        return {"weights": {name: trained[name] - w for name, w in received["weights"].items()}}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Return the client's state for its next update.

        `sent` is the upload as the server decoded it: after clipping, encoding and decoding.
        """
        return state

    # Server

    def init_server(self, weights: Weights, task: Task) -> State:
        """Return the server's state before the first round of a phase."""
        return {}

    def download(self, server: Server) -> Parts:
        """Return the parts that every sampled client receives."""
        return {"weights": server.weights}

    def contribution(self, sent: Parts, received: Parts, update: ClientUpdate) -> Parts:
        """Return what the server adds up for one client, computed from its decoded upload."""
        return sent

    def known_weights(self, sent: Parts, received: Parts, update: ClientUpdate) -> Weights:
        """Return the shared tensors of a client after its update, as the server knows them from the decoded upload."""
        start = {**received["weights"], **self.start_weights(received, update)}
        return {**start, **{name: start[name] + delta for name, delta in sent["weights"].items()}}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the pseudo-gradient for the server optimizer, and the server's new state.

        The server optimizer *adds* a multiple of the pseudo-gradient; it points like a delta.
        """
        return aggregated.means["weights"], server.state

    def base_change(self, server: Server, aggregated: AggregatedUpdates) -> Weights:
        """Return what is added to frozen tensors, by name; the clients' next download brings it to them.

        Takes the arguments of `aggregate`. It is sent as factors of the rank `base_rank`, or whole if that is shorter.
        """
        return {}

    def base_rank(self, ranks: Sequence[int]) -> int:
        """Return the rank of `base_change` after a round, from the ranks of the adapters of its clients."""
        return sum(ranks)

    def metrics(self, server: Server, aggregated: AggregatedUpdates) -> Mapping[str, float | Tensor]:
        """Return scalars to log for this round, by name: columns `metric:<name>` of the rounds table.

        Takes the arguments of `aggregate`: `server` is the state before the round's step.
        """
        return {}

    # Evaluation

    def eval_weights(self, weights: Weights, state: State) -> dict[str, Weights]:
        """Return the tensors of each model in `eval_models`.

        Args:
            weights: The communicated tensors of the global model.
            state: The state of the client to evaluate; {} for the model `global`.

        The engine adds the client's personal parameters to all models but `global`.
        """
        return {"global": weights, "personal": weights}
