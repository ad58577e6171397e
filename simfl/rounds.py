"""One communication round as two pure functions: plan it, and apply what came back.

`plan_round` samples clients and encodes the download. `apply_round` takes the aggregated uploads and steps the server.
Neither trains, writes a file or keeps anything, so the simulation, `simfl replay`, `simfl check-privacy` and autotuning
all call the same two functions. Clients are trained between the two calls, by whoever holds the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simfl.aggregation.round import Layout, RoundAggregator, Unmask
from simfl.client_state import EMPTY
from simfl.data.partition.manifest import Partition
from simfl.errors import RunError
from simfl.privacy.mechanism import Mechanism
from simfl.privacy.observations import clipping_metrics, signal_to_noise
from simfl.protocol import AggregatedUpdates, Parts, Weights
from simfl.runs.record import Rows, round_rows
from simfl.runs.snapshot import Snapshot
from simfl.sampling import expected_clients, sample_groups
from simfl.secure_aggregation.channel import MASKED
from simfl.secure_aggregation.protocol import SecureRound, secure_round
from simfl.timing import timed
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlan, CohortPlan, ExecutionMode, centralized, cohorts
from simfl.transport import ledger
from simfl.transport.broadcast import Broadcast
from simfl.transport.buffers import advanced_buffers
from simfl.transport.secure_upload import protocol_rows
from simfl.transport.upload import BUFFERS


class RoundDraft(NamedTuple):
    """The part of a round that does not depend on the rounds before it."""

    sampled: list[int]  # clients
    client_plans: list[ClientPlan]  # without client state; one plan for all clients where training is centralized
    secure: SecureRound | None = None  # the protocol of the round, if uploads are aggregated securely


@dataclass(frozen=True)
class RoundPlan:
    """A round before any client trains."""

    before: Snapshot  # the server and client states that the round starts from
    sampled: list[int]  # clients
    client_plans: list[ClientPlan]
    received: Parts  # what clients decode from the download
    download_rows: list[ledger.Row]
    broadcast: Broadcast  # the broadcast state after the download
    secure: SecureRound | None = None
    protocol_rows: Sequence[ledger.Row] = ()  # of secure aggregation: its messages besides download and upload

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
    sampled, client_plans, secure = draft or draft_round(context, partition, state.round)
    if secure is not None and secure.refusal and secure.settings.too_few == "stop":
        raise RunError(
            f"round {state.round + 1} of phase {context.index}: {secure.refusal}; too_few: skip leaves out such rounds"
        )
    parts = context.phase.algorithm.download(state.server) | state.extra_parts
    receivers = [] if context.phase.centralized else sampled
    received, rows, broadcast = state.broadcast.send(context.messages, state.round, parts, receivers)
    client_plans = [_with_client_state(plan, state) for plan in client_plans]
    protocol = () if secure is None else protocol_rows(context.messages, secure)
    return RoundPlan(state, sampled, client_plans, received, rows, broadcast, secure, protocol)


def draft_round(context: PhaseContext, partition: Partition, number: int) -> RoundDraft:
    """Sample the clients of a round and list their training rows; uses nothing that earlier rounds have computed."""
    sampled = context.sample_clients(number)
    secure = _secure_round(context, partition, number, sampled)
    plans = [
        _client_plan(context, partition, number, client)
        for client in (sampled if secure is None else secure.senders)  # others leave before they upload anything
    ]
    if context.phase.centralized and plans:
        plans = [centralized(plans, context.phase.local)]
    return RoundDraft(sampled, plans, secure)


def _secure_round(context: PhaseContext, partition: Partition, number: int, sampled: list[int]) -> SecureRound | None:
    """Return the protocol of a round; None without secure aggregation."""
    channel = context.messages.secure
    if channel is None:
        return None
    largest = float(partition.sizes.max()) if channel.weighted else 1.0
    return secure_round(channel.settings, context.messages.secure_name(number), sampled, largest)


def cut_into_cohorts(
    client_plans: list[ClientPlan],
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
    updates = None if plan.is_lost else results.mean(_unmask(context, plan))
    if mechanism is not None and not plan.is_lost:
        expected = expected_clients(context.phase, mechanism.privacy.min_clients or context.num_clients)
        name = (context.index, before.round, "server")
        updates = mechanism.averaged(updates, _num_units(results), expected, plan.received, name)
    client_states = dict(before.client_states)
    for result in results.results:
        client_states |= result.client_states
    after = replace(
        _step_server(context, before, updates),
        client_states=client_states,
        broadcast=plan.broadcast,
        round=before.round + 1,
        step=before.step + 1,
    )
    sampled = [client_plan.client for client_plan in plan.client_plans]
    metrics = {} if updates is None else dict(context.phase.algorithm.metrics(before.server, updates))
    if mechanism is not None and updates is not None:
        metrics |= _private_metrics(mechanism, plan, results, updates, expected)
    sent = [*plan.download_rows, *plan.protocol_rows]
    rows = round_rows(context, after, sampled, sent, results.results, metrics)
    if plan.secure is not None:
        rows["rounds"][0].update(_secure_columns(plan, results))
    return after, rows


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
    cut = sum(row["cut"] for result in results.results for row in result.clients)
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


@timed("server")
def _step_server(context: PhaseContext, before: Snapshot, updates: AggregatedUpdates | None) -> Snapshot:
    """Apply the algorithm's aggregation and the server optimizer; a round without uploads changes nothing."""
    if updates is None:
        return before
    phase, server = context.phase, before.server
    if updates.num_sampled < phase.algorithm.least_uploads():
        raise RunError(
            f"round {before.round + 1} of phase {context.index}: {updates.num_sampled} uploads, but"
            f" {type(phase.algorithm).__name__} needs {phase.algorithm.least_uploads()}; others were skipped"
        )
    delta, algorithm_state = phase.algorithm.aggregate(server, updates)
    optimizer = phase.server.at(before.round, phase.rounds)
    weights, optimizer_state = optimizer.step(server.weights, delta, server.optimizer)
    server = replace(server, weights=weights, state=algorithm_state, optimizer=optimizer_state)
    clip = before.clip if context.mechanism is None else context.mechanism.next_clip(before.clip, updates)
    buffers = advanced_buffers(before.buffers, updates.means[BUFFERS]) if before.buffers else before.buffers
    return replace(before, server=server, buffers=buffers, clip=clip)


def _client_plan(context: PhaseContext, partition: Partition, number: int, client: int) -> ClientPlan:
    """List a client's training rows (those of its sampled groups, where groups are the privacy unit) and its weight."""
    rows, mechanism = partition.rows(client), context.mechanism
    if mechanism is not None and mechanism.unit == "group":
        groups = partition.groups(client)
        names = sample_groups(len(groups), mechanism.privacy, context.sampling_seed, context.index, number, client)
        units = tuple(groups[j][1] for j in names)
        return ClientPlan(client, 1.0, units, EMPTY, unit_names=tuple(names))
    if context.phase.weighting == "uniform":
        return ClientPlan(client, 1.0, (rows,), EMPTY)
    return ClientPlan(client, float(len(rows)), (rows,), EMPTY, len(rows) / partition.mean_size)


def _with_client_state(plan: ClientPlan, state: Snapshot) -> ClientPlan:
    digest = state.client_state(plan.client)
    return plan if plan.state_digest == digest else replace(plan, state_digest=digest)


def _num_units(results: RoundAggregator) -> Sequence[int]:
    """Return the number of privacy units of each client update that came back."""
    return [row["units"] for result in results.results for row in result.clients]
