"""One communication round as two pure functions: plan it, and apply what came back.

`plan_round` samples clients and encodes the download. `apply_round` takes the aggregated uploads and steps the server.
Neither trains, writes a file or keeps anything, so the simulation, `simfl replay`, `simfl check-privacy` and autotuning
all call the same two functions. Clients are trained between the two calls, by whoever holds the workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from simfl.aggregation.columns import Columns
from simfl.aggregation.round import Layout, RoundAggregator, Unmask
from simfl.asynchronous.events import ScheduledRound
from simfl.client_state import EMPTY, FileClientStore
from simfl.data.partition.manifest import Partition
from simfl.errors import RunError
from simfl.optimizers.server import step_in_pieces, step_some
from simfl.privacy.mechanism import Mechanism
from simfl.privacy.observations import clipping_metrics, signal_to_noise
from simfl.protocol import BASE, AggregatedUpdates, Parts, State, Weights
from simfl.runs.record import round_rows
from simfl.runs.round_times import event_columns, time_columns, time_rows
from simfl.runs.snapshot import Snapshot
from simfl.runs.tables import TIMES
from simfl.runs.waiting_rows import Rows
from simfl.sampling import expected_clients, num_sampled, sample_groups
from simfl.secure_aggregation.channel import MASKED
from simfl.secure_aggregation.protocol import SecureRound, secure_round
from simfl.timing import timed
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlans, CohortPlan, ExecutionMode, Origin, centralized, cohorts
from simfl.transport.broadcast import Broadcast, BroadcastResult
from simfl.transport.buffers import advanced_buffers
from simfl.transport.late_upload import late_rows, refused_rows
from simfl.transport.secure_upload import protocol_rows
from simfl.transport.upload import BUFFERS
from simfl.virtual_time.rounds import Request, RoundSchedule, schedule_round, start_round
from simfl.virtual_time.selection import History
from simfl.virtual_time.settings import RoundTime
from simfl.virtual_time.times import ClientTimes


class RoundDraft(NamedTuple):
    """The part of a round that does not depend on the rounds before it."""

    sampled: list[int]  # clients
    client_plans: ClientPlans  # without client state; one plan for all clients where training is centralized
    secure: SecureRound | None = None  # the protocol of the round, if uploads are aggregated securely


@dataclass(frozen=True)
class RoundPlan:
    """A round before any client trains."""

    before: Snapshot  # the server and client states that the round starts from
    sampled: list[int]  # clients
    client_plans: ClientPlans
    received: Parts  # what clients decode from the download
    download_rows: Columns
    broadcast: Broadcast  # the broadcast state after the download
    secure: SecureRound | None = None
    protocol_rows: Columns = field(
        default_factory=Columns
    )  # of secure aggregation: its messages besides download and upload
    schedule: RoundSchedule | None = None  # the round in virtual time; None without profiles
    events: ScheduledRound | None = None  # of asynchronous training; None of a synchronous round
    versions: Mapping[int, str] = field(default_factory=dict)  # stored versions after the round; see `keep_version`

    @property
    def is_lost(self) -> bool:
        """True if too few clients survive for the sum of the uploads to be unmasked, so that it changes nothing."""
        return self.secure is not None and bool(self.secure.refusal)

    def cohorts(
        self, context: PhaseContext, execution_mode: ExecutionMode, num_workers: int | None = None
    ) -> list[CohortPlan]:
        """Cut the round into cohorts for this many workers; None cuts it into the smallest ones."""
        found = cut_into_cohorts(self.client_plans, context, self.before.round, execution_mode, num_workers)
        return found if self.secure is None else [replace(cohort, secure=self.secure) for cohort in found]


def plan_round(
    context: PhaseContext, partition: Partition, state: Snapshot, draft: RoundDraft | None = None
) -> RoundPlan:
    """Plan the next round of the phase: sample clients and encode what they receive.

    Args:
        context: The phase.
        partition: The training rows of each client.
        state: The state that the round starts from; its round number counts the finished rounds of the phase.
        draft: The round's draft, where it was made ahead of time.
    """
    if context.phase.asynchronous is not None:
        return _plan_server_step(context, partition, state)
    if context.times is not None:
        return _plan_timed_round(context, context.times, partition, state)
    sampled, client_plans, secure = draft or draft_round(context, partition, state.round)
    if secure is not None and secure.refusal and secure.settings.too_few == "stop":
        raise RunError(
            f"round {state.round + 1} of phase {context.index}: {secure.refusal}; too_few: skip leaves out such rounds"
        )
    state, sent = _send(context, state, [] if context.phase.centralized else sampled)
    client_plans = replace(client_plans, state_digests=_digests(client_plans, state))
    protocol = Columns() if secure is None else Columns.of(protocol_rows(context.messages, secure))
    return RoundPlan(state, sampled, client_plans, *sent, secure, protocol)


def _send(context: PhaseContext, state: Snapshot, clients: list[int]) -> tuple[Snapshot, BroadcastResult]:
    """Encode what these clients receive; return the state with the pairs of the phase, and what was sent."""
    if context.pairs:
        state = replace(state, server=replace(state.server, pairs=context.pairs))
    parts = context.phase.algorithm.download(state.server) | _changed_base(context, state) | state.extra_parts
    return state, state.broadcast.send(context.messages, state.round, parts, clients, state.base_rank)


def _plan_timed_round(context: PhaseContext, times: ClientTimes, partition: Partition, state: Snapshot) -> RoundPlan:
    """Plan a round in virtual time: only clients whose uploads will be applied are trained."""
    settings, request = context.phase.time or RoundTime(), round_request(context, state.round)
    start = start_round(times, settings, request, state.clock, _history(context, state))
    sampled = start.clients.tolist()
    state, sent = _send(context, state, sampled)
    received = received_bytes(sent.rows, start.clients)
    schedule = schedule_round(times, settings, request, state.clock, start, received)
    applied = schedule.applied
    client_plans = _client_plans(context, partition, state.round, start.clients[applied])
    steps = schedule.steps[applied]
    if (steps < times.steps[start.clients[applied]]).any():
        client_plans = replace(client_plans, steps_per_unit=tuple(steps.tolist()))
    client_plans = replace(client_plans, state_digests=_digests(client_plans, state))
    return RoundPlan(state, sampled, client_plans, *sent, schedule=schedule)


def _plan_server_step(context: PhaseContext, partition: Partition, state: Snapshot) -> RoundPlan:
    """Plan a round of asynchronous training: those clients are trained whose updates its server step applies.

    The download goes to the clients that start in the round, of which some may arrive in later ones.
    """
    number = state.round
    events = context.events(state.phase_clock).round(number)
    state, sent = _send(context, state, events.sampled)
    plans = _client_plans(context, partition, number, np.array(events.clients, np.int64))
    if missing := set(events.versions) - {number, *state.versions}:
        where = f"round {number + 1} of phase {context.index}"
        raise RunError(f"{where}: version {min(missing)} of the model is not stored")
    origins = tuple(
        Origin(version, number - version, "" if version == number else state.versions[version])
        for version in events.versions
    )
    plans = replace(plans, origins=origins, state_digests=_digests(plans, state))
    return RoundPlan(state, events.sampled, plans, *sent, events=events)


def keep_version(plan: RoundPlan, store: FileClientStore) -> RoundPlan:
    """Store the download of an asynchronous round for clients that arrive in later ones; drop those not needed."""
    events = plan.events
    if events is None:
        return plan
    freed = set(events.freed)
    versions = {version: digest for version, digest in plan.before.versions.items() if version not in freed}
    if events.keeps_version:
        versions[events.number] = store.put(plan.received)
    return replace(plan, versions=versions)


def round_request(context: PhaseContext, number: int) -> Request:
    """Return how many clients a round asks for in virtual time; `number` counts from 0."""
    phase = context.phase
    return Request(num_sampled(phase, context.num_clients), phase.poisson or 0.0, context.sampling_seed, number)


def received_bytes(rows: Columns, clients: np.ndarray) -> np.ndarray:
    """Return the bytes that each client receives, int64 [n], from the ledger rows of a download."""
    if not len(rows):
        return np.zeros(len(clients), np.int64)
    totals = np.zeros(len(clients), np.int64)
    np.add.at(totals, np.searchsorted(clients, rows.column("client")), rows.column("payload_bytes"))
    return totals


def _history(context: PhaseContext, state: Snapshot) -> History | None:
    """Return what earlier rounds of the phase have shown of each client; None where selection does not need it."""
    if context.phase.time is None or not context.phase.time.selection.uses_losses:
        return None
    if not state.selection:
        return History.empty(context.num_clients)
    return History(*(state.selection[name].cpu().numpy() for name in History._fields))


def _next_selection(context: PhaseContext, before: Snapshot, results: RoundAggregator) -> Weights:
    """Return what the selection of clients knows after a round."""
    history, clients = _history(context, before), results.clients
    if history is None:
        return {}
    if clients:
        numbers, losses = clients.column("client"), clients.column("loss").astype(np.float64)
        history = history.after(before.round, numbers, losses, clients.column("examples").astype(np.float64))
    return {name: torch.from_numpy(values) for name, values in history._asdict().items()}


def _changed_base(context: PhaseContext, state: Snapshot) -> Parts:
    """Return the frozen tensors that the algorithm has changed, in the model's dtypes, as a part of the download."""
    own = context.network.tensors(tuple(state.server.base))
    return {BASE: {name: t.to(own[name].dtype) for name, t in state.server.base.items()}} if own else {}


def draft_round(context: PhaseContext, partition: Partition, number: int) -> RoundDraft:
    """Sample the clients of a round and list their training rows; uses nothing that earlier rounds have computed."""
    sampled = context.sample_clients(number)
    secure = _secure_round(context, partition, number, sampled)
    senders = sampled if secure is None else secure.senders  # others leave before they upload anything
    plans = _client_plans(context, partition, number, np.array(senders, np.int64))
    if context.phase.centralized and len(plans):
        plans = ClientPlans.of([centralized(plans, context.phase.local)])
    return RoundDraft(sampled, plans, secure)


def _secure_round(context: PhaseContext, partition: Partition, number: int, sampled: list[int]) -> SecureRound | None:
    """Return the protocol of a round; None without secure aggregation."""
    channel = context.messages.secure
    if channel is None:
        return None
    largest = float(partition.sizes.max()) if channel.weighted else 1.0
    return secure_round(channel.settings, context.messages.secure_name(number), sampled, largest)


def cut_into_cohorts(
    client_plans: ClientPlans,
    context: PhaseContext,
    number: int,
    execution_mode: ExecutionMode,
    num_workers: int | None,
) -> list[CohortPlan]:
    """Sort client plans canonically and cut them into cohorts that are subtrees of the round's tree of sums."""
    return cohorts(client_plans, context.phase.local, execution_mode, context.index, number, num_workers)


def apply_round(context: PhaseContext, plan: RoundPlan, results: RoundAggregator) -> tuple[Snapshot, Rows]:
    """Step the server with what the cohorts returned; return the next state and the round's table rows."""
    before, mechanism = plan.before, context.mechanism
    updates = None if plan.is_lost else _aggregated(context, plan, results)
    if mechanism is not None and not plan.is_lost:
        expected = expected_clients(context.phase, mechanism.privacy.min_clients or context.num_clients)
        name = (context.index, before.round, "server")
        updates = mechanism.averaged(updates, _num_units(results), expected, plan.received, name)
    client_states = dict(before.client_states)
    for result in results.results:
        client_states |= result.client_states
    change = None if updates is None else _server_change(context, before, updates)
    metrics = {} if updates is None else dict(context.phase.algorithm.metrics(before.server, updates))
    if mechanism is not None and updates is not None:
        metrics |= _private_metrics(mechanism, plan, results, updates, expected)
    del updates  # its tensors are released as the server steps
    after = replace(
        _step_server(context, before, change),
        client_states=client_states,
        broadcast=plan.broadcast,
        round=before.round + 1,
        step=before.step + 1,
    )
    sent = [plan.download_rows, plan.protocol_rows]
    if plan.schedule is not None and context.times is not None:
        after = replace(after, clock=plan.schedule.end, selection=_next_selection(context, before, results))
        sent.append(Columns.of(list(late_rows(context.times, plan.schedule, before.round))))
    if plan.events is not None and context.times is not None:
        after = replace(after, clock=plan.events.end, versions=plan.versions)
        sent.append(Columns.of(list(refused_rows(context.times, plan.events.refused, before.round))))
    rows = round_rows(context, after, len(plan.client_plans), sent, results, metrics)
    if plan.secure is not None:
        rows["rounds"][0].update(_secure_columns(plan, results))
    if plan.schedule is not None and context.times is not None:
        rows["rounds"][0].update(time_columns(context.times, plan.schedule))
        rows[TIMES] = time_rows(context.index, before.round, plan.schedule)
    if plan.events is not None:
        rows["rounds"][0].update(event_columns(plan.events))
    return after, rows


def _aggregated(context: PhaseContext, plan: RoundPlan, results: RoundAggregator) -> AggregatedUpdates | None:
    """Return the aggregated uploads of a round; None if no client came back."""
    updates = results.mean(_unmask(context, plan), context.pairs)
    low_rank = context.messages.low_rank
    if updates is None or low_rank is None:
        return updates
    return replace(updates, ranks=low_rank.ranks_of(results.clients.items_of("client")))


def _private_metrics(
    mechanism: Mechanism, plan: RoundPlan, results: RoundAggregator, updates: AggregatedUpdates, expected: float
) -> dict[str, float]:
    """Return what clipping and noise did to the updates of a round; see `simfl.privacy.observations`."""
    clip = mechanism.clip_of(plan.received)
    norms = [norm for result in results.results for norm in result.norms]
    found = {} if clip is None else clipping_metrics(norms, clip)
    deviation = mechanism.average_deviation(_num_units(results), expected, plan.received)
    return found if not deviation else found | {"signal_to_noise": signal_to_noise(updates.means["weights"], deviation)}


def _secure_columns(plan: RoundPlan, results: RoundAggregator) -> dict[str, int]:
    """Return the columns of a round of secure aggregation: who left, numbers cut at the clip, and if it was lost."""
    assert plan.secure is not None
    cut = results.clients.total("cut")
    counts = {"dropped": len(plan.secure.dropped), "late": len(plan.secure.late), "cut": cut, "lost": int(plan.is_lost)}
    return {"sampled": len(plan.sampled)} | {f"secure:{name}": count for name, count in counts.items()}


def _unmask(context: PhaseContext, plan: RoundPlan) -> Unmask | None:
    """Return the server's decoding of masked sums; None without secure aggregation."""
    channel, secure = context.messages.secure, plan.secure
    if channel is None or secure is None:
        return None

    def unmask(part: str, total: Weights, layout: Layout, divisor: float) -> Weights:
        means = channel.mean(part, total[MASKED], layout, divisor, secure)
        return {name: t.to(context.device) for name, t in means.items()}

    return unmask


class ServerChange(NamedTuple):
    """Changes of the server by the uploads of a round.

    Attributes:
        delta: The pseudo-gradient of the server optimizer; no one else reads this dictionary.
        state: The new state of the algorithm.
        base: The frozen tensors that the algorithm has changed.
        buffers: Running statistics.
        clip: Clip norm of the next round.
        rank: Rank of the change of the frozen base.
    """

    delta: Weights
    state: State
    base: Weights
    buffers: Weights
    clip: float | None
    rank: int


@timed("server")
def _server_change(context: PhaseContext, before: Snapshot, updates: AggregatedUpdates) -> ServerChange:
    """Return what the algorithm makes of the uploads of a round."""
    phase, server = context.phase, before.server
    if updates.num_sampled < phase.algorithm.least_uploads():
        raise RunError(
            f"round {before.round + 1} of phase {context.index}: {updates.num_sampled} uploads, but"
            f" {type(phase.algorithm).__name__} needs {phase.algorithm.least_uploads()}; others were skipped"
        )
    delta, algorithm_state = phase.algorithm.aggregate(server, updates)
    changes = phase.algorithm.base_change(server, updates)
    base = {name: (server.base[name].double() + change).float() for name, change in changes.items()}
    clip = before.clip if context.mechanism is None else context.mechanism.next_clip(before.clip, updates)
    buffers = advanced_buffers(before.buffers, updates.means[BUFFERS]) if before.buffers else before.buffers
    rank = phase.algorithm.base_rank(updates.ranks) if base else 0
    return ServerChange(dict(delta), algorithm_state, base, buffers, clip, rank)


@timed("server")
def _step_server(context: PhaseContext, before: Snapshot, change: ServerChange | None) -> Snapshot:
    """Apply the server optimizer; a round without uploads changes nothing."""
    if change is None:
        return replace(before, base_rank=0)
    phase, server, low_rank = context.phase, before.server, context.messages.low_rank
    optimizer, takes_turns = phase.server.at(before.round, phase.rounds), low_rank is not None and low_rank.selects
    step = step_some if takes_turns else step_in_pieces
    weights, optimizer_state = step(optimizer, server.weights, change.delta, server.optimizer)
    server = replace(
        server,
        weights=weights,
        state=change.state,
        optimizer=optimizer_state,
        base={**server.base, **change.base},
    )
    return replace(before, server=server, buffers=change.buffers, clip=change.clip, base_rank=change.rank)


def _client_plans(context: PhaseContext, partition: Partition, number: int, clients: np.ndarray) -> ClientPlans:
    """List the training rows of clients (those of sampled groups, where groups are the privacy unit) and weights."""
    mechanism, ones = context.mechanism, np.ones(len(clients))
    if mechanism is not None and mechanism.unit == "group":
        counts = partition.num_groups[clients].tolist()
        names = tuple(
            tuple(sample_groups(count, mechanism.privacy, context.sampling_seed, context.index, number, client))
            for client, count in zip(clients.tolist(), counts, strict=True)
        )
        lengths = np.array([len(own) for own in names], np.int64)
        units = np.repeat(partition.group_clients[clients], lengths) + np.array(list(chain(*names)), np.int64)
        starts, ends = partition.group_starts[units], partition.group_starts[units + 1]
        return ClientPlans(clients, ones, ones, partition.order, starts, ends, lengths, unit_names=names)
    starts, ends = partition.starts[clients], partition.starts[clients + 1]
    counted = ones.astype(np.int64)
    if context.phase.weighting == "uniform":
        return ClientPlans(clients, ones, ones, partition.order, starts, ends, counted)
    weights = (ends - starts).astype(np.float64)
    return ClientPlans(clients, weights, weights / partition.mean_size, partition.order, starts, ends, counted)


def _digests(plans: ClientPlans, state: Snapshot) -> tuple[str, ...]:
    """Return the digest of the stored state of each client; none if no client has a state."""
    if set(state.client_states.values()) <= {EMPTY}:
        return ()
    return tuple(map(state.client_state, plans.clients.tolist()))


def _num_units(results: RoundAggregator) -> Sequence[int]:
    """Return the number of privacy units of each client update that came back."""
    clients = results.clients
    return clients.items_of("units") if clients else ()
