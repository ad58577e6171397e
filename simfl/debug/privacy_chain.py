"""Measurements of chained rounds: clients and server carry their state, residuals and clip norm from round to round.

The rounds of all phases are made twice, with neighbouring data: one unit has an update of the opposite sign. The second
time every noised sum is replaced by that of the first time, so that both have the same releases. Then everything that
leaves a round, or is kept for the next one, must be equal to the bit: it follows from the releases alone. The sums
before the noise differ by at most twice the clip norm, whatever the rounds before have left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch

from simfl.debug.noise_statistics import (
    MAX_ERRORS_OF_MANY,
    Measurement,
    at_most,
    check_pairs,
    check_scale,
    distance,
    flattened,
    num_errors,
)
from simfl.debug.privacy_rounds import (
    CHAIN,
    PlanChange,
    PrivacyTestRounds,
    ReleasedRound,
    RoundRequest,
    with_another_example,
    with_one_unit,
)
from simfl.debug.privacy_sensitivity import FLOAT32_SLACK, along
from simfl.errors import PrivacyError
from simfl.privacy.account import Account
from simfl.privacy.budget import Budget
from simfl.privacy.mechanism import Mechanism
from simfl.protocol import Weights
from simfl.runs.snapshot import Snapshot, carry_over_states
from simfl.seeds import SeedName
from simfl.weights import flatten, subtract

FEW = 20  # values of a sum, such as one number, whose scale and correlations say nothing by themselves
MAX_ZEROS = 2  # values of one tensor and draw that rounding to float32 may leave as they were
DrawName = tuple[SeedName | float, ...]


@dataclass(frozen=True)
class NoisedSum:
    """A sum before and after its noise, and the standard deviation that was asked for."""

    before: Weights
    after: Weights
    deviation: float


@dataclass
class Tape:
    """The noised sums of chained rounds by the name of their draw; those of an earlier tape are released again."""

    earlier: Tape | None = None
    sums: dict[DrawName, NoisedSum] = field(default_factory=dict)
    missing: int = 0  # draws that the earlier tape does not have

    def take(self, name: DrawName, before: Weights, after: Weights, deviation: float) -> Weights:
        """Note a noised sum, and return what is released in its place."""
        kept = {n: t.detach().clone() for n, t in before.items()}
        self.sums[name] = NoisedSum(kept, {n: t.detach().clone() for n, t in after.items()}, deviation)
        if self.earlier is None:
            return after
        if name not in self.earlier.sums:
            self.missing += 1
            return after
        released = self.earlier.sums[name].after
        return {n: released[n].clone() if n in released else t for n, t in after.items()}


@dataclass(frozen=True)
class TapedMechanism(Mechanism):
    """A mechanism whose noised sums are noted on a tape.

    Attributes:
        tape: The tape.
    """

    tape: Tape = field(default_factory=Tape)

    @staticmethod
    def of(mechanism: Mechanism, tape: Tape) -> TapedMechanism:
        """Return the mechanism with a tape."""
        return TapedMechanism(**{one.name: getattr(mechanism, one.name) for one in fields(Mechanism)}, tape=tape)

    def noised(self, tensors: Weights, deviation: float, name: DrawName) -> Weights:
        """Add noise, and note it."""
        return self.tape.take(name, tensors, super().noised(tensors, deviation, name), deviation)

    def _server_noise(self, tensors: Weights, deviation: float, name: DrawName) -> Weights:
        found = super()._server_noise(tensors, deviation, name)
        return found if self.correlation is None else self.tape.take(name, tensors, found, deviation)


@dataclass(frozen=True)
class Chain:
    """Chained rounds of all phases, and the tape of their noised sums."""

    rounds: list[ReleasedRound]
    tape: Tape


def check_chain(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check chained rounds: what leaves and what is kept, the change by one unit, and the noise of every round."""
    first = chained(rounds, 1.0, Tape())
    second = chained(rounds, -1.0, Tape(first.tape))
    yield from _check_leaks(rounds, first, second)
    correlated = rounds.privacy.factorization is not None
    if not correlated:  # the account of correlated noise is that of all rounds together
        yield from _check_multiplier(rounds, first.tape, second.tape)
        yield from _check_chained_noise(first.tape)
    yield from check_charges(rounds)


def chained(rounds: PrivacyTestRounds, sign: float, tape: Tape) -> Chain:
    """Make the rounds of all phases one after the other, with an update of one unit pushed in a direction."""
    made: list[ReleasedRound] = []
    client = rounds.round(0.0).plans[0].client
    state: Snapshot | None = None
    for phase, settings in enumerate(rounds.experiment.phases):
        if state is not None:
            carried = carry_over_states(state.client_states, settings, rounds.store)
            state = state.leave_phase(carried)
        for number in range(CHAIN):
            released = rounds.run(
                RoundRequest(
                    rounds.sigma,
                    phase,
                    number,
                    without=_data(rounds, client, sign),
                    craft=None if rounds.privacy.unit == "record" else along(None, client, sign),
                    before=state,
                    pushed=True,
                    mechanism=lambda mechanism: TapedMechanism.of(mechanism, tape),
                )
            )
            made.append(released)
            state = released.after
    return Chain(made, tape)


def _data(rounds: PrivacyTestRounds, client: int, sign: float) -> PlanChange | None:
    """Return the change of the plan that makes the data of a chain: one unit of the client has other rows in one."""
    if rounds.privacy.unit == "record":
        return None if sign > 0 else with_another_example(client, 1)
    other = (client + 1) % len(rounds.partition)
    return with_one_unit(client, None if sign > 0 else rounds.partition.rows(other))


def _check_leaks(rounds: PrivacyTestRounds, first: Chain, second: Chain) -> Iterator[Measurement]:
    """Check that what leaves and what is kept is the same, given the same releases."""
    yield at_most("chained rounds: draws of noise that depend on a unit", second.tape.missing, 0)
    trusted = rounds.privacy.noise == "central" and rounds.privacy.unit != "record"
    titles = {"kept by the server": _of_server, "kept by clients": _of_clients}
    titles |= {} if trusted else {"sent by clients": _sent}
    for title, part in titles.items():
        differing, where = 0, ""
        for number, (a, b) in enumerate(zip(first.rounds, second.rounds, strict=True)):
            one, other = part(a, rounds), part(b, rounds)
            wrong = [name for name in one.keys() | other.keys() if not _same(one, other, name)]
            where = where or (f", from round {number + 1} on" if wrong else "")
            differing += len(wrong)
        yield at_most(f"chained rounds: tensors {title} that bypass the mechanism{where}", differing, 0)


def _same(one: Weights, other: Weights, name: str) -> bool:
    return name in one and name in other and torch.equal(one[name], other[name])


def _of_server(released: ReleasedRound, rounds: PrivacyTestRounds) -> Weights:
    clip = {} if released.clip is None else {"clip": torch.tensor([released.clip], dtype=torch.float64)}
    return released.after.tensors() | clip


def _of_clients(released: ReleasedRound, rounds: PrivacyTestRounds) -> Weights:
    own = released.plans[0].client if rounds.privacy.unit == "client" else None  # what a unit keeps of itself
    states = {client: state for client, state in released.states.items() if client != own}
    return {f"{client}/{name}": t for client, state in states.items() for name, t in flatten(state).items()}


def _sent(released: ReleasedRound, rounds: PrivacyTestRounds) -> Weights:
    return {f"{client}/{name}": t for client, parts in released.arrived.items() for name, t in flatten(parts).items()}


def _check_multiplier(rounds: PrivacyTestRounds, first: Tape, second: Tape) -> Iterator[Measurement]:
    """Check the noise that is asked for over half of the change by opposite updates, in every round."""
    mechanism = Mechanism(rounds.privacy, rounds.sigma)
    weight = rounds.num_clients / rounds.noise_cohort  # of a client in the cohort that is accounted for
    changes: dict[DrawName, float] = {}  # squared, in units of the noise, of all parts that one release has
    for name, one in first.sums.items():
        change = distance(one.before, second.sums[name].before) / 2 if name in second.sums else 0.0
        if name[0] not in ("noise", "step") or not change:
            continue
        release = name if name[0] == "step" else name[:5]  # without the part
        changes[release] = changes.get(release, 0.0) + _ratio(weight * change, one.deviation) ** 2
    least, where = math.inf, ""
    for release, squared in changes.items():
        wanted = mechanism.noise_multiplier if release[0] == "step" else mechanism.update_multiplier
        if (found := 1 / (math.sqrt(squared) * wanted)) < least:
            least, where = found, f" ({_place(release)})"
    holds = least * FLOAT32_SLACK >= 1
    yield Measurement(
        f"chained rounds: least noise over the change by one unit, over what is accounted for{where}",
        least,
        "at least 1",
        holds,
    )


def _ratio(change: float, deviation: float) -> float:
    """Return a change in units of the noise; infinity without noise."""
    return change / deviation if deviation else math.inf


def _check_chained_noise(tape: Tape) -> Iterator[Measurement]:
    """Check scale, zeros and independence of the noise over chained rounds."""
    sums = {name: one for name, one in tape.sums.items() if name[0] in ("noise", "step") and one.deviation > 0}
    if not sums:
        yield at_most("chained rounds: rounds without noise", len(tape.sums) or 1, 0)
        return
    noise = {
        name: {n: t.double() / one.deviation for n, t in subtract(one.after, one.before).items()}
        for name, one in sums.items()
    }
    values = {name: flattened(one) for name, one in noise.items()}
    yield check_scale("chained rounds: noise", np.concatenate(list(values.values())))
    by_size: dict[int, dict[str, np.ndarray]] = {}
    for name, one in values.items():
        by_size.setdefault(len(one), {})[_place(name)] = one
    values = {name: one for name, one in values.items() if len(one) >= FEW} or values
    worst = max(values, key=lambda name: abs(num_errors(float(np.mean(values[name] ** 2)), len(values[name]))))
    yield check_scale(f"chained rounds: noise of the worst sum ({_place(worst)})", values[worst], MAX_ERRORS_OF_MANY)
    zeros = {(name, n): int((t == 0).sum()) for name, one in noise.items() for n, t in one.items()}
    silent = max(zeros, key=lambda key: zeros[key])
    text = f"chained rounds: values of {silent[1]} without noise ({_place(silent[0])})"
    yield at_most(text, zeros[silent], min(MAX_ZEROS, noise[silent[0]][silent[1]].numel() - 1) or MAX_ZEROS)
    for size, draws in by_size.items():  # those of equal parts
        if size >= FEW and len(draws) > 1:
            yield check_pairs(f"chained rounds: noise of {size} values", draws)


def _place(name: DrawName) -> str:
    return " ".join(str(one) for one in (name[0], *name[2:]))


def check_charges(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check that every round of every phase is charged, also after an interruption, and none beyond the budget."""
    budget = Budget.of(rounds.experiment, rounds.partition, rounds.num_clients)
    charged: dict[int, int] = {}
    wrong = 0
    for phase, settings in enumerate(rounds.experiment.phases):
        for number in range(settings.rounds):  # each as after an interruption
            charged = dict(Account(budget).charge(charged, phase, number))
            wrong += charged != {**dict.fromkeys(range(phase), CHAIN), phase: number + 1}
    yield at_most("rounds that are not charged, with an interruption after each", wrong, 0)
    if rounds.sigma:
        epsilon = Budget(budget.scheme, rounds.sigma).epsilon({0: 1})  # its own noise is that of fewer rounds
        privacy = replace(budget.privacy, epsilon=epsilon, noise_multiplier=rounds.sigma)
        tight = Budget(replace(budget.scheme, privacy=privacy), rounds.sigma)
        yield at_most("rounds that are released beyond the budget", _beyond(Account(tight)), 0)


def _beyond(account: Account) -> int:
    charged = account.charge({}, 0, 0)
    try:
        account.charge(charged, 0, 1)
    except PrivacyError:
        return 0
    return 1
