"""Small test rounds of an experiment's privacy mechanism, with or without noise, with single units left out.

The functions of real rounds are used, on a few clients and units, with one local step so long that every update is
clipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from simfl.aggregation.round import RoundAggregator
from simfl.experiment import Evaluate, Experiment, Local, Privacy
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.server import Sgd
from simfl.privacy.randomness import Randomness
from simfl.protocol import Parts, Weights
from simfl.rounds import apply_round, plan_round
from simfl.run_context import RunContext
from simfl.runs.snapshot import Snapshot
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.sampling import expected_clients
from simfl.session.prepare import account_of, check, partition_of
from simfl.training.executor import Observer
from simfl.training.plan import ClientPlan, CohortPlan, ExecutionMode
from simfl.weights import subtract

MAX_CLIENTS, MAX_UNITS = 3, 3
LONG_STEP = 1e4  # learning rate with which every update is clipped

PlanChange = Callable[[ClientPlan], ClientPlan | None]  # changes a client plan before it is trained; None drops it


@dataclass(frozen=True)
class ReleasedRound:
    """Messages and average that a round released."""

    messages: dict[int, Weights]  # by client, before encoding
    average: Weights
    plans: tuple[ClientPlan, ...]


class PrivacyTestRounds:
    """Test rounds of a few clients of an experiment."""

    def __init__(self, experiment: Experiment, cache: Path, scratch: Path) -> None:
        """Prepare the rounds of an experiment, with data from the cache and client states in the scratch folder."""
        whole = RunContext(experiment, cache)
        self.partition, _ = partition_of(whole)
        check(experiment, whole, self.partition)
        self.sigma = account_of(experiment, self.partition).noise_multiplier
        expected = expected_clients(experiment.phases[0], len(self.partition))
        self.num_clients = max(2, min(MAX_CLIENTS, round(expected), len(self.partition)))
        self.experiment, self.scratch = shrink(experiment, self.num_clients), scratch
        self.privacy = self.experiment.privacy or Privacy()
        mode = "vectorized" if experiment.execution.mode == "vectorized" else "sequential"
        self.execution_mode = ExecutionMode(mode, 1, experiment.execution.program)
        self.run_context = RunContext(self.experiment, cache)
        built = {name: value for name, value in vars(whole).items() if name in ("dataset", "module")}
        vars(self.run_context).update(built)  # cached properties: the data set and the module are built once
        self.randomness = Randomness.fresh()
        self._released: dict[tuple[float, int, int], ReleasedRound] = {}

    def round(self, sigma: float, phase: int = 0, number: int = 0, without: PlanChange | None = None) -> ReleasedRound:
        """Run one round from the initial model and return what it releases.

        Args:
            sigma: The noise multiplier.
            phase: The phase, 0 or 1.
            number: The round of the phase, from 0.
            without: Changes or drops client plans.
        """
        key = (sigma, phase, number)
        if without is None and key in self._released:
            return self._released[key]
        context, messages = self.run_context, MessageRecorder()
        config = WorkerConfig(
            self.experiment,
            context.cache,
            self.scratch,
            self.num_clients,
            context.device.type,
            noise_multiplier=sigma,
            randomness=self.randomness,
        )
        worker = Worker(config, context, home=context.device)
        worker.begin(phase, {})
        executor = worker.executors[phase] = replace(worker.executors[phase], observer=messages)
        phase_context = executor.context
        before = replace(Snapshot(phase=phase).enter_phase(phase_context), round=number)
        plan = plan_round(phase_context, self.partition, before)
        results, trained = RoundAggregator(phase_context.phase.algorithm.reduce, self.num_clients), list[ClientPlan]()
        for cohort in plan.cohorts(phase_context, self.execution_mode):
            changed = _changed(cohort, without)
            trained += changed.clients
            result = worker.train(changed, plan.received)
            result.skipped = [0] * (len(cohort.clients) - len(result.clients))  # clients that were dropped on purpose
            results.take(result)
        after, _ = apply_round(phase_context, plan, results)
        average = subtract(after.server.weights, before.server.weights)
        released = ReleasedRound(messages.messages, average, tuple(trained))
        if without is None:
            self._released[key] = released
        return released


class MessageRecorder(Observer):
    """An observer that records every client's weights as they are uploaded, before encoding."""

    def __init__(self) -> None:
        """Record from now on."""
        self.messages: dict[int, Weights] = {}

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        """Record an upload."""
        self.messages[client] = {name: t.clone() for name, t in upload["weights"].items()}


def shrink(experiment: Experiment, num_clients: int) -> Experiment:
    """Return the experiment with few clients and units, two equal phases, and one local step that is always clipped."""
    privacy, first = experiment.privacy or Privacy(), experiment.phases[0]
    units = None if privacy.groups_per_client is None else min(privacy.groups_per_client, MAX_UNITS)
    privacy = replace(privacy, groups_per_client=units, group_rate=None, min_groups=None, secure=False)
    if privacy.unit == "record" and privacy.clip is not None:  # the gradient is clipped, not the long step
        privacy = replace(privacy, clip=privacy.clip / LONG_STEP)
    phase = replace(
        first,
        local=Local(LocalOptimizer("sgd"), LONG_STEP, steps=1, batch_size=first.local.batch_size),
        server=Sgd(),
        rounds=2,
        participation=None,
        poisson=None,
        clients_per_round=num_clients,
        carry_over=(),
    )
    return replace(experiment, privacy=privacy, phases=(phase, phase), evaluate=Evaluate(every=0))


def without_group(client: int, group: int) -> PlanChange:
    """Return a change that removes a group from a client's plan."""

    def change(plan: ClientPlan) -> ClientPlan:
        if plan.client != client:
            return plan
        kept = [k for k, name in enumerate(plan.unit_names) if name != group]
        return replace(
            plan, units=tuple(plan.units[k] for k in kept), unit_names=tuple(plan.unit_names[k] for k in kept)
        )

    return change


def without_client(client: int) -> PlanChange:
    """Return a change that drops a client."""
    return lambda plan: None if plan.client == client else plan


def with_another_example(client: int, position: int) -> PlanChange:
    """Return a change that replaces one example of a client by the one before it."""

    def change(plan: ClientPlan) -> ClientPlan:
        if plan.client != client:
            return plan
        rows = plan.units[0].copy()
        rows[position % len(rows)] = rows[position - 1]
        return replace(plan, units=(rows,))

    return change


def _changed(cohort: CohortPlan, change: PlanChange | None) -> CohortPlan:
    if change is None:
        return cohort
    changed = (change(plan) for plan in cohort.clients)
    return replace(cohort, clients=tuple(plan for plan in changed if plan is not None))
