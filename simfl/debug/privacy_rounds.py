"""Rounds of an experiment's own mechanism, made at will: small, with or without noise, with units left out.

The engine's own round is run on a few clients, a few units and one local step, so long that every update is clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simfl import simulation
from simfl.data.partition.manifest import Partition
from simfl.experiment import Evaluate, Experiment, Local, Privacy
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.server import Sgd
from simfl.privacy.account import Account
from simfl.protocol import Parts, Weights
from simfl.run_context import RunContext
from simfl.runs.snapshot import Snapshot
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.sampling import expected_clients
from simfl.session import prepare as preflight
from simfl.training.cohort import CohortResult
from simfl.training.observer import Observer
from simfl.training.plan import ClientPlan, CohortPlan, ExecutionMode
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
        self.partition, _ = preflight.partition_of(whole)
        preflight.check(experiment, whole, self.partition)
        self.sigma = preflight.account_of(experiment, self.partition).noise_multiplier
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
        """What one round releases from the model's start; `without` may change each visit, or drop it."""
        key = (sigma, phase, number)
        if without is None and key in self.seen:
            return self.seen[key]
        device = self.setting.device.type
        setup = WorkerConfig(
            self.experiment, self.setting.cache, self.scratch, self.clients, device, noise_multiplier=sigma
        )
        worker, listener = Worker(setup, self.setting, home=self.setting.device), Messages()
        worker.begin(phase, {})
        stage = worker.stages[phase] = replace(worker.stages[phase], observer=listener)
        before = replace(Snapshot(phase=phase).begin(stage), round=number)
        stand_in: Any = StandIn(self.partition, worker, self.execution_mode, without)
        after, _ = simulation.one_round(stand_in, stage, before)
        released = Round(
            listener.sent_by, subtract(after.server.weights, before.server.weights), tuple(stand_in.visits)
        )
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


@dataclass
class StandIn:
    """A driver, as far as a round needs one, that may change visits before they are made."""

    partition: Partition
    worker: Worker
    execution_mode: ExecutionMode
    without: Change | None = None
    workers: None = None
    account: Account = field(default_factory=lambda: Account(None))
    visits: list[ClientPlan] = field(default_factory=list)

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], ahead: object = None
    ) -> list[CohortResult]:
        results = []
        for plan in plans:
            changed = plan.visits if self.without is None else [self.without(visit) for visit in plan.visits]
            kept = tuple(visit for visit in changed if visit is not None)
            self.visits += kept
            results.append(self.worker.train(replace(plan, visits=kept), received))
        for result in results:
            result.skipped = [0] * (
                self.execution_mode.clients_per_batch - len(result.clients)
            )  # who was left out is not lost
        return results


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
