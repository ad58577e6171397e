"""A white-box check of a privacy mechanism: the experiment's own rounds with and without noise, with units left out.

The engine's own round is run on a few clients, a few units and one local step, so long that every update is clipped.
Without noise, a unit left out must change what is released by S over the denominators at most. What noise
adds must have the standard deviation that the accounts assume, in every tensor, and two noises must have nothing in
common: of two clients, rounds, phases or tensors of one shape. Limits are 6 standard errors wide, so that a right
mechanism fails once in 10^8 times or less.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simfl import simulation
from simfl.cohort.observer import Observer
from simfl.cohort.plan import CohortPlan, VisitPlan
from simfl.cohort.visit import CohortResult
from simfl.data.holdings import Partition
from simfl.engine import preflight
from simfl.engine.worker import Setup, Worker
from simfl.errors import ConfigError, SimflError
from simfl.experiment import Evaluate, Experiment, Local, Privacy
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.server import Sgd
from simfl.privacy.account import Account
from simfl.privacy.measured import Measured, distance, scales, unrelated
from simfl.protocol import Parts, Weights
from simfl.runs.snapshot import Snapshot
from simfl.sampling import expected_clients
from simfl.setting import Setting
from simfl.weights import subtract

CLIENTS, UNITS, LEFT_OUT = 3, 3, 3  # looked at, of each kind, at most
LONG = 1e4  # the local step's learning rate, with which every update is clipped
SLACK = 1 + 1e-3  # of a released difference over the clip, for sums in float32


@dataclass(frozen=True)
class Round:
    """What a round released."""

    messages: dict[int, Weights]  # by client, as they left
    average: Weights
    plans: tuple[VisitPlan, ...]


def check(experiment: Experiment, cache: Path, seed: int | None = None) -> list[Measured]:
    """Everything measured; ConfigError for an experiment without noise. `seed`: in place of the experiment's."""
    if experiment.privacy is None or (experiment.privacy.epsilon is None and not experiment.privacy.noise_multiplier):
        raise ConfigError("privacy: there is no noise to check; give privacy.epsilon or privacy.noise_multiplier")
    with tempfile.TemporaryDirectory(prefix="simfl-check-") as scratch:
        bench = Bench(experiment if seed is None else replace(experiment, seed=seed), cache, Path(scratch))
        try:
            return [*bench.sampling(), *bench.sensitivity(), *bench.noise()]
        except SimflError as error:
            return [Measured(f"a round fails: {str(error).splitlines()[0]}", math.nan, "none fails", False)]


class Bench:
    """A few clients of the experiment, and rounds made of them at will."""

    def __init__(self, experiment: Experiment, cache: Path, scratch: Path) -> None:
        whole = Setting(experiment, cache)
        self.partition, _ = preflight.partition_of(whole)
        preflight.check(experiment, whole, self.partition)
        self.sigma = preflight.account_of(experiment, self.partition).noise_multiplier
        expected = expected_clients(experiment.phases[0], len(self.partition))
        self.clients = max(2, min(CLIENTS, round(expected), len(self.partition)))
        self.experiment, self.scratch = small(experiment, self.clients), scratch
        self.way = "batch" if experiment.cohort.way == "batch" else "loop"
        self.setting = Setting(self.experiment, cache)
        self.setting.__dict__.update({k: v for k, v in whole.__dict__.items() if k in ("dataset", "module")})
        self.privacy, self.seen = self.experiment.privacy or Privacy(), dict[tuple[Any, ...], Round]()

    def round(
        self,
        sigma: float,
        phase: int = 0,
        number: int = 0,
        without: Callable[[VisitPlan], VisitPlan | None] | None = None,
    ) -> Round:
        """What one round releases from the model's start; `without` may change each visit, or drop it."""
        key = (sigma, phase, number)
        if without is None and key in self.seen:
            return self.seen[key]
        device = self.setting.device.type
        setup = Setup(
            self.experiment, self.setting.cache, self.scratch, self.way, self.clients, device, noise_multiplier=sigma
        )
        worker, listener = Worker(setup, self.setting, home=self.setting.device), Messages()
        worker.begin(phase, {})
        stage = worker.stages[phase] = replace(worker.stages[phase], observer=listener)
        before = replace(Snapshot(phase=phase).begin(stage), round=number)
        sitting: Any = Sitting(self.partition, worker, without)
        after, _ = simulation.one_round(sitting, stage, before)
        released = Round(listener.sent_by, subtract(after.server.weights, before.server.weights), tuple(sitting.visits))
        if without is None:
            self.seen[key] = released
        return released

    def sampling(self) -> Iterator[Measured]:
        """No unit takes part twice, and only what is trained travels."""
        base, names = self.round(0.0), set(self.setting.roles(0).shared)
        twice = sum(len(visit.names) - len(set(visit.names)) for visit in base.plans)
        yield Measured("units sampled more than once in a visit", twice, "0", twice == 0)
        strangers = len({name for sent in base.messages.values() for name in sent} ^ names)
        yield Measured("tensors that travel and are not trained, or the reverse", strangers, "0", strangers == 0)

    def sensitivity(self) -> Iterator[Measured]:
        """What leaving a unit out changes."""
        base, limit = self.round(0.0), self._limit()
        for title, left_out in self._targets(base):
            other = self.round(0.0, without=left_out)
            change = distance(base.average, other.average)
            yield Measured(
                f"change of the average without {title}", change, f"at most {limit:.4g}", change <= limit * SLACK
            )

    def _clip(self) -> float:
        clip = self.privacy.clip or math.inf
        return clip * LONG if self.privacy.unit == "record" else clip

    def _limit(self) -> float:
        privacy = self.privacy
        clip = self._clip()
        if privacy.unit == "record":
            return 2 * clip / (self.experiment.phases[0].local.batch_size * self.clients)
        units = (privacy.groups_per_client or 1) if privacy.unit == "group" else 1
        if privacy.denominator == "realised":  # what is left is divided by less
            count = (
                min(len(visit.units) for visit in self.round(0.0).plans) if privacy.unit == "group" else self.clients
            )
            others = self.clients if privacy.unit == "group" else 1
            return 2 * clip / (others * max(1, count - 1))
        return clip / (units * self.clients)

    def _targets(self, base: Round) -> list[tuple[str, Callable[[VisitPlan], VisitPlan | None]]]:
        visits, unit = base.plans, self.privacy.unit
        if unit == "client":
            return [(f"client {v.client}", _drop_client(v.client)) for v in visits[:LEFT_OUT]]
        if unit == "record":
            return [
                (f"example {place} of client {v.client}", _replace_example(v.client, place))
                for v in visits
                for place in range(2)
            ]
        some = [(visit.client, name) for visit in visits for name in dict.fromkeys(visit.names)]
        chosen = some[:: max(1, len(some) // LEFT_OUT)][:LEFT_OUT]
        return [(f"group {name} of client {client}", _drop_group(client, name)) for client, name in chosen]

    def noise(self) -> Iterator[Measured]:
        """Scale in messages and in the average, and independence of all that is drawn."""
        drawn: dict[str, Weights] = {}
        for phase, number in ((0, 0), (0, 1), (1, 0)):
            bare, loud = self.round(0.0, phase, number), self.round(self.sigma, phase, number)
            where = f"phase {phase}, round {number + 1}"
            if self.privacy.noise == "client":
                for client, sent in loud.messages.items():
                    drawn[f"client {client} in {where}"] = subtract(sent, bare.messages[client])
            else:
                drawn[f"the server in {where}"] = subtract(loud.average, bare.average)
            if number == phase == 0:
                noise = subtract(loud.average, bare.average)
                yield from scales("noise of the average", noise, self._deviation(self.clients, average=True))
        first = next(iter(drawn))
        if self.privacy.noise == "client":
            yield from scales(f"noise of {first}", drawn[first], self._deviation(self.clients, average=False))
        yield from unrelated(drawn)

    def _deviation(self, clients: int, average: bool) -> float:
        """What the accounts assume: sigma·S over what sums are divided by."""
        privacy, base = self.privacy, self.round(0.0)
        sigma, clip = self.sigma, self._clip()
        if privacy.adaptive is not None:
            sigma /= math.sqrt(1 - 1 / (2 * privacy.adaptive.count_noise) ** 2)
        if privacy.unit == "record":
            units = float(self.experiment.phases[0].local.batch_size)
        elif privacy.unit == "group" and privacy.denominator == "fixed":
            units = float(privacy.groups_per_client or 1)
        else:
            units = float(min(len(visit.units) for visit in base.plans))
        over = 1.0 if not average else clients if privacy.noise == "central" else math.sqrt(clients)
        return sigma * clip / (units * over)


def small(experiment: Experiment, clients: int) -> Experiment:
    """The experiment with few clients and units, two equal phases, and one local step so long that the clip holds."""
    privacy, first = experiment.privacy or Privacy(), experiment.phases[0]
    units = None if privacy.groups_per_client is None else min(privacy.groups_per_client, UNITS)
    privacy = replace(privacy, groups_per_client=units, group_rate=None, min_groups=None, secure=False)
    if (
        privacy.unit == "record" and privacy.clip is not None
    ):  # the step is long, but it is the gradient that is clipped
        privacy = replace(privacy, clip=privacy.clip / LONG)
    phase = replace(
        first,
        local=Local(LocalOptimizer("sgd"), LONG, steps=1, batch_size=first.local.batch_size),
        server=Sgd(),
        rounds=2,
        participation=None,
        poisson=None,
        clients_per_round=clients,
        keep=(),
    )
    return replace(experiment, privacy=privacy, phases=(phase, phase), evaluate=Evaluate(every=0))


class Messages(Observer):
    """Keeps every client's update as it leaves."""

    def __init__(self) -> None:
        self.sent_by: dict[int, Weights] = {}

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        self.sent_by[client] = {name: t.clone() for name, t in upload["weights"].items()}


@dataclass
class Sitting:
    """A driver, as far as a round needs one, that may change visits before they are made."""

    partition: Partition
    worker: Worker
    without: Callable[[VisitPlan], VisitPlan | None] | None = None
    width: int = 1
    workers: None = None
    account: Account = field(default_factory=lambda: Account(None))
    visits: list[VisitPlan] = field(default_factory=list)

    def train(self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float]) -> list[CohortResult]:
        results = []
        for plan in plans:
            changed = plan.visits if self.without is None else [self.without(visit) for visit in plan.visits]
            kept = tuple(visit for visit in changed if visit is not None)
            self.visits += kept
            results.append(self.worker.train(replace(plan, visits=kept), received))
        for result in results:
            result.skipped = [0] * (self.width - len(result.clients))  # who was left out is not lost
        return results


def _drop_group(client: int, group: int) -> Callable[[VisitPlan], VisitPlan]:
    def without(visit: VisitPlan) -> VisitPlan:
        if visit.client != client:
            return visit
        kept = [k for k, name in enumerate(visit.names) if name != group]
        return replace(visit, units=tuple(visit.units[k] for k in kept), names=tuple(visit.names[k] for k in kept))

    return without


def _drop_client(client: int) -> Callable[[VisitPlan], VisitPlan | None]:
    return lambda visit: None if visit.client == client else visit


def _replace_example(client: int, place: int) -> Callable[[VisitPlan], VisitPlan]:
    def without(visit: VisitPlan) -> VisitPlan:
        if visit.client != client:
            return visit
        rows = visit.units[0].copy()
        rows[place % len(rows)] = rows[place - 1]
        return replace(visit, units=(rows,))

    return without


def lines(measured: Sequence[Measured]) -> list[str]:
    """The check for a reader; the last line is the verdict."""
    out = [f"{'holds' if m.holds else 'BROKEN':<7} {m.what}: {m.value:.4g} (allowed: {m.allowed})" for m in measured]
    broken = sum(not m.holds for m in measured)
    verdict = "the mechanism does what its accounts assume" if not broken else f"{broken} of {len(measured)} are broken"
    return [*out, verdict]
