"""Small test rounds of an experiment's privacy mechanism, with or without noise, with single units left out.

The functions of real rounds are used, on a few clients and units, with one local step so long that every update is
clipped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simfl.aggregation.round import RoundAggregator
from simfl.algorithms.base import Algorithm
from simfl.client_state import FileClientStore
from simfl.experiment import Evaluate, Experiment, Local, Privacy
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.server import Sgd
from simfl.privacy.mechanism import Mechanism
from simfl.privacy.randomness import Randomness
from simfl.protocol import AggregatedUpdates, ClientUpdate, Parts, Server, State, Weights
from simfl.rounds import apply_round, plan_round
from simfl.run_context import RunContext
from simfl.runs.snapshot import Snapshot
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.sampling import expected_clients
from simfl.session.prepare import account_of, check, partition_of
from simfl.training.executor import Observer, OptimizerStep
from simfl.training.plan import ClientPlan, CohortPlan, ExecutionMode
from simfl.weights import add

MAX_CLIENTS, MAX_UNITS = 3, 3
MAX_COHORTS = 5  # clients of a simulated deployment over those of a round
LONG_STEP = 1e4  # learning rate with which every update is clipped
SHORT_STEP = 1e-30  # learning rate with which no float32 weight moves
CHAIN = 3  # rounds of each phase that are chained
STILL_STEPS = 3  # local steps of rounds in which no weight moves

Craft = Callable[[str, Tensor, ClientUpdate], Tensor]  # tensor name, received tensor and client -> update
PlanChange = Callable[[ClientPlan], ClientPlan | None]  # changes a client plan before it is trained; None drops it


@dataclass(frozen=True)
class ReleasedRound:
    """Release of a round, and the states that its clients stored.

    Attributes:
        messages: Messages by client, before encoding; tensors of the parts other than `weights` as `part/tensor`.
        arrived: Decoded upload by client.
        average: The released average of the weights, from which the server makes its step.
        plans: The clients.
        gradients: Gradient of each local step, as the optimizer got it, by client.
        clip: Adaptive clip norm of the next round; None without one.
        after: State of the run after the round.
        states: State that each client stored.
    """

    messages: dict[int, Weights]
    arrived: dict[int, Parts]
    average: Weights
    plans: tuple[ClientPlan, ...]
    gradients: dict[int, list[Weights]]
    clip: float | None
    after: Snapshot
    states: dict[int, State]


@dataclass(frozen=True)
class RoundRequest:
    """A test round.

    Attributes:
        sigma: The noise multiplier; 0: none.
        phase: The phase.
        number: The round of the phase, from 0.
        without: Changes or drops client plans.
        craft: Returns the update of a privacy unit in place of the trained one, from the received weights.
        still: Whether local steps are so short that no weight moves.
        before: The state that the round starts from; None: the initial one. A first round enters its phase.
        randomness: The source of the draws; None: that of all rounds.
        poisson: Rate at which each client is sampled; None: all of them are.
        pushed: Whether the crafted update is added to the trained one.
        mechanism: Returns the mechanism to use in place of the given one.
    """

    sigma: float
    phase: int = 0
    number: int = 0
    without: PlanChange | None = None
    craft: Craft | None = None
    still: bool = False
    before: Snapshot | None = None
    randomness: Randomness | None = None
    poisson: float | None = None
    pushed: bool = False
    mechanism: Callable[[Mechanism], Mechanism] | None = None


class PrivacyTestRounds:
    """Test rounds of a few clients of an experiment."""

    def __init__(self, experiment: Experiment, cache: Path, scratch: Path) -> None:
        """Prepare the rounds of an experiment, with data from the cache and client states in the scratch folder."""
        self.given, self.whole = experiment, RunContext(experiment, cache)
        self.partition, _ = partition_of(self.whole)
        check(experiment, self.whole, self.partition)
        self.account = account_of(experiment, self.partition)
        self.sigma = self.account.noise_multiplier
        expected = expected_clients(experiment.phases[0], len(self.partition))
        self.num_clients = max(2, min(MAX_CLIENTS, round(expected), len(self.partition)))
        self.experiment, self.scratch = shrink(experiment, self.num_clients), scratch
        self.privacy = self.experiment.privacy or Privacy()
        mode = "vectorized" if experiment.execution.mode == "vectorized" else "sequential"
        self.execution_mode = ExecutionMode(mode, 1, experiment.execution.program)
        self.run_context = RunContext(self.experiment, cache)
        built = {name: value for name, value in vars(self.whole).items() if name in ("dataset", "module")}
        vars(self.run_context).update(built)  # cached properties: the data set and the module are built once
        self.randomness = Randomness.from_seed(secrets.randbits(62), {})  # its samples are those of the seed
        self.store = FileClientStore(scratch)
        self.initial = self._initial_weights()
        self._released: dict[tuple[float, int, int], ReleasedRound] = {}

    @property
    def noise_cohort(self) -> int:
        """Clients that the server's noise is divided by: those of a round, or of the deployment that is simulated."""
        deployment = self.privacy.deployment
        return self.num_clients if deployment is None else deployment.clients_per_round

    def round(self, sigma: float, phase: int = 0, number: int = 0, without: PlanChange | None = None) -> ReleasedRound:
        """Run one round from the initial model and return what it releases; see `RoundRequest`."""
        key = (sigma, phase, number)
        if without is not None:
            return self.run(RoundRequest(sigma, phase, number, without))
        if key not in self._released:
            self._released[key] = self.run(RoundRequest(sigma, phase, number))
        return self._released[key]

    def run(self, request: RoundRequest) -> ReleasedRound:
        """Run a test round and return what it releases."""
        worker, recorder = self._worker(request)
        context = worker.executors[request.phase].context
        start = request.before or Snapshot(phase=request.phase)
        start = start if request.before and request.number else start.enter_phase(context)
        before = replace(start, round=request.number)
        plan = plan_round(context, self.partition, before)
        results, trained = RoundAggregator(context.phase.algorithm.reduce, self.num_clients), list[ClientPlan]()
        for cohort in plan.cohorts(context, self.execution_mode):
            changed = _changed(cohort, request.without)
            if request.craft is not None and not request.pushed:  # nothing that training computes is used
                idle = tuple(replace(client, steps_per_unit=0) for client in changed.clients)
                changed = replace(changed, clients=idle)
            trained += changed.clients
            result = worker.train(changed, plan.received)
            result.skipped = [0] * (len(cohort.clients) - len(result.clients))  # clients that were dropped on purpose
            results.take(result)
        after, _ = apply_round(context, plan, results)
        return ReleasedRound(
            messages=recorder.messages,
            arrived=recorder.arrived,
            average=recorder.average or {name: torch.zeros_like(w) for name, w in before.server.weights.items()},
            plans=tuple(trained),
            gradients=recorder.gradients,
            clip=after.clip,
            after=after,
            states={plan.client: self.store.get(after.client_state(plan.client)) for plan in trained},
        )

    def _initial_weights(self) -> Weights:
        """Return copies of the tensors that any phase trains, before any round."""
        phases = range(len(self.experiment.phases))
        names = {name for index in phases for name in self.run_context.parameter_groups(index).shared}
        parameters = self.run_context.module.named_parameters()
        return {name: parameter.detach().clone() for name, parameter in parameters if name in names}

    def _worker(self, request: RoundRequest) -> tuple[Worker, MessageRecorder]:
        context, recorder = self.run_context, MessageRecorder()
        config = WorkerConfig(
            self.experiment,
            context.cache,
            self.scratch,
            self.num_clients,
            context.device.type,
            noise_multiplier=request.sigma,
            randomness=request.randomness or self.randomness,
        )
        worker = Worker(config, context, home=context.device)
        base = {} if request.before is None else request.before.base_weights
        worker.begin(request.phase, {**self.initial, **base})  # all workers share the module
        executor = worker.executors[request.phase]
        phase = executor.context.phase
        if request.craft is not None:
            phase = replace(phase, algorithm=with_crafted_updates(phase.algorithm, request.craft, request.pushed))
        if request.still:
            phase = replace(phase, local=replace(phase.local, learning_rate=SHORT_STEP, steps=STILL_STEPS))
        if request.poisson is not None:
            phase = replace(phase, poisson=request.poisson, clients_per_round=None)
        phase = replace(phase, algorithm=with_noted_average(phase.algorithm, recorder))
        own = replace(executor.context, phase=phase)
        if request.mechanism is not None and own.mechanism is not None:
            own = replace(own, mechanism=request.mechanism(own.mechanism))
        worker.executors[request.phase] = replace(executor, context=own, observer=recorder)
        return worker, recorder


def with_crafted_updates(algorithm: Algorithm, craft: Craft, pushed: bool = False) -> Algorithm:
    """Return the algorithm with given updates of privacy units in place of trained ones, or added to them."""
    kind = type(algorithm)

    class Crafted(kind):  # type: ignore[misc, valid-type]
        def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
            crafted: Parts = {"weights": {name: craft(name, w, update) for name, w in received["weights"].items()}}
            if not pushed and set(self.reduce) == {"weights"}:
                return crafted
            parts: Parts = super().upload(trained, received, state, update)
            for part in set(parts) - {"weights"}:
                crafted[part] = {name: craft(f"{part}/{name}", t, update) for name, t in parts[part].items()}
            return {part: add(parts[part], crafted[part]) for part in parts} if pushed else crafted

    return _as_subclass(algorithm, Crafted)


def with_noted_average(algorithm: Algorithm, recorder: MessageRecorder) -> Algorithm:
    """Return the algorithm with a recorder of the released average, which the server may transform afterwards."""
    kind = type(algorithm)

    class Noted(kind):  # type: ignore[misc, valid-type]
        def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
            recorder.average = {name: t.clone() for name, t in aggregated.means["weights"].items()}
            found: tuple[Weights, State] = super().aggregate(server, aggregated)
            return found

    return _as_subclass(algorithm, Noted)


def _as_subclass(algorithm: Algorithm, kind: type) -> Algorithm:
    """Return an instance of a subclass of the algorithm's class, with its settings."""
    made: Algorithm = object.__new__(kind)
    for name, value in vars(algorithm).items():
        object.__setattr__(made, name, value)
    return made


class MessageRecorder(Observer):
    """An observer of uploads before and after encoding, gradients of local steps, and the released average."""

    def __init__(self) -> None:
        """Record from now on."""
        self.average: Weights = {}
        self.messages: dict[int, Weights] = {}
        self.arrived: dict[int, Parts] = {}
        self.gradients: dict[int, list[Weights]] = {}

    def stepped(self, step: OptimizerStep) -> None:
        """Record the gradients of a step."""
        for k, unit in enumerate(step.units):
            gradient = {name: t[k].detach().clone() for name, t in step.gradients.items()}
            self.gradients.setdefault(unit.client, []).append(gradient)

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        """Record an upload."""
        own = {name: t.clone() for name, t in upload["weights"].items()}
        rest = {f"{part}/{name}": t.clone() for part in upload if part != "weights" for name, t in upload[part].items()}
        self.messages[client] = {**own, **rest}
        self.arrived[client] = {part: {n: t.clone() for n, t in tensors.items()} for part, tensors in arrived.items()}


def shrink(experiment: Experiment, num_clients: int) -> Experiment:
    """Return the experiment with few clients and units, and one local step that is always clipped.

    Clients and groups are sampled in a fixed number. An experiment of one phase has it twice.
    """
    privacy = experiment.privacy or Privacy()
    units = None if privacy.groups_per_client is None else min(privacy.groups_per_client, MAX_UNITS)
    deployment = privacy.deployment
    if deployment is not None:  # of so few clients that rounding of the weights is far below the noise
        cohort = min(deployment.clients_per_round, MAX_COHORTS * num_clients)
        deployment = replace(deployment, clients_per_round=cohort)
    privacy = replace(
        privacy,
        groups_per_client=units,
        group_rate=None,
        min_groups=None,
        secure=False,
        noise_seed=0,
        min_clients=None,
        deployment=deployment,
        factorization=None,
    )
    if privacy.unit == "record" and privacy.clip is not None:  # the gradient is clipped, not the long step
        privacy = replace(privacy, clip=privacy.clip / LONG_STEP)
    phases = tuple(
        replace(
            phase,
            local=Local(LocalOptimizer("sgd"), LONG_STEP, steps=1, batch_size=phase.local.batch_size),
            server=Sgd(),
            rounds=CHAIN,
            participation=None,
            poisson=None,
            clients_per_round=num_clients,
        )
        for phase in experiment.phases
    )
    phases = phases * 2 if len(phases) == 1 else phases
    return replace(experiment, privacy=privacy, phases=phases, evaluate=Evaluate(every=0))


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


def with_one_unit(client: int, rows: np.ndarray | None = None) -> PlanChange:
    """Return a change that leaves the client one privacy unit, with as many of the given rows in place of its own."""

    def change(plan: ClientPlan) -> ClientPlan:
        if plan.client != client:
            return plan
        own = plan.units[:1] if rows is None else tuple(np.resize(rows, len(unit)) for unit in plan.units[:1])
        return replace(plan, units=own, unit_names=plan.unit_names[:1])

    return change


def _changed(cohort: CohortPlan, change: PlanChange | None) -> CohortPlan:
    if change is None:
        return cohort
    changed = (change(plan) for plan in cohort.clients)
    return replace(cohort, clients=tuple(plan for plan in changed if plan is not None))
