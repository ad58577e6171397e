"""What leaves a group of visits: uploads as the server gets them, what each client remembers, the ledger's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simfl.algorithms.base import Algorithm
from simfl.protocol import ClientUpdate, Parts, State, Weights
from simfl.stacking import take_row
from simfl.timing import timed
from simfl.training.client_updates import UpdateGroup
from simfl.training.context import PhaseContext
from simfl.training.plan import CohortPlan
from simfl.transport import ledger
from simfl.transport.upload import BUFFERS, UploadChannel


@dataclass(frozen=True)
class ReleasedUpdates:
    """Of n visits."""

    sent: Parts  # [n, …], decoded
    memory: list[State]  # of each client, on the CPU
    rows: list[list[ledger.Row]]  # of each client
    spare: bool  # whether `sent` is read by nobody but who has this, and may be written to


@timed("encode")
def release(
    stage: PhaseContext,
    plan: CohortPlan,
    group: UpdateGroup,
    received: Parts,
    memories: Mapping[int, State],
    look: bool,
) -> ReleasedUpdates:
    """Encode, count and decode; PrivacyError for an upload that was not made private.

    ClientError for one that is not finite, unless nobody is to `look` yet.
    """
    clients, upload = [visit.client for visit in group.plans], _upload(stage, group, received)
    before = [memories[client] for client in clients]
    sent, lost, rows = UploadChannel(stage, plan.phase, plan.round).send(clients, upload, received, before, look)
    if stage.observer.listens:
        for k, client in enumerate(clients):
            stage.observer.sent(client, _of_row(upload, k), _of_row(sent, k))
    if stage.phase.centralized:  # of centralized examples nothing travels, and there is no client to update_state
        return ReleasedUpdates(sent, [{} for _ in clients], [[] for _ in clients], _is_spare(stage))
    memory = [_remembered(stage, group, k, sent, received, own) for k, own in enumerate(lost)]
    return ReleasedUpdates(sent, memory, rows, _is_spare(stage))


def _is_spare(stage: PhaseContext) -> bool:
    """Whether uploads are tensors of their own, as the default's differences are, and the client remembers none."""
    algorithm = type(stage.phase.algorithm)
    default = algorithm.upload is Algorithm.upload and algorithm.update_state is Algorithm.update_state
    return default and stage.mechanism is None


def _of_row(parts: Parts, k: int) -> Parts:
    return {part: take_row(tensors, k) for part, tensors in parts.items()}


def _upload(stage: PhaseContext, group: UpdateGroup, received: Parts) -> Parts:
    """What the algorithm sends, and the change of running statistics; PrivacyError for what was not made private."""
    upload = group.upload
    if BUFFERS in received:
        statistics = {name: group.buffers[name] - t for name, t in received[BUFFERS].items()}
        upload = {**upload, BUFFERS: statistics}
    if stage.mechanism is not None:
        for item in group.items:
            stage.mechanism.admit(upload, group.release, item.steps - group.private_steps, item.client)
    return upload


def _remembered(stage: PhaseContext, group: UpdateGroup, k: int, sent: Parts, received: Parts, lost: State) -> State:
    """Everything this client will find at its next visit, by namespace."""
    algorithm, memory = stage.phase.algorithm, {f"codec:{part}": tensors for part, tensors in lost.items()}
    state: State = group.state_of(k)
    if type(algorithm).update_state is not Algorithm.update_state:
        mine, visit = take_row(group.trained, k), ClientUpdate(*(t[k] for t in group.visit))
        state = algorithm.update_state(_of_row(sent, k), mine, received, state, visit)
    memory |= {f"algorithm:{key}": tensors for key, tensors in state.items()}
    if stage.roles.personal_params:
        memory["personal_params:weights"] = _some(group.trained, stage.roles.personal_params, k)
    if stage.keep_local:
        memory["local:weights"] = _some(group.trained, stage.roles.shared, k)
    if stage.roles.buffers and stage.phase.buffers == "local":
        memory["buffers:weights"] = take_row(group.buffers, k)
    for number, moments in enumerate(group.optimizer[k]):
        memory |= {f"optimizer{number}:{key}": tensors for key, tensors in moments.items()}
    return {key: {n: t.detach().cpu().contiguous() for n, t in tensors.items()} for key, tensors in memory.items()}


def _some(tensors: Weights, names: tuple[str, ...], k: int) -> Weights:
    return {name: tensors[name][k] for name in names}
