"""Measurements of the units and samples of a private experiment, and of the events that its account assumes.

The functions of real rounds draw hundreds of samples, without training. Each frequency is compared with the settings of
the phase and with the sampling rates that the account is charged for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from simfl.debug.noise_statistics import MAX_ERRORS, Measurement, at_most
from simfl.debug.privacy_rounds import PrivacyTestRounds
from simfl.privacy.accounting import Event
from simfl.privacy.randomness import Randomness
from simfl.rounds import draft_round
from simfl.sampling import num_sampled
from simfl.training.batches import draw_unit
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlan, CohortPlan, ExecutionMode

NUM_DRAFTS = 300  # rounds whose samples are drawn
NUM_RECORD_ROUNDS = 60  # the same for batches of records
MAX_RECORD_CLIENTS = 3
PROVIDER = "provider"  # column by which groups are made where the partition names no other
MAX_UNITS_TESTED = 5000  # drafts times clients times groups, about


def check_units(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check that no example and no group name belongs to two units."""
    partition = rounds.partition
    rows = [partition.rows(client) for client in range(len(partition))]
    names: list[str] = []
    if rounds.privacy.unit == "group":
        groups = [group for client in range(len(partition)) for group in partition.groups(client)]
        rows, names = [own for _, own in groups], [name for name, _ in groups]
        yield at_most("examples in no group", len(partition.order) - len(np.unique(np.concatenate(rows))), 0)
        yield at_most("groups of one provider beyond its first", _providers_with_several(rounds, rows), 0)
    total = sum(map(len, rows))
    yield at_most("examples in a second unit", total - len(np.unique(np.concatenate(rows))), 0)
    yield at_most("names that a second group has too", len(names) - len(set(names)), 0)


def _providers_with_several(rounds: PrivacyTestRounds, groups: Sequence[np.ndarray]) -> int:
    """Return how many groups share a value of the column by which groups are made, besides the first of each value."""
    examples = rounds.whole.split("train").examples
    column = getattr(rounds.experiment.partition, "groups", None) or PROVIDER
    if column not in examples.column_names:
        return 0
    values: list[object] = examples[column].to_pylist()
    owners = Counter(value for rows in groups for value in {values[int(row)] for row in rows})
    return sum(count - 1 for count in owners.values())


def check_samples(rounds: PrivacyTestRounds) -> Iterator[Measurement]:
    """Check the frequencies of clients, groups and records in samples, and that rounds are sampled independently."""
    for index in range(len(rounds.given.phases)):
        context = rounds.whole.phase_context(index, len(rounds.partition), rounds.sigma, _source(rounds))
        events = _events(rounds, index)
        where = f"phase {index}"
        drafts = [draft_round(context, rounds.partition, number) for number in range(NUM_DRAFTS)]
        plans = [{plan.client: plan for plan in draft.client_plans} for draft in drafts]
        yield from _check_clients(context, where, [set(one) for one in plans])
        if rounds.privacy.unit == "group":
            yield from _check_groups(rounds, where, plans, events)
        if rounds.privacy.unit == "record":
            yield from _check_records(rounds, context, where, events)
        yield from _check_client_rate(rounds, where, [set(one) for one in plans], events)


def _source(rounds: PrivacyTestRounds) -> Randomness:
    privacy = rounds.given.privacy
    return Randomness.from_system() if privacy is not None and privacy.secure else Randomness.fresh()


def _events(rounds: PrivacyTestRounds, phase: int) -> list[Event]:
    """Return the events that one round of a phase is charged for, in the view of averages."""
    budget = rounds.account.budget
    assert budget is not None
    return [event for history in budget.scheme.histories(1.0, {phase: 1}, "averages") for event, _ in history]


def _check_clients(context: PhaseContext, where: str, sampled: Sequence[set[int]]) -> Iterator[Measurement]:
    total, count = context.num_clients, num_sampled(context.phase, context.num_clients)
    rate = float(context.phase.poisson or 1.0) if count is None else count / total
    found = np.array([len(one) for one in sampled])
    if count is not None:
        wrong = int((found != count).sum())
        yield at_most(f"{where}: rounds with another number of clients than {count}", wrong, 0)
    else:
        yield _frequency(f"{where}: clients", int(found.sum()), len(sampled) * total, rate)
    each = Counter(client for one in sampled for client in one)
    worst = max(range(total), key=lambda client: abs(each[client] - len(sampled) * rate))
    yield _frequency(f"{where}: client {worst}, the worst one", each[worst], len(sampled), rate, many=True)
    both = sum(len(a & b) for a, b in zip(sampled[::2], sampled[1::2], strict=False))
    yield _frequency(f"{where}: clients sampled in two rounds", both, len(sampled) // 2 * total, rate**2)


def _check_client_rate(
    rounds: PrivacyTestRounds, where: str, sampled: Sequence[set[int]], events: Sequence[Event]
) -> Iterator[Measurement]:
    """Check that the account assumes no smaller probability of a client than samples have."""
    if rounds.privacy.deployment is not None:
        return  # the account is that of its samples, which no run draws
    total = len(sampled) * len(rounds.partition)
    found = sum(map(len, sampled)) / total
    by_client = rounds.privacy.unit == "client"
    assumed = max(event.client_rate * (event.sampling_rate if by_client else 1.0) for event in events)
    if not by_client and (rounds.given.privacy or rounds.privacy).adjacency == "zero_out":
        return  # the rate of the unit is part of the client's
    yield _no_more(f"{where}: rate of clients, where the account assumes {assumed:.4g}", found, assumed, total)


def _check_groups(
    rounds: PrivacyTestRounds, where: str, plans: Sequence[dict[int, ClientPlan]], events: Sequence[Event]
) -> Iterator[Measurement]:
    privacy, numbers = rounds.given.privacy or rounds.privacy, rounds.partition.num_groups
    step = max(1, sum(map(len, plans)) // MAX_UNITS_TESTED)
    some = [plan for one in plans[::step] for plan in one.values()]
    twice = sum(len(plan.unit_names) - len(set(plan.unit_names)) for plan in some)
    yield at_most(f"{where}: units sampled more than once by a client", twice, 0)
    rate = privacy.group_rate
    limit = privacy.groups_per_client
    expected = [
        rate * numbers[p.client] if rate is not None else min(numbers[p.client], limit or math.inf) for p in some
    ]
    drawn, possible = sum(len(plan.units) for plan in some), int(sum(numbers[plan.client] for plan in some))
    yield _frequency(f"{where}: groups", drawn, possible, float(sum(expected)) / possible)
    if rate is None:
        wrong = sum(len(plan.units) != count for plan, count in zip(some, expected, strict=True))
        yield at_most(f"{where}: samples with a wrong number of groups", wrong, 0)
    yield from _check_pairs_of_groups(rounds, where, plans)
    sampled = [plan for plan in some if rate is not None or numbers[plan.client] > (limit or math.inf)]
    if sampled and privacy.adjacency == "add_remove":
        rates = [event.sampling_rate for event in events if event.sampling_rate < 1.0] or [1.0]
        smallest = min(numbers[plan.client] for plan in sampled)
        few = [plan for plan in sampled if numbers[plan.client] == smallest]
        found = sum(len(plan.units) for plan in few) / (len(few) * smallest)
        text = f"{where}: rate of groups of a sampled client, where the account assumes {max(rates):.4g}"
        yield _no_more(text, found, max(rates), len(few) * int(smallest))


def _check_pairs_of_groups(
    rounds: PrivacyTestRounds, where: str, plans: Sequence[dict[int, ClientPlan]]
) -> Iterator[Measurement]:
    """Check that a client's samples of two rounds overlap as independent ones do."""
    numbers, both, expected, variance, last = rounds.partition.num_groups, 0, 0.0, 0.0, dict[int, ClientPlan]()
    for one in plans:
        for client, plan in one.items():
            before = last.pop(client, None)
            if before is None:
                last[client] = plan
                continue
            a, b, n = len(before.units), len(plan.units), int(numbers[client])
            both += len(set(before.unit_names) & set(plan.unit_names))
            expected += a * b / n
            variance += a * b * (n - a) * (n - b) / (n * n * max(1, n - 1))
    errors = abs(both - expected) / math.sqrt(variance) if variance else 0.0
    yield at_most(f"{where}: overlap of a client's groups in two rounds, in standard errors", errors, MAX_ERRORS)


def _check_records(
    rounds: PrivacyTestRounds, context: PhaseContext, where: str, events: Sequence[Event]
) -> Iterator[Measurement]:
    """Check that batches of records are Poisson samples at the rate that the account assumes."""
    sizes, mode = rounds.partition.sizes, ExecutionMode("sequential", 1)
    clients = [int(k) for k in np.argsort(-sizes, kind="stable")[:MAX_RECORD_CLIENTS]]
    drawn = possible = both = pairs = 0
    variance = spread = most_steps = 0.0
    for client in clients:
        rows = rounds.partition.rows(client)
        public = context.public_examples or len(rows)
        rate = min(1.0, context.phase.local.batch_size / public)
        for number in range(NUM_RECORD_ROUNDS):
            plan = ClientPlan(client, 1.0, (rows,), "")
            cohort = CohortPlan(context.index, number, 0, 1, (plan,), mode, 1)
            batches = [set(one[one >= 0].tolist()) for one in draw_unit(context, cohort, plan, 0, rows).batches]
            drawn, possible = drawn + sum(map(len, batches)), possible + len(batches) * len(rows)
            variance += sum((len(one) - rate * len(rows)) ** 2 for one in batches)
            spread += len(batches) * len(rows) * rate * (1 - rate)
            both += sum(len(a & b) for a, b in zip(batches[::2], batches[1::2], strict=False))
            pairs += len(batches) // 2 * len(rows)
            most_steps = max(most_steps, len(batches))
        charged = max(event.sampling_rate for event in events)
        yield _frequency(f"{where}: records of client {client}", drawn, possible, rate)
        yield at_most(f"{where}: rate of records of client {client}, charged {charged:.4g}", rate, charged * (1 + 1e-9))
        yield _frequency(f"{where}: records of client {client} in two steps", both, pairs, rate**2)
        if spread:
            ratio, width = variance / spread, MAX_ERRORS * math.sqrt(3.0 / max(1, possible // len(rows)))
            holds = abs(ratio - 1) <= width
            text = f"{where}: variance of the batch sizes of client {client} over that of Poisson samples"
            yield Measurement(text, ratio, f"1 ± {width:.2g}", holds)
        drawn = possible = both = pairs = 0
        variance = spread = 0.0
    steps = max(event.steps for event in events)
    yield at_most(f"{where}: local steps of an update, where the account assumes {steps}", most_steps, steps)


def _frequency(what: str, found: int, total: int, rate: float, many: bool = False) -> Measurement:
    """Compare a frequency with its rate."""
    limit = MAX_ERRORS + many
    width = limit * math.sqrt(max(rate * (1 - rate), 1e-12) / max(1, total)) + limit**2 / (3 * max(1, total))
    value = found / max(1, total)
    return Measurement(
        f"{what}: frequency", value, f"{rate:.4g} ± {width:.2g}", abs(value - rate) <= width or not total
    )


def _no_more(what: str, found: float, assumed: float, total: int) -> Measurement:
    width = MAX_ERRORS * math.sqrt(max(found * (1 - found), 1e-12) / max(1, total)) + 1e-9
    return Measurement(what, found, f"at most {assumed:.4g} + {width:.2g}", found <= assumed + width)
