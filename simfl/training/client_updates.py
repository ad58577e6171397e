"""Client updates of the clients that are trained together, from their stored state to their uploads.

Tensors are stacked [n, …]. Work that can be done once for all clients is not done for each: a round of a small model
has more clients than milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from simfl.aggregation.tree import TreeReducer
from simfl.algorithms.base import Algorithm
from simfl.errors import ConfigError
from simfl.privacy.mechanism import Mechanism, Release
from simfl.privacy.units import Clipped
from simfl.protocol import EXTRA, ClientUpdate, ModelInfo, Parts, State, Weights
from simfl.stacking import (
    StackedParts,
    map_received,
    parts_of,
    select_namespace,
    stack_rows,
    take_row,
    take_row_like,
    to_device,
)
from simfl.training import sequential, vectorized
from simfl.training.batches import TrainingUnit, draw_unit, units_of
from simfl.training.context import PhaseContext
from simfl.training.draws import keyed_draws
from simfl.training.executor import Executor, TrainingInputs, TrainingResult
from simfl.training.model_states import has_states, initial_states
from simfl.training.plan import ClientPlan, CohortPlan
from simfl.weights import flatten, unflatten

MODES: dict[str, Callable[[Executor, TrainingInputs], TrainingResult]] = {
    "sequential": sequential.train,
    "vectorized": vectorized.train,
}


FACTS = tuple(name for name in ClientUpdate._fields if name not in ("client", "key", "round", "step", "rank"))


@dataclass(frozen=True)
class UpdateGroup:
    """The results of n clients that were trained together, before their uploads are encoded.

    Attributes:
        plans: The clients.
        received: The decoded download: the same for all, or `StackedParts`.
        units: The batches that each was trained on.
        update: Facts of the client updates after the last local step, [n].
        upload: Parts to send, [n, …].
        trained: Trained tensors and extra parameters, [n, …].
        model_states: State of the models of each client, see `training.model_states`; empty if passes change none.
        state: The algorithm's state as `after_step` left it, [n, …]; without the groups that some clients lack.
        prepared: The algorithm's state of each client at the start of the update. Whatever exceeds its shapes in
            `state` is padding.
        optimizer_states: Optimizer states of each client, one per micro-step; empty if they are not kept.
        losses: Mean task loss, [n]; NaN without examples.
        release: The privacy mechanism's release, where the units of a client are released as one message.
        num_noised_steps: Local steps whose gradients were clipped and noised example by example.
        num_zero: Number of privacy units' updates that were not finite, and count as zero; None: not counted.
        norms: Norm of each privacy unit's update before clipping, float64 [units]; None: not clipped as a whole.
    """

    plans: tuple[ClientPlan, ...]
    received: Parts
    units: tuple[TrainingUnit, ...]
    update: ClientUpdate
    upload: Parts
    trained: Weights
    model_states: tuple[dict[str, Weights], ...]
    state: State
    prepared: tuple[State, ...]
    optimizer_states: tuple[tuple[State, ...], ...]
    losses: Tensor
    release: Release | None = None
    num_noised_steps: int = 0
    num_zero: Tensor | None = None
    norms: Tensor | None = None

    def __len__(self) -> int:
        return len(self.plans)

    def state_of(self, k: int) -> State:
        """Return the algorithm's state of client k, without padding."""
        return {
            key: take_row_like(self.state[key], k, group) if key in self.state else group
            for key, group in self.prepared[k].items()
        }

    def only(self, k: int) -> UpdateGroup:
        """Return client k as a group of its own."""
        if len(self) == 1:
            return self
        here = slice(k, k + 1)

        def rows(tensors: Weights) -> Weights:
            return {name: t[here] for name, t in tensors.items()}

        state = {key: {name: t[None] for name, t in group.items()} for key, group in self.state_of(k).items()}
        return replace(
            self,
            plans=self.plans[here],
            received=parts_of(self.received, k),
            units=self.units[here],
            update=ClientUpdate(*(t[here] for t in self.update)),
            upload={part: rows(tensors) for part, tensors in self.upload.items()},
            trained=rows(self.trained),
            model_states=self.model_states[here],
            state=state,
            prepared=self.prepared[here],
            optimizer_states=self.optimizer_states[here],
            losses=self.losses[here],
        )


def train_clients(
    executor: Executor,
    plan: CohortPlan,
    clients: Sequence[ClientPlan],
    client_states: Mapping[int, State],
    received: Parts,
) -> list[UpdateGroup]:
    """Train these clients of a cohort.

    Returns one group; or, where each client releases its privacy units as one message, a group for each client.
    """
    mechanism = executor.context.mechanism
    if mechanism is not None and mechanism.unit != "record":
        return [_train_units(executor, plan, client, client_states, received) for client in clients]
    units = [_unit(executor, plan, client, *units_of(client)[0]) for client in clients]
    return list(_train_batches(executor, plan, units, list(clients), client_states, received))


def _train_units(
    executor: Executor, plan: CohortPlan, client: ClientPlan, client_states: Mapping[int, State], received: Parts
) -> UpdateGroup:
    """Train one client's units separately; clip the update of each, then sum, add noise and divide.

    The client's new state may depend on the release alone, so `trained` is what the server could know of it.
    """
    mechanism = executor.context.mechanism
    assert mechanism is not None
    units = [_unit(executor, plan, client, unit, rows) for unit, rows in units_of(client)]
    groups = _train_batches(executor, plan, units, [client] * len(units), client_states, received)
    clipped, first, losses = _clip_and_sum(mechanism, groups, received)
    name = (plan.phase, plan.round, client.client)
    none = clipped.without_units() if clipped.others else None
    release = mechanism.release(clipped if client.units else none, received, name)
    parts = {part: {name: t[None] for name, t in tensors.items()} for part, tensors in release.parts.items()}
    known = {name: received["weights"][name] + t for name, t in parts["weights"].items()}
    return replace(
        first,
        upload=parts,
        trained={**first.trained, **known},
        optimizer_states=((),),
        losses=_mean_of_finite(losses)[None],
        release=replace(release, parts=parts),
        num_zero=clipped.num_not_finite if mechanism.clip_of(received) is not None else None,
        norms=clipped.norms if client.units and mechanism.clip_of(received) is not None else None,
    )


def _mean_of_finite(losses: Tensor) -> Tensor:
    """Return the mean of the losses that are finite, float64 []; NaN if none is."""
    is_finite = torch.isfinite(losses)
    return torch.where(is_finite, losses.double(), 0.0).sum() / is_finite.sum()


def _clip_and_sum(
    mechanism: Mechanism, groups: Iterator[UpdateGroup], received: Parts
) -> tuple[Clipped, UpdateGroup, Tensor]:
    """Clip units and sum them as they are trained; return also the first one as a group of its own, and all losses."""
    reducer, others, norms, losses, first = TreeReducer(), TreeReducer(), list[Tensor](), list[Tensor](), None
    for group in groups:
        units = mechanism.clipped_parts(group.upload, received)
        reducer.push(units.total, len(group))
        others.push(flatten(units.others), len(group))
        norms.append(units.norms)
        losses.append(group.losses)
        first = first or group.only(0)
    total = reducer.total()
    assert first is not None
    assert total is not None
    return Clipped(total, torch.cat(norms), unflatten(others.total() or {})), first, torch.cat(losses)


def _unit(executor: Executor, plan: CohortPlan, client: ClientPlan, unit: int, rows: np.ndarray) -> TrainingUnit:
    """Return a unit, drawn now or ahead."""
    drawn = executor.drawn_units.pop((plan.round, client.client, unit), None)
    return draw_unit(executor.context, plan, client, unit, rows) if drawn is None else drawn


def _train_batches(
    executor: Executor,
    plan: CohortPlan,
    units: list[TrainingUnit],
    owners: list[ClientPlan],
    client_states: Mapping[int, State],
    received: Parts,
) -> Iterator[UpdateGroup]:
    """Train as many units at a time as the execution mode takes, when the next group is asked for."""
    size = len(units) if plan.execution_mode.mode == "vectorized" else 1
    for first in range(0, len(units), size):
        here = slice(first, first + size)
        yield _train_group(executor, plan, units[here], owners[here], client_states, received)


def _train_group(
    executor: Executor,
    plan: CohortPlan,
    units: list[TrainingUnit],
    owners: list[ClientPlan],
    client_states: Mapping[int, State],
    received: Parts,
) -> UpdateGroup:
    """Train clients together, with keyed draws."""

    def train() -> UpdateGroup:
        return _train_once(executor, plan, units, owners, client_states, received)

    mode, key = plan.execution_mode.mode, units[0].key
    return keyed_draws(executor.context, mode, executor.observer.is_active, key, train)


def _train_once(
    executor: Executor,
    plan: CohortPlan,
    units: list[TrainingUnit],
    owners: list[ClientPlan],
    client_states: Mapping[int, State],
    received: Parts,
) -> UpdateGroup:
    context, n = executor.context, len(units)
    update = client_update(context, plan, units, owners)
    initial = _InitialState(executor, received, update, [_on_device(context, client_states[u.client]) for u in units])
    result = MODES[plan.execution_mode.mode](executor, initial.training_inputs(units))
    context.refuse_late_changes()
    update = update._replace(step=update.num_steps.to(torch.int64))  # all local steps are taken
    trained = result.weights
    if _only_sent(executor):
        uploads, trained = _deltas_in_place(trained, received["weights"])
    else:
        uploads = _uploads(context, n)(trained, received, result.state, update)
    _check_parts(context, uploads)
    if executor.compiled is not None:
        uploads = _copy_shared(uploads, [result.weights, *result.state.values()])
    return UpdateGroup(
        plans=tuple(owners),
        received=received,
        units=tuple(units),
        update=update,
        upload=uploads,
        trained=trained,
        model_states=tuple(result.model_states),
        state=result.state,
        prepared=tuple(initial.prepared),
        optimizer_states=tuple(tuple(result.optimizer_states[k::n]) for k in range(n)),
        losses=_mean_losses(result),
        num_noised_steps=result.num_noised_steps,
        num_zero=result.num_zero,
    )


def _only_sent(executor: Executor) -> bool:
    """Return whether the default upload is all that is read of the trained weights, so that it may take their memory.

    A compiled program trains the next clients in the same memory.
    """
    context = executor.context
    is_read = context.mechanism is not None or context.keeps_local_model or executor.observer.is_active
    is_read |= executor.keeps_trained
    algorithm = context.phase.algorithm
    is_default = not _overrides(algorithm, "upload") and not _overrides(algorithm, "update_state")
    return is_default and not is_read and executor.compiled is None


@torch.no_grad()
def _deltas_in_place(trained: Weights, received: Weights) -> tuple[Parts, Weights]:
    """Return what the default upload returns, in the memory of the trained weights, and the weights that are left."""
    deltas = {}
    for name, start in received.items():
        weights = trained[name].detach()
        fits = torch.result_type(weights, start) == weights.dtype
        deltas[name] = weights.sub_(start) if fits else weights - start
    return {"weights": deltas}, {name: t for name, t in trained.items() if name not in deltas}


def _mean_losses(result: TrainingResult) -> Tensor:
    """Return the mean task loss of each client update, [n]; NaN where no example had a loss."""
    means = result.loss_sums / result.loss_weights.clamp_min(1e-12)
    return torch.where(result.loss_weights > 0, means, torch.nan)


def client_update(
    context: PhaseContext, plan: CohortPlan, units: list[TrainingUnit], owners: Sequence[ClientPlan]
) -> ClientUpdate:
    """Return the facts of these client updates at local step 0, as stacked tensors [n]."""
    n, local = len(units), context.phase.local
    ranks = [context.rank_of(u.client) for u in units]
    rounds = [plan.round_of(owner) for owner in owners]
    whole = [[u.client for u in units], [u.key for u in units], rounds, [0] * n, ranks]
    rates = {id(u.learning_rates): u.learning_rates for u in units}  # few differ
    total_rates = {key: local.optimizer.total_rate(one) for key, one in rates.items()}
    parts = [
        [u.num_steps for u in units],
        [u.num_examples for u in units],
        [owner.relative_weight for owner in owners],
        [context.num_clients] * n,
        [plan.num_sampled] * n,
        [local.learning_rate] * n,
        [total_rates[id(u.learning_rates)] for u in units],
    ]
    device = context.device
    client, key, number, step, rank = to_device(device, np.array(whole, dtype=np.int64))
    facts = dict(zip(FACTS, to_device(device, np.array(parts, dtype=np.float32)), strict=True))
    return ClientUpdate(client=client, key=key, round=number, step=step, rank=rank, **facts)


class _InitialState:
    """The tensors that n client updates start from: from what they received and what each client has stored."""

    def __init__(self, executor: Executor, received: Parts, update: ClientUpdate, client_states: list[State]) -> None:
        self.executor, self.context, self.received = executor, executor.context, received
        self.update, self.client_states = update, client_states
        self.updates = [ClientUpdate(*facts) for facts in zip(*(t.unbind() for t in update), strict=True)]
        self.prepared = self._prepare()

    def training_inputs(self, units: list[TrainingUnit]) -> TrainingInputs:
        """Return the inputs of training. Groups of state that some clients lack are not stacked."""
        states = self.prepared
        state = {key: stack_rows([s[key] for s in states]) for key in states[0] if all(key in s for s in states)}
        return TrainingInputs(
            units, self._weights(), self._model_states(), self.received, state, self.update, self.client_states
        )

    def _prepare(self) -> list[State]:
        """Return the algorithm's state of each client for this update."""
        algorithm = self.context.phase.algorithm
        states = [select_namespace(state, "algorithm") for state in self.client_states]
        pairs = list(zip(states, self.updates, strict=True))
        received = [parts_of(self.received, k) for k in range(len(pairs))]
        if _overrides(algorithm, "init_client"):
            pairs = [
                (state or algorithm.init_client(own, update), update)
                for own, (state, update) in zip(received, pairs, strict=True)
            ]
        if _overrides(algorithm, "prepare_state"):
            pairs = [
                (algorithm.prepare_state(own, state, update), update)
                for own, (state, update) in zip(received, pairs, strict=True)
            ]
        return [state for state, _ in pairs]

    def _weights(self) -> Weights:
        """Return every trained tensor and every extra parameter, to be stepped in place."""
        groups, n = self.context.parameter_groups, len(self.client_states)
        personal = self._personal_params() if groups.personal_params else []
        starts, weights = self._start_weights(), Weights()
        for name in groups.trained:
            shared = self.received["weights"].get(name)
            if name in starts:
                weights[name] = starts[name].contiguous()
            elif shared is None:
                weights[name] = torch.stack([own[name] for own in personal])
            elif isinstance(self.received, StackedParts):
                weights[name] = shared.clone(memory_format=torch.contiguous_format)
            else:
                weights[name] = _copies(shared, n)
        if _overrides(self.context.phase.algorithm, "extra_params"):
            weights |= stack_rows([self._extra_params(k, take_row(weights, k)) for k in range(n)])
        return weights

    def _start_weights(self) -> Weights:
        """Return the tensors from which clients start in place of those received, [n, …]."""
        algorithm = self.context.phase.algorithm
        if not _overrides(algorithm, "start_weights"):
            return {}
        start: Weights = map_received(algorithm.start_weights, self.received, len(self.updates))(self.update)
        return start

    def _personal_params(self) -> list[Weights]:
        """Return the personal tensors of each client: stored ones, else the model's own."""
        initial = self.context.network.tensors(self.context.parameter_groups.personal_params)
        stored = [select_namespace(state, "personal_params").get("weights", {}) for state in self.client_states]
        return [{**initial, **own} for own in stored]

    def _extra_params(self, k: int, weights: Weights) -> Weights:
        context, mentor = self.context, self.context.mentor
        initial = weights | context.network.tensors(context.parameter_groups.shared)
        mentor_weights = initial if mentor is None else mentor.tensors(mentor.trained)
        outputs, mentor_outputs = self.executor.sample_outputs
        model = ModelInfo(outputs, dict(mentor_weights), mentor_outputs, initial, mentor is not None)
        received = parts_of(self.received, k)
        extras = context.phase.algorithm.extra_params(model, received, self.prepared[k], self.updates[k])
        return {f"{EXTRA}/{group}/{name}": t for group, tensors in extras.items() for name, t in tensors.items()}

    def _model_states(self) -> list[dict[str, Weights]]:
        """Return the state of each client's models, to be changed in place."""
        if not has_states(self.context):
            return []
        return [
            initial_states(self.context, parts_of(self.received, k), state)
            for k, state in enumerate(self.client_states)
        ]


def _copies(tensor: Tensor, n: int) -> Tensor:
    """Return n equal rows [n, …]."""
    return tensor.expand(n, *tensor.shape).clone(memory_format=torch.contiguous_format)


def _overrides(algorithm: Algorithm, method: str) -> bool:
    """Return whether the algorithm overrides a method whose default does nothing."""
    return getattr(type(algorithm), method) is not getattr(Algorithm, method)


def _on_device(context: PhaseContext, state: State) -> State:
    return {group: {name: t.to(context.device) for name, t in tensors.items()} for group, tensors in state.items()}


def _uploads(context: PhaseContext, n: int) -> Callable[[Weights, Parts, State, ClientUpdate], Parts]:
    """Return the algorithm's upload for n stacked clients. The default works on stacked tensors as it stands."""
    algorithm = context.phase.algorithm
    if not _overrides(algorithm, "upload"):
        return algorithm.upload

    def uploads(trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        one = map_received(lambda own, t, s, u: algorithm.upload(t, own, s, u), received, n)
        parts: Parts = one(trained, state, update)
        return parts

    return uploads


def _check_parts(context: PhaseContext, uploads: Parts) -> None:
    """Raise ConfigError for an uploaded part that the algorithm's `reduce` does not name."""
    algorithm = context.phase.algorithm
    for part in uploads:
        if part not in algorithm.reduce:
            name, allowed = type(algorithm).__name__, ", ".join(algorithm.reduce)
            raise ConfigError(
                f"phases.{context.index}.algorithm: {name} uploads the part {part!r}, which its `reduce` does not name;"
                f" allowed: {allowed}"
            )


def _copy_shared(uploads: Parts, lent: list[Weights]) -> Parts:
    """Copy uploads that share memory with `lent` tensors, in which a compiled program trains the next clients."""
    lent_storage = {t.untyped_storage().data_ptr() for tensors in lent for t in tensors.values()}

    def own(tensor: Tensor) -> Tensor:
        return tensor.clone() if tensor.untyped_storage().data_ptr() in lent_storage else tensor

    return {part: {name: own(t) for name, t in tensors.items()} for part, tensors in uploads.items()}
