"""A run is a list of phases; a phase is T rounds. READ THIS FIRST.

A round sends parts down to the sampled clients, lets each client train as a pure function of what it received, what
it remembers and a seed, and folds what comes back into the server. Rounds are committed whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simfl.aggregation.round import RoundAggregator
from simfl.client_state import EMPTY
from simfl.errors import OutOfMemory
from simfl.experiment import Experiment
from simfl.protocol import AggregatedUpdates
from simfl.runs.record import Rows
from simfl.runs.rows import round_rows
from simfl.runs.snapshot import Snapshot
from simfl.sampling import expected_clients, sample_clients, sample_groups
from simfl.session.driver import Driver
from simfl.session.session import RunOptions
from simfl.timing import timed
from simfl.training.cohort import CohortResult
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlan, CohortPlan, RoundDraft, centralized, cohorts
from simfl.transport.broadcast import BroadcastResult
from simfl.transport.upload import STATISTICS
from simfl.weights import add


def run(
    experiment: Experiment,
    out: Path | str,
    backend: str = "ray",
    workers: int | str = "auto",
    address: str | None = None,
    resume: bool = False,
    display: Any = None,
    profile: bool = False,
    until: Callable[[], str] = str,
    shared: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run an experiment to its end, from its beginning or from its last commit; returns what `summary.json` holds.

    `out` is a folder, or a URL that fsspec knows. `until` is asked before each round; a word ends the run there, and is
    its status. `shared` holds what runs of this process, one after the other, have in common: data, the model as built.
    """
    asked = RunOptions(out, backend, workers, address, resume, display, profile, shared)
    with Driver.open(experiment, asked) as driver:
        try:
            while driver.snapshot.phase < len(experiment.phases):
                stage = driver.enter_phase(partial(outgoing, driver))
                while driver.snapshot.round < stage.phase.rounds:
                    if status := until():
                        return driver.finish(status)
                    driver.finish_round(*round_that_fits(driver, stage))
                driver.leave_phase()
            return driver.finish("completed")
        except KeyboardInterrupt:  # Interrupted, or what Ray makes of it when the signal finds it waiting
            return driver.finish("interrupted")


def round_that_fits(driver: Driver, stage: PhaseContext) -> tuple[Snapshot, Rows]:
    """The next round; cohorts that do not fit into memory are halved until they do, from this round on."""
    while True:
        try:
            return one_round(driver, stage, driver.snapshot)
        except OutOfMemory as error:
            driver.narrow(error)


def one_round(driver: Driver, stage: PhaseContext, before: Snapshot) -> tuple[Snapshot, Rows]:
    """Sample, send down, train, fold, step: the snapshot after the round, and its rows for the tables."""
    phase, number, mechanism = stage.phase, before.round, stage.mechanism
    charged = driver.account.charge(before.charged, stage.index, number)
    visits, (received, downloads, broadcast) = outgoing(driver, stage, before)
    plans = cohorts(visits, phase.local, driver.execution_mode, stage.index, number, driver.workers)
    costs = [plan.cost(phase.local) for plan in plans]
    total, memory = RoundAggregator(stage), dict(before.memory)
    for result in driver.train(plans, received, costs, partial(upcoming, driver, stage, number + 1)):
        total.take(result)
        memory |= result.memory
    means = total.mean()
    if mechanism is not None:
        expected = expected_clients(phase, stage.num_clients)
        means = mechanism.averaged(means, units_of(total.results), expected, received, (stage.index, number, "server"))
    after = step(stage, before, means)
    after = replace(after, memory=memory, broadcast=broadcast, charged=charged, round=number + 1, step=before.step + 1)
    return after, round_rows(stage, after, [visit.client for visit in visits], downloads, total.results)


def outgoing(driver: Driver, stage: PhaseContext, before: Snapshot) -> tuple[list[ClientPlan], BroadcastResult]:
    """The visits of the next round, and what is sent down to them."""
    number, phase = before.round, stage.phase
    drafted = stage.drafts.pop(number, None)
    clients, visits = draft(driver, stage, number) if drafted is None else drafted
    parts = phase.algorithm.download(before.server) | before.companions
    sent = before.broadcast.send(stage, number, parts, [] if phase.centralized else clients)
    return [_remembering(visit, before.client_state(visit.client)) for visit in visits], sent


def _remembering(visit: ClientPlan, memory: str) -> ClientPlan:
    return visit if visit.memory == memory else replace(visit, memory=memory)


@timed("server")
def step(stage: PhaseContext, before: Snapshot, means: AggregatedUpdates | None) -> Snapshot:
    """The server after the mean of what came back; a round may have nobody."""
    if means is None:
        return before
    phase, server, buffers = stage.phase, before.server, before.buffers
    delta, state = phase.algorithm.aggregate(server, means)
    optimizer = phase.server.at(before.round, phase.rounds)
    weights, moments = optimizer.step(server.weights, delta, server.optimizer)
    server = replace(server, weights=weights, state=state, optimizer=moments)
    clip = before.clip if stage.mechanism is None else stage.mechanism.next_clip(before.clip, means)
    buffers = add(buffers, means.parts[STATISTICS]) if buffers else buffers
    return replace(before, server=server, buffers=buffers, clip=clip)


def draft(driver: Driver, stage: PhaseContext, number: int) -> RoundDraft:
    """Who takes part in a round, and the visits as if nobody remembered anything: all that is known before it."""
    phase = stage.phase
    clients = sample_clients(phase, stage.num_clients, stage.seed, stage.index, number, stage.secure)
    visits = [visit(driver, stage, number, client) for client in clients]
    return clients, [centralized(visits, phase.local)] if phase.centralized and visits else visits


def upcoming(driver: Driver, stage: PhaseContext, number: int) -> list[CohortPlan]:
    """A round drafted while the one before it is trained elsewhere; none after the last."""
    if number == stage.phase.rounds:
        return []
    _, visits = stage.drafts[number] = draft(driver, stage, number)
    return cohorts(visits, stage.phase.local, driver.execution_mode, stage.index, number, driver.workers)


def visit(driver: Driver, stage: PhaseContext, number: int, client: int) -> ClientPlan:
    """A client's visit: its rows (by sampled group, if groups are the unit) and its weight."""
    rows = driver.partition.rows(client)
    if stage.mechanism is not None and stage.mechanism.unit == "group":
        groups = driver.partition.groups(client)
        names = sample_groups(len(groups), stage.mechanism.privacy, stage.seed, stage.index, number, client)
        units = tuple(groups[j][1] for j in names)
        return ClientPlan(client, 1.0, units, EMPTY, names=tuple(names))
    units = (rows,)
    if stage.phase.weighting == "uniform":
        return ClientPlan(client, 1.0, units, EMPTY)
    relative = len(rows) / driver.partition.mean_size
    return ClientPlan(client, float(len(rows)), units, EMPTY, relative)


def units_of(results: Sequence[CohortResult]) -> list[int]:
    """How many units each visit had, of those that came back."""
    return [row["units"] for result in results for row in result.clients]
