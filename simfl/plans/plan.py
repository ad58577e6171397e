"""Plan of a run: bytes, memory and local steps, without data, weights or GPU if the sizes of the data are published.

Sizes are those of the run itself, see `messages`. The clients of every round are those that the run's seed will sample,
with Poisson sampling too, so that a run can be compared with its plan row by row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from simfl.data.base import TRAIN, Dataset
from simfl.data.partition.holdout import assign
from simfl.errors import ConfigError
from simfl.experiment import Deployment, Experiment, Phase
from simfl.models.meta_device import drop_remote_weights
from simfl.parameter_groups import ParameterGroups
from simfl.plans.client_times import client_times, column_values, profile_of
from simfl.plans.memory import MemoryPlan, memory_of
from simfl.plans.messages import Message, PhaseMessages, RoundMessages, phase_messages
from simfl.plans.time import PhaseTimes, TimePlan
from simfl.plans.work import ClientSizes, LocalSteps, client_sizes
from simfl.privacy.budget import Budget
from simfl.privacy.deployment import PREFIX
from simfl.run_context import RunContext
from simfl.runs.folder import JsonObject
from simfl.sampling import expected_clients, num_sampled
from simfl.transport.ledger import DIRECTIONS
from simfl.virtual_time.instants import SECOND
from simfl.virtual_time.profiles import ClientProfiles, Columns, client_profiles

Counts = dict[str, int]
MAX_UPDATES = 2_000_000  # client updates that are sampled one by one; a longer phase is scaled up from fewer rounds
SCALED_ROUNDS, SCALED_UPDATES = 2_000, 200_000  # rounds, or client updates, from which it is scaled
COLUMNS = ("payload_bytes", "charged_bytes")  # of the ledger, added up over a phase


@dataclass(frozen=True)
class CorrelationPlan:
    """Correlated noise of a phase, compared with independent noise at equal epsilon."""

    separation: int  # rounds from one participation of a client to the next
    participations: int  # largest number of rounds with one client
    model_error: float  # that noise adds to each parameter, root mean square over the models of all rounds
    independent_error: float  # the same, of the experiment without `privacy.factorization`


@dataclass(frozen=True)
class PrivacyCost:
    """Privacy budget that rounds spend."""

    epsilon: float | None  # in the view that the experiment asks for, which may be a formula; None: no bound
    delta: float
    noise_multiplier: float
    sampling_rate: float
    guaranteed: float | None  # epsilon of differential privacy, of the claimed view; None: no bound
    claimed_view: str
    adjacency: str
    correlation: CorrelationPlan | None = None  # None: independent noise
    deployment: Deployment | None = None  # whose epsilon this is; None: that of the run

    def json(self) -> JsonObject:
        """Return the output of `simfl plan --json`; names of the epsilons of a deployment begin with `deployment_`."""
        found = asdict(self)
        if found.pop("deployment") is None:
            return found
        return {f"{PREFIX}{name}" if name in ("epsilon", "guaranteed") else name: v for name, v in found.items()} | {
            "deployment": asdict(self)["deployment"]
        }


@dataclass(frozen=True)
class PhasePlan:
    """Plan of one phase."""

    name: str
    rounds: int
    model: Counts  # numbers of parameters: parameters, trained, shared, personal_params
    download: Message  # one message, part by part
    upload: Message
    messages: int  # downloads and uploads of all rounds
    expected: float  # expected number of messages over all seeds, for Poisson sampling
    bytes: Counts  # encoded bytes: download, upload, total
    charged: Counts  # bytes under the rule for tied weights
    count_memory: Callable[[], MemoryPlan]
    steps: int | None  # local steps of all client updates; None if the sizes of the data are unknown
    privacy: PrivacyCost | None = None  # of the rounds of this phase
    varying: frozenset[tuple[str, str]] = frozenset()  # direction and part whose bytes are an upper bound
    masks: str = ""  # that the masks of secure aggregation are left out, if they are
    time: TimePlan | None = None  # virtual time; None without profiles, or if the sizes of the data are unknown
    scaled_from: int | None = None  # rounds from which bytes, messages and steps are scaled up; None: all were counted

    @cached_property
    def memory(self) -> MemoryPlan:
        """Memory of server, worker and client; computed on first use, because it needs a forward pass."""
        return self.count_memory()

    @property
    def message(self) -> dict[str, Counts]:
        """Numbers of values and bytes of one message in each direction."""
        sides = zip(DIRECTIONS, (self.download, self.upload), strict=True)
        return {side: {"floats": total(m, "floats"), "bytes": total(m, "payload_bytes")} for side, m in sides}

    def json(self) -> JsonObject:
        """Return the output of `simfl plan --json` for the phase."""
        return {
            "model": self.model,
            "message": self.message,
            "messages": self.messages,
            "bytes": self.bytes,
            "charged": self.charged,
            "privacy": None if self.privacy is None else self.privacy.json(),
            "memory": self.memory.json(),
            "time": None if self.time is None else self.time.json(),
        }


@dataclass(frozen=True)
class RunPlan:
    """Plan of a run."""

    experiment: Experiment
    sizes: ClientSizes
    model: Counts  # union over the phases: parameters that are trained, shared or personal in any of them
    phases: tuple[PhasePlan, ...]
    privacy: PrivacyCost | None = None

    @property
    def messages(self) -> int:
        """Number of messages of all phases."""
        return sum(phase.messages for phase in self.phases)

    @property
    def bytes(self) -> Counts:
        """Encoded bytes of all phases."""
        return summed(phase.bytes for phase in self.phases)

    @property
    def charged(self) -> Counts:
        """Charged bytes of all phases."""
        return summed(phase.charged for phase in self.phases)

    @property
    def steps(self) -> int | None:
        """Local steps of all phases; None if they are unknown for one."""
        known = [phase.steps for phase in self.phases if phase.steps is not None]
        return sum(known) if len(known) == len(self.phases) else None

    def json(self) -> JsonObject:
        """Return the output of `simfl plan --json`: sums over phases, the largest memory, the last phase's message."""
        phases = [phase.json() for phase in self.phases]
        memory = [phase["memory"] for phase in phases]
        return {
            "model": self.model,
            "message": phases[-1]["message"],
            "messages": self.messages,
            "bytes": self.bytes,
            "charged": self.charged,
            "privacy": None if self.privacy is None else self.privacy.json(),
            "memory": {name: max(one[name] for one in memory) for name in memory[0]},
            "phases": phases,
        }


def plan(experiment: Experiment, cache: Path, card: int | None = None) -> RunPlan:
    """Return the plan of an experiment.

    Args:
        experiment: The experiment.
        cache: Folder of data sets. Data whose sizes are not published are read from it, or built and stored in it.
        card: Memory of a GPU in bytes, to be filled with clients.
    """
    data, sizes = client_sizes(experiment, cache)
    context = meta_context(experiment, data)
    for index in range(len(experiment.phases)):
        if context.rank_column(index) is not None:
            context.known_ranks[index] = RunContext(experiment, cache).assigned_ranks(index, len(sizes))
    budget = (
        None if experiment.privacy is None else Budget.of(experiment, sizes.partition, len(sizes), context.num_values)
    )
    indices = range(len(experiment.phases))
    profiles = _profiles(experiment, cache, sizes)
    phases: list[PhasePlan] = []
    clock = 0
    for index in indices:
        found, clock = _phase(_PhaseInputs(context, index, sizes, budget, card), profiles, clock)
        phases.append(found)
    return RunPlan(experiment, sizes, _all_counts(context), tuple(phases), _privacy(budget, indices))


def _profiles(experiment: Experiment, cache: Path, sizes: ClientSizes) -> ClientProfiles | None:
    """Return the profiles of the clients; None without profiles, or if the sizes of the data are unknown."""
    profile = profile_of(experiment)
    if profile is None or np.isnan(sizes.sizes).any():
        return None
    columns: Columns = {}
    if profile.columns:
        data = RunContext(experiment, cache)
        partition = sizes.partition or assign(experiment.partition, data.split(TRAIN), experiment.seed)
        columns = column_values(data, partition, profile)
    return client_profiles(profile, len(sizes), experiment.seed, columns)


def meta_context(experiment: Experiment, data: Dataset) -> RunContext:
    """Return a run context on the meta device, with an outline of the data."""
    context = RunContext(replace(experiment, model=drop_remote_weights(experiment.model)), Path(), torch.device("meta"))
    context.dataset = data
    return context


def messages_of(context: RunContext, index: int, clients: int, examples: int = 1) -> PhaseMessages:
    """Return the messages of a phase; `examples` is the number of examples of a typical client."""
    return phase_messages(context.phase_context(index, clients), examples)


class _PhaseInputs(NamedTuple):
    context: RunContext
    phase: int
    sizes: ClientSizes
    budget: Budget | None
    card: int | None


def _phase(inputs: _PhaseInputs, profiles: ClientProfiles | None, clock: int) -> tuple[PhasePlan, int]:
    """Return the plan of a phase, and the virtual time at its end in nanoseconds."""
    context, index, sizes, budget, card = inputs
    phase = context.experiment.phases[index]
    sampled = num_sampled(phase, len(sizes))
    if sampled is not None and sampled > len(sizes):
        raise ConfigError(f"phases.{index}.clients_per_round: {sampled} given, but there are {len(sizes)} clients")
    messages = messages_of(context, index, len(sizes), sizes.typical)
    times = None
    if profiles is not None:
        context.client_times[index] = client_times(messages, context, profiles, sizes.sizes, sizes.groups)
        messages = messages_of(context, index, len(sizes), sizes.typical)
        times = PhaseTimes(context.client_times[index], clock)
    totals, steps = _PhaseTotals(), LocalSteps(context.experiment, index, sizes)
    counted = _counted_rounds(phase, len(sizes))
    for in_round in islice(messages.rounds(clock=clock), counted):
        totals.add(in_round)
        if times is not None:
            times.add(in_round)
        totals.steps += _local_steps(steps, in_round) if steps.is_known else 0
    totals.scale(phase.rounds, counted)
    expected_updates = totals.updates if phase.poisson is None else phase.poisson * len(sizes) * phase.rounds
    per_update = sum(bool(total(message, "floats")) for message in (messages.down, messages.up))
    per_update = 0 if phase.centralized else per_update
    time = None if times is None else times.plan(phase.rounds)
    found = PhasePlan(
        name=phase.name or str(index),
        rounds=phase.rounds,
        model=_counts(context.module, [context.parameter_groups(index)]),
        download=messages.down,
        upload=messages.up,
        messages=per_update * totals.updates if times is None else totals.messages,
        expected=per_update * expected_updates if times is None else totals.messages,
        bytes=totals.sums("payload_bytes"),
        charged=totals.sums("charged_bytes"),
        count_memory=partial(memory_of, messages, context, index, int(np.nansum(sizes.sizes)), card),
        steps=totals.steps if steps.is_known else None,
        masks=context.mask_note(index, len(sizes)),
        scaled_from=counted if counted < phase.rounds else None,
        time=time,
        privacy=_privacy(budget, [index]),
        varying=frozenset(
            (side, part)
            for side, parts in zip(DIRECTIONS, (messages.received, messages.sent), strict=True)
            for part in parts
            if messages.varies(side, part)
        ),
    )
    return found, clock if time is None else clock + round(time.seconds * SECOND)


def _local_steps(steps: LocalSteps, in_round: RoundMessages) -> int:
    """Return the local steps of a round; in virtual time those of the updates that are applied."""
    schedule = in_round.schedule
    return steps.in_round(in_round) if schedule is None else int(schedule.steps[schedule.applied].sum())


def _counted_rounds(phase: Phase, clients: int) -> int:
    """Return how many rounds of a phase are counted one by one: all, unless there are too many client updates."""
    per_round = max(1.0, expected_clients(phase, clients))
    if phase.rounds * per_round <= MAX_UPDATES:
        return phase.rounds
    return min(phase.rounds, SCALED_ROUNDS, max(1, int(SCALED_UPDATES / per_round)))


class _PhaseTotals:
    """Sums over the rounds of a phase; equal messages are counted and multiplied."""

    def __init__(self) -> None:
        self.updates = self.steps = self.messages = 0
        self.counted: dict[str, Counter[tuple[int, ...]]] = {side: Counter() for side in DIRECTIONS}

    def add(self, in_round: RoundMessages) -> None:
        self.updates += len(in_round.clients)
        self.messages += len(in_round.download) + len(in_round.upload)
        for side in DIRECTIONS:
            messages = getattr(in_round, side)
            counts = Counter(map(id, messages.values()))
            distinct = {id(message): message for message in messages.values()}
            for key, count in counts.items():
                self.counted[side][_sizes(distinct[key])] += count

    def scale(self, rounds: int, counted: int) -> None:
        """Scale from the counted rounds up to all; exact where every round samples and sends the same."""
        if counted in (0, rounds):
            return
        self.updates, self.steps, self.messages = (
            _scaled(n, rounds, counted) for n in (self.updates, self.steps, self.messages)
        )
        for counts in self.counted.values():
            for key in counts:
                counts[key] = _scaled(counts[key], rounds, counted)

    def sums(self, column: str) -> Counts:
        at = COLUMNS.index(column)
        sides = {side: sum(sizes[at] * count for sizes, count in self.counted[side].items()) for side in DIRECTIONS}
        return {**sides, "total": sum(sides.values())}


def _scaled(number: int, rounds: int, counted: int) -> int:
    """Return number · rounds / counted, rounded, in exact integers."""
    return (2 * number * rounds + counted) // (2 * counted)


def _sizes(message: Message) -> tuple[int, ...]:
    return tuple(total(message, column) for column in COLUMNS)


def _privacy(budget: Budget | None, phases: Sequence[int]) -> PrivacyCost | None:
    """Return what the rounds of these phases spend."""
    if budget is None:
        return None
    rounds = {index: budget.phases[index].rounds for index in phases}
    spent, guaranteed = (
        value if math.isfinite(value := budget.epsilon(rounds, view)) else None
        for view in (budget.view, budget.claimed_view)
    )
    return PrivacyCost(
        epsilon=spent,
        delta=budget.privacy.delta,
        noise_multiplier=budget.noise_multiplier,
        sampling_rate=budget.rate(budget.phases[phases[0]]),
        guaranteed=guaranteed,
        claimed_view=budget.claimed_view,
        adjacency=budget.scheme.adjacency,
        correlation=_correlation(budget, phases[0]),
        deployment=budget.privacy.deployment,
    )


def _correlation(budget: Budget, index: int) -> CorrelationPlan | None:
    if budget.privacy.factorization is None or not budget.privacy.adds_noise:
        return None
    participation = budget.scheme.correlation(index).participation
    independent = budget.without_correlation().model_error(index)
    return CorrelationPlan(
        participation.separation, participation.participations, budget.model_error(index), independent
    )


def total(message: Message, column: str) -> int:
    """Return the sum of a column over the parts of a message."""
    return sum(int(row[column]) for row in message)


def summed(counts: Iterable[Counts]) -> Counts:
    """Add counts with equal names."""
    found: Counts = {}
    for count in counts:
        found = {name: found.get(name, 0) + value for name, value in count.items()}
    return found


def _all_counts(context: RunContext) -> Counts:
    return _counts(context.module, [context.parameter_groups(index) for index in range(len(context.experiment.phases))])


def _counts(module: nn.Module, groups: Sequence[ParameterGroups]) -> Counts:
    """Count the parameters that belong to a kind in any of the phases; running statistics are not parameters."""
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    named = {
        "parameters": set(sizes),
        "trained": {name for group in groups for name in group.trained},
        "shared": {name for group in groups for name in group.shared},
        "personal_params": {name for group in groups for name in group.personal_params},
    }
    return {kind: sum(sizes[name] for name in names) for kind, names in named.items()}
