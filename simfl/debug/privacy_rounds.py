"""Rounds of an experiment's own mechanism, made at will: small, with or without noise, with units left out.

The engine's own round is run on a few clients, a few units and one local step, so long that every update is clipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simfl.aggregation.round import RoundAggregator
from simfl.experiment import Evaluate, Experiment, Local, Privacy
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.server import Sgd
from simfl.protocol import Parts, Weights
from simfl.rounds import apply_round, plan_round
from simfl.run_context import RunContext
from simfl.runs.snapshot import Snapshot
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.sampling import expected_clients
from simfl.session.prepare import account_of, check, partition_of
from simfl.training.observer import Observer
from simfl.training.plan import ClientPlan, ExecutionMode
from simfl.weights import subtract

CLIENTS, UNITS = 3, 3  # looked at, at most
LONG = 1e4  # the local step's learning rate, with which every update is clipped

Change = Callable[[ClientPlan], ClientPlan | None]  # of a visit before it is made; None: it is not made


@dataclass(frozen=True)
class Round:
    """What a round released."""

    messages: dict[int, Weights]  # by client, as they left
    average: Weights
    plans: tuple[ClientPlan, ...]


class PrivacyTestRounds:
    """A few clients of the experiment, and rounds made of them at will."""

    def __init__(self, experiment: Experiment, cache: Path, scratch: Path) -> None:
        whole = RunContext(experiment, cache)
        self.partition, _ = partition_of(whole)
        check(experiment, whole, self.partition)
        self.sigma = account_of(experiment, self.partition).noise_multiplier
        expected = expected_clients(experiment.phases[0], len(self.partition))
        self.clients = max(2, min(CLIENTS, round(expected), len(self.partition)))
        self.experiment, self.scratch = small(experiment, self.clients), scratch
        self.execution_mode = ExecutionMode(
            "vectorized" if experiment.execution.mode == "vectorized" else "sequential", 1, experiment.execution.program
        )
        self.setting = RunContext(self.experiment, cache)
        self.setting.__dict__.update({k: v for k, v in whole.__dict__.items() if k in ("dataset", "module")})
        self.privacy, self.seen = self.experiment.privacy or Privacy(), dict[tuple[Any, ...], Round]()

    def round(self, sigma: float, phase: int = 0, number: int = 0, without: Change | None = None) -> Round:
        """Run one round from the model's start and return what it releases; `without` may change or drop a client."""
        key = (sigma, phase, number)
        if without is None and key in self.seen:
            return self.seen[key]
        device = self.setting.device.type
        config = WorkerConfig(
            self.experiment, self.setting.cache, self.scratch, self.clients, device, noise_multiplier=sigma
        )
        worker, messages = Worker(config, self.setting, home=self.setting.device), Messages()
        worker.begin(phase, {})
        context = worker.stages[phase] = replace(worker.stages[phase], observer=messages)
        before = replace(Snapshot(phase=phase).begin(context), round=number)
        plan = plan_round(context, self.partition, before)
        results, trained = RoundAggregator(context), list[ClientPlan]()
        for cohort in plan.cohorts(context, self.execution_mode):
            changed = cohort.visits if without is None else [without(one) for one in cohort.visits]
            remaining = tuple(one for one in changed if one is not None)
            trained += remaining
            result = worker.train(replace(cohort, visits=remaining), plan.received)
            result.skipped = [0] * (len(cohort.visits) - len(result.clients))  # clients that were left out on purpose
            results.take(result)
        after, _ = apply_round(context, plan, results)
        average = subtract(after.server.weights, before.server.weights)
        released = Round(messages.sent_by, average, tuple(trained))
        if without is None:
            self.seen[key] = released
        return released


def small(experiment: Experiment, clients: int) -> Experiment:
    """The experiment with few clients and units, two equal phases, and one local step so long that the clip holds."""
    privacy, first = experiment.privacy or Privacy(), experiment.phases[0]
    units = None if privacy.groups_per_client is None else min(privacy.groups_per_client, UNITS)
    privacy = replace(privacy, groups_per_client=units, group_rate=None, min_groups=None, secure=False)
    if privacy.unit == "record" and privacy.clip is not None:  # it is the gradient that is clipped, not the long step
        privacy = replace(privacy, clip=privacy.clip / LONG)
    phase = replace(
        first,
        local=Local(LocalOptimizer("sgd"), LONG, steps=1, batch_size=first.local.batch_size),
        server=Sgd(),
        rounds=2,
        participation=None,
        poisson=None,
        clients_per_round=clients,
        carry_over=(),
    )
    return replace(experiment, privacy=privacy, phases=(phase, phase), evaluate=Evaluate(every=0))


class Messages(Observer):
    """Keeps every client's update as it leaves."""

    def __init__(self) -> None:
        self.sent_by: dict[int, Weights] = {}

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        self.sent_by[client] = {name: t.clone() for name, t in upload["weights"].items()}


def without_group(client: int, group: int) -> Callable[[ClientPlan], ClientPlan]:
    def without(visit: ClientPlan) -> ClientPlan:
        if visit.client != client:
            return visit
        kept = [k for k, name in enumerate(visit.names) if name != group]
        return replace(visit, units=tuple(visit.units[k] for k in kept), names=tuple(visit.names[k] for k in kept))

    return without


def without_client(client: int) -> Callable[[ClientPlan], ClientPlan | None]:
    return lambda visit: None if visit.client == client else visit


def with_another_example(client: int, place: int) -> Callable[[ClientPlan], ClientPlan]:
    def without(visit: ClientPlan) -> ClientPlan:
        if visit.client != client:
            return visit
        rows = visit.units[0].copy()
        rows[place % len(rows)] = rows[place - 1]
        return replace(visit, units=(rows,))

    return without
