"""Measurements of the largest change that one unit causes, and of the account that is based on it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from simfl.debug.noise_statistics import MAX_ERRORS, Measurement, at_most, check_scale, distance, flattened
from simfl.debug.privacy_noise import (
    COUNT,
    average_deviation,
    deviation,
    divisor,
    effective_clip,
    in_noise_of_weights,
    zero,
)
from simfl.debug.privacy_rounds import (
    LONG_STEP,
    Craft,
    PlanChange,
    PrivacyTestRounds,
    ReleasedRound,
    RoundRequest,
    with_another_example,
    with_one_unit,
    without_client,
    without_group,
)
from simfl.privacy.budget import Budget
from simfl.protocol import ClientUpdate, Weights
from simfl.training import dp_records
from simfl.weights import add, scale, subtract

MAX_LEFT_OUT = 3  # units, one at a time
MAX_TENSORS = 24  # along which an update is crafted; the smallest ones are among them
FLOAT32_SLACK = 1 + 1e-3  # factor for rounding of sums in float32
LARGE = 1e6  # norm of a crafted update
COHORT_ROUNDS = 24  # rounds with a random number of clients


def check_sensitivity(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check what is uploaded, and the change of the average when one unit is left out or has a crafted update."""
    base, names = rounds.round(0.0), set(rounds.run_context.parameter_groups(0).shared)
    names |= {COUNT} if rounds.privacy.adaptive is not None else set()
    names |= {n for message in base.messages.values() for n in message if n.split("/")[0] in rounds.privacy.parts}
    mismatched = len({name for message in base.messages.values() for name in message} ^ names)
    yield at_most("tensors uploaded but not trained, or the reverse", mismatched, 0)
    twice = sum(len(plan.unit_names) - len(set(plan.unit_names)) for plan in base.plans)
    yield at_most("units sampled more than once by a client", twice, 0)
    limit = sensitivity(rounds)
    whole = _average(rounds, base)
    for title, change in units_to_leave_out(rounds):
        found = distance(whole, _average(rounds, rounds.round(0.0, without=change)))
        yield at_most(f"change of the average without {title}", found, limit * FLOAT32_SLACK)
    yield from check_clipping_of_records(rounds) if rounds.privacy.unit == "record" else _check_crafted(rounds)


def _check_crafted(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check that a large update of one unit along each tensor is clipped."""
    plan = rounds.round(0.0).plans[0]
    limit = effective_clip(rounds) / divisor(rounds, 1)
    others = [n for n in rounds.round(0.0).messages[plan.client] if n.split("/")[0] in rounds.privacy.parts]
    worst, where = 0.0, ""
    for name in (*_tensors(rounds), *others[:MAX_TENSORS], *([None] if others else [])):
        released = rounds.run(RoundRequest(0.0, without=with_one_unit(plan.client), craft=along(name, plan.client)))
        message = in_noise_of_weights(rounds, released.messages[plan.client])
        length = distance(message, scale(message, 0.0))
        if length >= worst:
            worst, where = length, name or "all"
    text = f"norm of a message with one update of norm {LARGE:g} along one tensor ({where})"
    yield at_most(text, worst, limit * FLOAT32_SLACK)
    if rounds.privacy.adaptive is not None:
        counts = [float(message[COUNT].abs().max()) for message in rounds.round(0.0).messages.values()]
        most = max(len(one.units) / divisor(rounds, len(one.units)) for one in rounds.round(0.0).plans) / 2
        yield at_most("count of units within the clip norm, minus half of them", max(counts), most * FLOAT32_SLACK)


def check_clipping_of_records(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check that each example's gradient is clipped, along any tensor, whatever the other examples have."""
    clip = 1.0
    shapes = {name: t.shape for name, t in rounds.round(0.0).average.items()}
    worst, where = 0.0, ""
    for name in _tensors(rounds):
        small = {n: torch.zeros(4, *shape) for n, shape in shapes.items()}
        large = {n: t.clone() for n, t in small.items()}
        large[name].view(4, -1)[0, 0] = LARGE
        change = distance(dp_records.clipped_sum(large, clip), dp_records.clipped_sum(small, clip))
        if change >= worst:
            worst, where = change, name
    text = f"change of the sum of gradients by one of norm {LARGE:g} along one tensor ({where})"
    yield at_most(text, worst, clip * FLOAT32_SLACK)


def check_account(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check that the account assumes no more noise than there is, over the largest change that one unit causes."""
    if rounds.privacy.unit == "record":
        return
    budget = Budget.of(rounds.experiment, rounds.partition, rounds.num_clients)
    noisy = rounds.run(RoundRequest(rounds.sigma, craft=zero))
    client = min(noisy.plans, key=lambda plan: len(plan.units)).client
    own = next(plan for plan in noisy.plans if plan.client == client)
    of_one = divisor(rounds, 1) / divisor(rounds, len(own.units))  # of a client that has one unit in `_changes`
    of_one *= rounds.num_clients / rounds.noise_cohort  # weight of a client in the cohort that is accounted for
    removed, replaced = (change * of_one for change in _changes(rounds, client))
    available = {"averages": (average_deviation(rounds, noisy), 1.0)}
    if rounds.privacy.noise == "client":
        available["messages"] = (deviation(rounds, len(own.units)), float(rounds.num_clients))
    joint = budget.privacy.adaptive is not None
    for view, (noise, share) in available.items():
        for history in budget.scheme.histories(rounds.sigma, {0: 1}, view):
            event = history[0][0]
            replaces = event.sampling_rate < 1.0 and rounds.privacy.adjacency == "add_remove"
            change = (replaced if replaces else removed) * share
            found = noise / change * (_without_count(rounds) if joint else 1.0)
            text = f"noise over the largest change, in {view}, where the account assumes {event.noise_multiplier:.4g}"
            allowed = f"at least {event.noise_multiplier:.4g}"
            holds = found * FLOAT32_SLACK >= event.noise_multiplier
            yield Measurement(text, found, allowed, holds)


def _without_count(rounds: PrivacyTestRounds) -> float:
    """Return the share of the noise of updates that is left when the count is released too."""
    assert rounds.privacy.adaptive is not None
    return math.sqrt(1 - 1 / (2 * rounds.privacy.adaptive.count_noise) ** 2)


def _average(rounds: PrivacyTestRounds, released: ReleasedRound, expected: float | None = None) -> Weights:
    """Return the released average before a lossy codec, which may enlarge what a unit changes.

    Args:
        rounds: The test rounds.
        released: The round.
        expected: Expected number of clients; None: all of them.
    """
    if all(phase.codec.upload.lossless for phase in rounds.experiment.phases):
        return released.average
    messages = [{n: message[n] for n in released.average} for message in released.messages.values()]
    fixed = rounds.privacy.denominator == "fixed" or rounds.privacy.unit == "record"
    clients = (expected or rounds.num_clients) if fixed else len(messages)
    total = messages[0] if messages else scale(released.average, 0.0)
    for message in messages[1:]:
        total = add(total, message)
    return scale(total, 1.0 / max(clients, 1e-9))


def _changes(rounds: PrivacyTestRounds, client: int) -> tuple[float, float]:
    """Return the change of the average if one unit's update is removed, and if it is replaced by an opposite one."""
    only, averages = with_one_unit(client), []
    for sign in (1.0, -1.0, 0.0):
        craft = along(None, client, sign)
        averages.append(_average(rounds, rounds.run(RoundRequest(0.0, without=only, craft=craft))))
    return distance(averages[0], averages[2]), distance(averages[0], averages[1])


def check_cohorts(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check rounds with a random number of clients: neither noise nor the weight of a unit follows that number."""
    privacy = rounds.privacy
    if privacy.unit == "record" or privacy.denominator != "fixed" or rounds.given.phases[0].poisson is None:
        return
    expected = rounds.num_clients / 2
    largest, values = 0.0, []
    for number in range(COHORT_ROUNDS):
        noisy = rounds.run(RoundRequest(rounds.sigma, 0, number, craft=zero, poisson=0.5))
        clients = max(1, len(noisy.plans))
        share = 1.0 if privacy.noise == "central" else math.sqrt(clients)
        cohort = expected if privacy.deployment is None else rounds.noise_cohort
        values.append(flattened(noisy.average) / (deviation(rounds, 1) * share / cohort))
        if noisy.plans:
            client = noisy.plans[0].client
            requests = [
                RoundRequest(0.0, 0, number, with_one_unit(client), along(None, client, sign), poisson=0.5)
                for sign in (1.0, 0.0)
            ]
            with_unit, without = (_average(rounds, rounds.run(request), expected) for request in requests)
            largest = max(largest, distance(with_unit, without))
    limit = (privacy.clip or math.inf) / (divisor(rounds, 1) * expected)
    yield at_most("change of the average by one unit, for any number of clients", largest, limit * FLOAT32_SLACK)
    for k, one in enumerate(sorted(values, key=lambda value: float((value**2).mean()))[:: COHORT_ROUNDS - 1]):
        yield check_scale(f"noise of the average with the {('least', 'most')[k]} noise", one, MAX_ERRORS + 2)


def check_states(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check that what clients store carries noise where it depends on data, and that the account knows of it."""
    if rounds.privacy.unit == "client":
        return
    base, noisy = rounds.round(0.0), rounds.run(RoundRequest(rounds.sigma))
    (_, change), *_ = units_to_leave_out(rounds)
    other = rounds.round(0.0, without=change)
    bare = kept = 0
    for client, groups in base.states.items():
        for group, tensors in groups.items():
            there, seen = noisy.states[client].get(group, {}), other.states.get(client, {}).get(group, {})
            is_noisy = any(not torch.equal(t, there[name]) for name, t in tensors.items())
            depends = bool(seen) and any(not torch.equal(t, seen[name]) for name, t in tensors.items())
            kept, bare = kept + is_noisy, bare + (depends and not is_noisy)
    yield at_most("stored tensors that depend on a unit and carry no noise", bare, 0)
    budget = rounds.account.budget
    assert budget is not None
    if kept and rounds.privacy.noise == "client" and rounds.privacy.unit == "group":
        ratios = [
            (a[0][0].noise_multiplier, b[0][0].noise_multiplier)
            for a, b in zip(
                budget.scheme.histories(1.0, {0: 1}, "averages"),
                budget.scheme.histories(1.0, {0: 1}, "messages"),
                strict=True,
            )
        ]
        text = "noise of averages over that of messages in the account, as clients store what they sent"
        yield at_most(text, max(a / b for a, b in ratios), 1.0)


def sensitivity(rounds: PrivacyTestRounds) -> float:
    """Return the largest change of the average that one unit may cause."""
    privacy, num_clients = rounds.privacy, rounds.num_clients
    clip = privacy.clip or math.inf
    if privacy.unit == "record":
        return 2 * clip * LONG_STEP / (rounds.experiment.phases[0].local.batch_size * num_clients)
    units = (privacy.groups_per_client or 1) if privacy.unit == "group" else 1
    if privacy.denominator == "realised":  # the sum of the other units is divided by a smaller number
        plans = rounds.round(0.0).plans
        count = min(len(plan.units) for plan in plans) if privacy.unit == "group" else num_clients
        others = num_clients if privacy.unit == "group" else 1
        return 2 * clip / (others * max(1, count - 1))
    return clip / (units * num_clients)


def units_to_leave_out(rounds: PrivacyTestRounds) -> list[tuple[str, PlanChange]]:
    """Return changes of client plans that leave one unit out, with a name for each."""
    plans, unit = rounds.round(0.0).plans, rounds.privacy.unit
    if unit == "client":
        return [(f"client {plan.client}", without_client(plan.client)) for plan in plans[:MAX_LEFT_OUT]]
    if unit == "record":
        return [
            (f"example {position} of client {plan.client}", with_another_example(plan.client, position))
            for plan in plans
            for position in range(2)
        ]
    groups = [(plan.client, name) for plan in plans for name in dict.fromkeys(plan.unit_names)]
    chosen = groups[:: max(1, len(groups) // MAX_LEFT_OUT)][:MAX_LEFT_OUT]
    return [(f"group {name} of client {client}", without_group(client, name)) for client, name in chosen]


def along(tensor: str | None, client: int, sign: float = 1.0) -> Craft:
    """Return crafted updates: large ones of one client along the first value of a tensor, or along all values."""

    def craft(name: str, received: Tensor, update: ClientUpdate) -> Tensor:
        direction = torch.zeros_like(received).reshape(-1)
        if tensor is None:
            direction = torch.ones_like(direction)
        elif name == tensor:
            direction = torch.cat([torch.ones_like(direction[:1]), direction[1:]])
        return (direction * sign * LARGE).view(received.shape) * (update.client == client)

    return craft


def _tensors(rounds: PrivacyTestRounds) -> list[str]:
    """Return names of tensors, the smallest ones and the last one among them."""
    average: Weights = subtract(rounds.round(0.0).average, rounds.round(0.0).average)
    names = sorted(average, key=lambda name: average[name].numel())
    return list(dict.fromkeys([*names[: MAX_TENSORS - 1], list(average)[-1]]))
