"""A cohort on a worker: load client states, train, privatise, encode, decode, store client states, sum each part.

Execution modes differ in how many clients they train at once, and in nothing that follows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from simfl.aggregation.columns import Columns, Row
from simfl.aggregation.round import CohortResult
from simfl.aggregation.tree import PartSums
from simfl.algorithms.base import Algorithm
from simfl.client_state import EMPTY, ClientStore
from simfl.client_state.background import BackgroundWriter
from simfl.protocol import ClientUpdate, Parts, State, Weights
from simfl.secure_aggregation.protocol import SecureRound
from simfl.stacking import on_host, parts_of, stack_parts, take_row
from simfl.timing import measured
from simfl.training.client_updates import UpdateGroup, train_clients
from simfl.training.context import PhaseContext
from simfl.training.contributions import contributions, reduction
from simfl.training.executor import Executor
from simfl.training.model_states import stored_states
from simfl.training.plan import ClientPlan, CohortPlan, NextRound, no_next_round
from simfl.training.retry import FailureHandler, SkippedClient
from simfl.training.stale_updates import stale_terms
from simfl.transport import ledger
from simfl.transport.buffers import buffer_change
from simfl.transport.secure_upload import MaskedUploads, send_masked, server_view
from simfl.transport.upload import BUFFERS, rows_are_finite, send_uploads
from simfl.weights import flatten, unflatten


def train_cohort(
    executor: Executor,
    store: ClientStore,
    plan: CohortPlan,
    received: Parts,
    on_error: str,
    next_round: NextRound = no_next_round,
) -> CohortResult:
    """Run every client update of a cohort.

    Sums are checked to be finite, single uploads only where a codec cannot encode other values: a GPU is not asked for
    results before all of its work is queued, and meanwhile the batches of the next round are drawn. If a sum is not
    finite, the updates are computed once more, being pure functions, with every upload checked.

    Raises:
        ClientError: An update failed, unless failures are skipped. The message names the client.
        OutOfMemory: The cohort does not fit into memory.
    """
    cohort = _Cohort(executor, store, plan, received, on_error, checks_uploads=_has_lossy_codec(executor.context))
    result = cohort.run(next_round if executor.context.device.type == "cuda" else no_next_round)
    if result is None:
        result = replace(cohort, checks_uploads=True).run()
    assert result is not None
    return result


@dataclass(frozen=True)
class ReleasedUpdates:
    """The updates of n clients after they left the clients.

    Attributes:
        group: The updates.
        sent: Decoded uploads, [n, …].
        client_states: New stored state of each client, on the CPU.
        rows: Ledger rows of each client.
        owned: Whether `sent` has no other reader and may be written to.
        masked: With secure aggregation, further facts of the uploads; `sent` then holds masked integers.
    """

    group: UpdateGroup
    sent: Parts
    client_states: list[State]
    rows: list[list[ledger.Row]]
    owned: bool
    masked: MaskedUploads | None = None


@dataclass(frozen=True)
class CohortRows:
    """Table rows of a cohort while it is trained."""

    uploads: list[ledger.Row] = field(default_factory=list)
    clients: list[Row] = field(default_factory=list)


class UpdateFacts(NamedTuple):
    """Facts of clients that were trained together, on the device.

    Attributes:
        losses: Mean loss of each client, [n].
        num_zero: Number of updates set to zero; None: not counted.
        norms: Norm of each privacy unit's update before clipping, [units]; None: not clipped as a whole.
    """

    losses: Tensor
    num_zero: Tensor | None
    norms: Tensor | None


@dataclass(frozen=True)
class _Cohort:
    """A cohort and what its training needs. `checks_uploads`: whether each upload is checked to be finite."""

    executor: Executor
    store: ClientStore
    plan: CohortPlan
    received: Parts
    on_error: str
    checks_uploads: bool

    def run(self, next_round: NextRound = no_next_round) -> CohortResult | None:
        """Run every update once; None if uploads were not checked and a sum is not finite."""
        context, plan = self.executor.context, self.plan
        result, sums = CohortResult(plan.index, plan.num_positions), PartSums(reduction(context))
        facts, tables, clients = list[UpdateFacts](), CohortRows(), tuple(plan.clients)
        # the units of one client fill a vectorized program
        size = plan.clients_per_batch if plan.execution_mode.mode == "vectorized" and context.mechanism is None else 1
        with BackgroundWriter(self.store.write) as states:
            for first in range(0, len(clients), size):
                began, done = time.perf_counter(), len(tables.clients)
                facts += self._add(clients[first : first + size], result, sums, tables, states)
                trained = len(tables.clients) - done
                result.seconds += [(time.perf_counter() - began) / max(1, trained)] * trained
            with measured("save"):
                result.client_states |= states.digests()
                self.store.publish()
        (result.sums, result.owned), result.gathered, result.dtypes = sums.totals(), sums.gathered, sums.dtypes
        self.executor.draw_ahead(next_round())
        with measured("train"):  # waits for all work of a GPU
            if not self.checks_uploads and not _is_finite(result):
                return None
            _fill_rows(result, tables.clients, facts)
        result.ledger, result.clients = Columns.of(tables.uploads), Columns.of(tables.clients)
        compiled = self.executor.compiled
        result.messages += [] if compiled is None else compiled.new_messages()  # not those of a run that is repeated
        return result

    def _add(
        self,
        clients: Sequence[ClientPlan],
        result: CohortResult,
        sums: PartSums,
        tables: CohortRows,
        states: BackgroundWriter,
    ) -> list[UpdateFacts]:
        """Train clients together and add their uploads to the cohort's sums; return what their rows still lack.

        A method of its own, so that nothing of these clients is held while the next ones are trained.
        """
        handler = FailureHandler(self.executor.context.seed, self.plan, self.on_error, result.messages)
        with measured("load"):
            client_states = {client.client: self.store.get(client.state_digest) for client in clients}
            versions = self._versions(clients)

        def train(some: Sequence[ClientPlan]) -> list[UpdateGroup]:
            with measured("train"):
                return train_clients(self.executor, self.plan, some, client_states, received_by(some, versions))

        try:
            groups: Sequence[UpdateGroup | SkippedClient] = train(clients)
        except Exception as error:
            groups = handler.handle(error, clients, train)
        facts: list[UpdateFacts] = []
        for group in groups:
            if isinstance(group, SkippedClient):
                self._skip(group, result, sums)
                continue
            try:
                released: Sequence[ReleasedUpdates | SkippedClient] = [self._release(group, client_states)]
            except Exception as error:
                released = handler.handle(error, group.plans, partial(self._release_again, group, client_states))
            for part in released:
                if isinstance(part, SkippedClient):
                    self._skip(part, result, sums)
                else:
                    self._store(part, result, sums, tables, states)
                    facts.append(UpdateFacts(part.group.losses, part.group.num_zero, part.group.norms))
        return facts

    def _versions(self, clients: Sequence[ClientPlan]) -> Mapping[str, Parts]:
        """Return the versions that these clients received, by digest; "" is the download of the round."""
        device, found = self.executor.context.device, {"": self.received}
        for digest in dict.fromkeys(client.origin.digest for client in clients if client.origin is not None):
            if digest:
                stored = self.store.get(digest)
                found[digest] = {part: {n: t.to(device) for n, t in own.items()} for part, own in stored.items()}
        return found

    def _release_again(
        self, group: UpdateGroup, client_states: Mapping[int, State], some: Sequence[ClientPlan]
    ) -> list[ReleasedUpdates]:
        """Release a whole group, or one client of it."""
        part = group if len(some) == len(group) else group.only(group.plans.index(some[0]))
        return [self._release(part, client_states)]

    def _release(self, group: UpdateGroup, client_states: Mapping[int, State]) -> ReleasedUpdates:
        """Encode, count and decode the uploads of a group, and compute the new client states.

        Raises:
            ClientError: An upload is not finite, if uploads are checked.
            PrivacyError: An upload did not go through the privacy mechanism.
        """
        context, clients = self.executor.context, [client.client for client in group.plans]
        received = group.received
        if self.plan.secure is not None:
            return self._release_masked(group, clients, self.plan.secure)
        with measured("encode"):
            upload, stored = _upload(context, group, received), [client_states[client] for client in clients]
            upload = _sent_in(context, upload, self.plan.round)
            sent, residuals, rows = send_uploads(
                context.messages, self.plan.round, clients, upload, received, stored, self.checks_uploads
            )
            if self.executor.observer.is_active:
                for k, client in enumerate(clients):
                    self.executor.observer.sent(client, _rows_of(upload, k), _rows_of(sent, k))
            if context.phase.centralized:  # nothing is sent, and no client keeps state
                return ReleasedUpdates(group, sent, [{} for _ in clients], [[] for _ in clients], _is_owned(context))
            states = [
                _new_state(context, group, k, sent, parts_of(received, k), own) for k, own in enumerate(residuals)
            ]
        return ReleasedUpdates(group, sent, states, rows, _is_owned(context))

    def _release_masked(self, group: UpdateGroup, clients: list[int], secure: SecureRound) -> ReleasedUpdates:
        """Encode and mask the uploads of a group; clients know their own, without the noise under the mask."""
        context, channel = self.executor.context, self.executor.context.messages.secure
        assert channel is not None
        with measured("encode"):
            upload, weights = _upload(context, group, self.received), [client.weight for client in group.plans]
            upload = _sent_in(context, upload, self.plan.round)
            done = send_masked(context.messages, channel, secure, clients, weights, upload)
            for k, client in enumerate(clients) if self.executor.observer.is_active else ():
                seen = server_view(channel, secure, done, k, client)
                self.executor.observer.sent(client, _rows_of(upload, k), seen)
            states = [_new_state(context, group, k, done.own, self.received, {}) for k in range(len(clients))]
        return ReleasedUpdates(group, done.sent, states, done.rows, True, done)

    def _store(
        self,
        released: ReleasedUpdates,
        result: CohortResult,
        sums: PartSums,
        tables: CohortRows,
        states: BackgroundWriter,
    ) -> None:
        """Add uploads to the sums, hand over client states, and add the rows of the tables."""
        group, asynchronous = released.group, self.executor.context.phase.asynchronous
        masked = released.masked  # weights are in masked integers already
        weights = [client.weight if masked is None else 1.0 for client in group.plans]
        terms, is_new = contributions(
            self.executor.context, released.sent, group.received, group.update, self.plan.num_sampled
        )
        factors: list[float] = []
        if asynchronous is not None:
            terms, factors, is_new = stale_terms(asynchronous, terms, group.received, self.received, group.plans)
            weights = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
        sums.add(terms, weights, self.plan.clients_per_batch, released.owned and not is_new)
        with measured("save"):
            for client, state in zip(group.plans, released.client_states, strict=True):
                result.client_states[client.client] = EMPTY
                if state:
                    states.add(client.client, state)
        tables.uploads.extend(row for rows in released.rows for row in rows)
        rows = [_client_row(self.plan, group, k) for k in range(len(group))]
        if masked is not None:
            result.layouts |= masked.layouts
            rows = [{**row, "cut": count} for row, count in zip(rows, masked.num_cut, strict=True)]
        if asynchronous is not None:
            own = zip(rows, group.plans, factors, strict=True)
            rows = [{**row, **_origin_columns(client), "factor": factor} for row, client, factor in own]
        tables.clients.extend(rows)

    def _skip(self, skipped: SkippedClient, result: CohortResult, sums: PartSums) -> None:
        result.skipped.append(skipped.client)
        sums.skip()


def received_by(clients: Sequence[ClientPlan], versions: Mapping[str, Parts]) -> Parts:
    """Return what these clients received, stacked where they received different versions; see `StackedParts`."""
    return stack_parts([versions["" if client.origin is None else client.origin.digest] for client in clients])


def _origin_columns(client: ClientPlan) -> Row:
    """Return the columns of an asynchronous update: the version that the client received, and its staleness."""
    assert client.origin is not None
    return {"version": client.origin.version, "staleness": client.origin.staleness}


def _has_lossy_codec(context: PhaseContext) -> bool:
    """Return whether uploads use a lossy codec or integers, which cannot encode values that are not finite."""
    if context.messages.secure is not None:
        return True
    codecs = context.phase.codec
    used = [codecs.upload, *(own.upload for own in codecs.parts.values())]
    return not all(codec.lossless for codec in used if codec is not None)


def _is_finite(result: CohortResult) -> bool:
    """Return whether all sums and gathered uploads are finite; a sum of finite values may overflow and then is not."""
    uploads = [*result.sums.values(), *(one for part in result.gathered.values() for one in part)]
    found = [rows_are_finite({name: t[None] for name, t in upload.items()}) for upload in uploads if upload]
    return not found or bool(torch.cat(found).all())


def _upload(context: PhaseContext, group: UpdateGroup, received: Parts) -> Parts:
    """Return the algorithm's upload and the change of running statistics; PrivacyError if it was not made private."""
    upload = group.upload
    if BUFFERS in received:
        states = [models[context.main_model] for models in group.model_states]
        own = {name: torch.stack([state[name] for state in states]) for name in received[BUFFERS]}
        upload = {**upload, BUFFERS: buffer_change(own, received[BUFFERS])}
    if context.mechanism is not None:
        for unit in group.units:
            bare_steps = unit.num_steps - group.num_noised_steps
            context.mechanism.admit(upload, group.release, bare_steps, unit.client)
    return upload


def _sent_in(context: PhaseContext, upload: Parts, round_number: int) -> Parts:
    """Return the upload without the tensors that the round does not change."""
    low_rank = context.messages.low_rank
    if low_rank is None:
        return upload
    return {**upload, "weights": low_rank.sent_in(upload["weights"], round_number)}


def _is_owned(context: PhaseContext) -> bool:
    """Return whether uploads have no other reader: fresh tensors as the default's deltas, which no client stores."""
    algorithm = type(context.phase.algorithm)
    default = algorithm.upload is Algorithm.upload and algorithm.update_state is Algorithm.update_state
    return default and context.mechanism is None


def _new_state(
    context: PhaseContext, group: UpdateGroup, k: int, sent: Parts, received: Parts, residuals: State
) -> State:
    """Return what client k stores for its next update, by namespace, on the CPU."""
    algorithm, groups = context.phase.algorithm, context.parameter_groups
    stored = {f"codec:{part}": tensors for part, tensors in residuals.items()}
    state = group.state_of(k)
    if type(algorithm).update_state is not Algorithm.update_state:
        update = ClientUpdate(*(t[k] for t in group.update))
        state = algorithm.update_state(_rows_of(sent, k), take_row(group.trained, k), received, state, update)
    stored |= {f"algorithm:{key}": tensors for key, tensors in state.items()}
    if groups.personal_params:
        stored["personal_params:weights"] = _pick_row(group.trained, groups.personal_params, k)
    if context.keeps_local_model:
        stored["local:weights"] = _pick_row(group.trained, groups.shared, k)
    if group.model_states:
        models = group.model_states[k]
        stored |= stored_states(context, models)
        if groups.personal_buffers:
            stored["buffers:weights"] = {name: models[context.main_model][name] for name in groups.personal_buffers}
    for number, moments in enumerate(group.optimizer_states[k]):
        stored |= {f"optimizer{number}:{key}": tensors for key, tensors in moments.items()}
    held = on_host(flatten(stored))
    return unflatten({name: t.contiguous() for name, t in held.items()})


def _rows_of(parts: Parts, k: int) -> Parts:
    return {part: take_row(tensors, k) for part, tensors in parts.items()}


def _pick_row(tensors: Weights, names: tuple[str, ...], k: int) -> Weights:
    return {name: tensors[name][k] for name in names}


def _fill_rows(result: CohortResult, clients: Sequence[Row], facts: Sequence[UpdateFacts]) -> None:
    """Add to the rows of the clients what had to be fetched from the device, all at once."""
    losses = torch.cat([one.losses for one in facts]).tolist() if facts else []
    for row, loss in zip(clients, losses, strict=True):
        row["loss"] = None if math.isnan(loss) else loss
    norms = [one.norms for one in facts if one.norms is not None]
    result.norms = torch.cat(norms).tolist() if norms else []
    counted = [one.num_zero for one in facts if one.num_zero is not None]
    if not counted:
        return
    for row, count in zip(clients, torch.stack(counted).tolist(), strict=True):
        row["not_finite"] = count
        if count:
            where = f"client {row['client']}, phase {row['phase']}, round {row['round']}"
            result.messages.append(f"{where}: {count} updates are not finite, and count as zero")


def _client_row(plan: CohortPlan, group: UpdateGroup, k: int) -> Row:
    client = group.plans[k]
    return {
        "phase": plan.phase,
        "round": plan.round + 1,
        "client": client.client,
        "examples": client.num_examples,
        "units": len(client.units),
        "steps": group.units[k].num_steps,
        "weight": client.weight,
        "loss": None,  # not known yet
    }
