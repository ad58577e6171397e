"""A run before it is run: its bytes, memory and local steps, without data, weights or GPU where those are published.

The sizes are the run's own (see `messages`); the clients of every round are those that the run's seed will draw,
under Poisson sampling too, so that a run can be held to its plan row by row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from simfl.data.base import Dataset
from simfl.errors import ConfigError
from simfl.experiment import Experiment
from simfl.models.meta import without_distant
from simfl.parameter_groups import ParameterGroups
from simfl.plans import memory
from simfl.plans.memory import Memory
from simfl.plans.messages import Exchange, Message, Messages, messages
from simfl.plans.work import Holdings, Work, known
from simfl.privacy.budget import Budget
from simfl.run_context import RunContext
from simfl.sampling import num_sampled
from simfl.transport.ledger import DIRECTIONS

Count = dict[str, int]
COLUMNS = ("payload_bytes", "charged_bytes")  # of the ledger, that are added up


@dataclass(frozen=True)
class PhasePlan:
    """One phase: values, messages, bytes, memory, work."""

    name: str
    rounds: int
    model: Count  # parameters, trained, travelling, private: numbers of values
    download: Message  # one message, part by part
    upload: Message
    messages: int  # both modes, over all rounds
    expected: float  # and over all seeds, where clients are drawn each on its own
    bytes: Count  # really sent: download, upload, total
    charged: Count  # under the rule for tied weights
    count_memory: Callable[[], Memory]
    steps: int | None  # local steps of all visits; None where nothing is known of the data
    privacy: dict[str, float | None] | None = None  # of its rounds alone
    varying: frozenset[tuple[str, str]] = frozenset()  # direction and part, where bytes are the most they can be

    @cached_property
    def memory(self) -> Memory:
        """What server, worker and client hold; counted when asked for, as it takes a pass of the network."""
        return self.count_memory()

    @property
    def message(self) -> dict[str, Count]:
        """Values and bytes of one message each way."""
        sides = zip(DIRECTIONS, (self.download, self.upload), strict=True)
        return {mode: {"floats": total(m, "floats"), "bytes": total(m, "payload_bytes")} for mode, m in sides}

    def json(self) -> dict[str, Any]:
        """As `simfl plan --json` shows a phase."""
        return {
            "model": self.model,
            "message": self.message,
            "messages": self.messages,
            "bytes": self.bytes,
            "charged": self.charged,
            "privacy": self.privacy,
            "memory": self.memory.json(),
        }


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    experiment: Experiment
    holdings: Holdings
    model: Count  # of all phases together: what is trained, travels or stays in any of them
    phases: tuple[PhasePlan, ...]
    privacy: dict[str, float | None] | None = None  # epsilon, delta, noise_multiplier, sampling_rate

    @property
    def messages(self) -> int:
        return sum(phase.messages for phase in self.phases)

    @property
    def bytes(self) -> Count:
        return summed(phase.bytes for phase in self.phases)

    @property
    def charged(self) -> Count:
        return summed(phase.charged for phase in self.phases)

    @property
    def steps(self) -> int | None:
        known = [phase.steps for phase in self.phases if phase.steps is not None]
        return sum(known) if len(known) == len(self.phases) else None

    def json(self) -> dict[str, Any]:
        """As `simfl plan --json` shows it: sums over phases, the largest memory, the last phase's message."""
        each = [phase.json() for phase in self.phases]
        memory = [one["memory"] for one in each]
        return {
            "model": self.model,
            "message": each[-1]["message"],
            "messages": self.messages,
            "bytes": self.bytes,
            "charged": self.charged,
            "privacy": self.privacy,
            "memory": {name: max(one[name] for one in memory) for name in memory[0]},
            "phases": each,
        }


def plan(experiment: Experiment, cache: Path, card: int | None = None) -> Plan:
    """The plan of an experiment; `card`: bytes of GPU memory to be filled with clients side by side.

    Data whose sizes are not published are read, from `cache` if they lie there.
    """
    data, holdings = known(experiment, cache)
    setting = sketched(experiment, data)
    budget = None if experiment.privacy is None else Budget.of(experiment, holdings.partition, len(holdings))
    every = range(len(experiment.phases))
    phases = tuple(_phase(setting, index, holdings, budget, card) for index in every)
    return Plan(experiment, holdings, _union(setting), phases, _privacy(budget, every))


def sketched(experiment: Experiment, data: Dataset) -> RunContext:
    """The setting with an outline of its data, its networks names and shapes alone."""
    setting = RunContext(replace(experiment, model=without_distant(experiment.model)), Path(), torch.device("meta"))
    setting.dataset = data
    return setting


def messages_of(setting: RunContext, index: int, clients: int, examples: int = 1) -> Messages:
    """The messages of a phase. `examples`: of a typical client."""
    return messages(setting.stage(index, clients), examples)


def _phase(setting: RunContext, index: int, holdings: Holdings, budget: Budget | None, card: int | None) -> PhasePlan:
    phase = setting.experiment.phases[index]
    sampled = num_sampled(phase, len(holdings))
    if sampled is not None and sampled > len(holdings):
        raise ConfigError(f"phases.{index}.clients_per_round: {sampled} asked, there are {len(holdings)} clients")
    found = messages_of(setting, index, len(holdings), holdings.typical)
    tally, work = _Tally(), Work(setting.experiment, index, holdings)
    for exchange in found.rounds():
        tally.add(exchange)
        tally.steps += work.of(exchange) if work.is_known else 0
    drawn = tally.visits if phase.poisson is None else phase.poisson * len(holdings) * phase.rounds
    each = 0 if phase.centralized else sum(bool(total(message, "floats")) for message in (found.down, found.up))
    return PhasePlan(
        name=phase.name or str(index),
        rounds=phase.rounds,
        model=_counts(setting.module, [setting.roles(index)]),
        download=found.down,
        upload=found.up,
        messages=each * tally.visits,
        expected=each * drawn,
        bytes=tally.sums("payload_bytes"),
        charged=tally.sums("charged_bytes"),
        count_memory=partial(memory.memory, found, setting, index, card),
        steps=tally.steps if work.is_known else None,
        privacy=_privacy(budget, [index]),
        varying=frozenset(
            (mode, part)
            for mode, parts in zip(DIRECTIONS, (found.received, found.sent), strict=True)
            for part in parts
            if found.varies(mode, part)
        ),
    )


class _Tally:
    """The rounds of a phase added up, one after the other; equal messages are counted, not added."""

    def __init__(self) -> None:
        self.visits = self.steps = 0
        self.counted: dict[str, Counter[tuple[int, ...]]] = {mode: Counter() for mode in DIRECTIONS}

    def add(self, exchange: Exchange) -> None:
        self.visits += len(exchange.clients)
        for mode in DIRECTIONS:
            messages = getattr(exchange, mode)
            each = Counter(map(id, messages.values()))
            distinct = {id(message): message for message in messages.values()}
            for key, count in each.items():
                self.counted[mode][_sizes(distinct[key])] += count

    def sums(self, column: str) -> Count:
        at = COLUMNS.index(column)
        sides = {mode: sum(sizes[at] * count for sizes, count in self.counted[mode].items()) for mode in DIRECTIONS}
        return {**sides, "total": sum(sides.values())}


def _sizes(message: Message) -> tuple[int, ...]:
    return tuple(total(message, column) for column in COLUMNS)


def _privacy(budget: Budget | None, phases: Sequence[int]) -> dict[str, float | None] | None:
    """What the rounds of these phases spend, in the view that the experiment asks for; null is no bound."""
    if budget is None:
        return None
    spent = budget.epsilon({index: budget.phases[index].rounds for index in phases})
    return {
        "epsilon": spent if math.isfinite(spent) else None,
        "delta": budget.privacy.delta,
        "noise_multiplier": budget.noise_multiplier,
        "sampling_rate": budget.rate(budget.phases[phases[0]]),
    }


def total(message: Message, column: str) -> int:
    """The sum of a column over the parts of a message."""
    return sum(int(row[column]) for row in message)


def summed(counts: Iterable[Count]) -> Count:
    """Counts of equal names added."""
    found: Count = {}
    for count in counts:
        found = {name: found.get(name, 0) + value for name, value in count.items()}
    return found


def _union(setting: RunContext) -> Count:
    return _counts(setting.module, [setting.roles(index) for index in range(len(setting.experiment.phases))])


def _counts(module: nn.Module, roles: Sequence[ParameterGroups]) -> Count:
    """Numbers of values in any of these roles; running statistics are no parameters."""
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    named = {
        "parameters": set(sizes),
        "trained": {name for role in roles for name in role.trained},
        "travelling": {name for role in roles for name in role.shared},
        "personal_params": {name for role in roles for name in role.personal_params},
    }
    return {what: sum(sizes[name] for name in names) for what, names in named.items()}
