"""Schedules of asynchronous training: computed by hand for each policy, and their invariants for random profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from simfl.asynchronous.events import NEVER, EventSchedule, Likely, Pace, ScheduledRound
from simfl.errors import ConfigError, RunError
from simfl.seeds import rng
from simfl.virtual_time.availability import Always, Diurnal
from simfl.virtual_time.profiles import Profile, Work, client_profiles
from simfl.virtual_time.times import ClientTimes

A, B, C = 0, 1, 2


@dataclass
class Given:
    """Durations by client; clients in `away` are available from an instant on, updates in `lost` do not arrive."""

    durations: Sequence[int]
    lost: frozenset[tuple[int, int]] = frozenset()  # client, number of its update
    away: dict[int, int] = field(default_factory=dict)

    @property
    def fixed(self) -> np.ndarray | None:
        return None if self.lost or self.away else np.array(self.durations, np.int64)

    @property
    def always(self) -> bool:
        return not self.away

    def finish(self, clients: np.ndarray, start: int, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ends = start + np.array(self.durations, np.int64)[clients]
        names = zip(clients.tolist(), index.tolist(), strict=True)
        return ends, np.array([name not in self.lost for name in names], bool)

    def finish_one(self, client: int, start: int, index: int, likely: Likely | None = None) -> tuple[int, bool]:
        return start + self.durations[client], (client, index) not in self.lost

    def is_available(self, client: int, instant: int) -> bool:
        return self.away.get(client, 0) <= instant

    def next_available(self, clients: np.ndarray, instant: int) -> np.ndarray:
        return np.array([max(instant, self.away.get(client, 0)) for client in clients.tolist()], np.int64)


def schedule(pace: Pace, times: Given, seed: int = 0) -> EventSchedule:
    return EventSchedule(pace, len(times.durations), times, seed, 0)


def told(rounds: EventSchedule, count: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return the end of each round and its applied updates: client and staleness."""
    found = (rounds.round(number) for number in range(count))
    return [(one.end, list(zip(one.clients, one.staleness.tolist(), strict=True))) for one in found]


def test_fedbuff_by_hand() -> None:
    """A takes 2, B 3 and C 7; the server steps after two arrivals, and a client waits for the step of its update.

    0 all start at v0 | 2 A | 3 B, step, A B start at v1 | 5 A | 6 B, step, A B start at v2 | 7 C | 8 A, step, A C
    start at v3 | 9 B | 10 A, step
    """
    assert told(schedule(Pace(3, 2), Given([2, 3, 7])), 4) == [
        (3, [(A, 0), (B, 0)]),
        (6, [(A, 0), (B, 0)]),
        (8, [(A, 0), (C, 2)]),
        (10, [(A, 0), (B, 1)]),
    ]


def test_fedasync_by_hand() -> None:
    """A takes 2 and B 5, and each arrival is a step: A at 2, 4, 6, 8 and 10, B at 5 and 10; A goes first."""
    assert told(schedule(Pace(2, 1), Given([2, 5])), 7) == [
        (2, [(A, 0)]),
        (4, [(A, 0)]),
        (5, [(B, 2)]),
        (6, [(A, 1)]),
        (8, [(A, 0)]),
        (10, [(A, 0)]),
        (10, [(B, 3)]),
    ]


def test_updates_that_are_too_stale_by_hand() -> None:
    """As FedBuff above, but C arrives at 7 with a staleness of 2, and B completes the buffer at 9."""
    rounds = schedule(Pace(3, 2, max_staleness=1), Given([2, 3, 7]))
    assert told(rounds, 4) == [
        (3, [(A, 0), (B, 0)]),
        (6, [(A, 0), (B, 0)]),
        (9, [(A, 0), (B, 0)]),
        (12, [(A, 0), (B, 0)]),
    ]
    assert [rounds.round(number).refused for number in range(4)] == [[], [], [C], []]
    assert rounds.round(3).sampled == [A, B, C]


def test_deadline_by_hand() -> None:
    """Semi-asynchronous: a step after 4 at the latest, or with three updates.

    2 A | 3 B | 4 step, A B start at v1 | 6 A | 7 B and C, step, all start at v2 | 9 A | 10 B | 11 step | 13 A | 14 B C
    """
    assert told(schedule(Pace(3, 3, deadline=4), Given([2, 3, 7])), 4) == [
        (4, [(A, 0), (B, 0)]),
        (7, [(A, 0), (B, 0), (C, 1)]),
        (11, [(A, 0), (B, 0)]),
        (14, [(A, 0), (B, 0), (C, 1)]),
    ]


def test_round_without_arrivals_ends_at_the_deadline() -> None:
    rounds = schedule(Pace(1, 1, deadline=3), Given([7]))
    assert told(rounds, 3) == [(3, []), (6, []), (7, [(A, 2)])]
    assert [rounds.round(number).sampled for number in range(4)] == [[A], [], [], [A]]


def test_lost_updates_by_hand() -> None:
    """B is lost at 3 in its first update, so the buffer is full with C at 7; only then may B start again."""
    rounds = schedule(Pace(3, 2), Given([2, 3, 7], lost=frozenset({(B, 0)})))
    assert told(rounds, 2) == [(7, [(A, 0), (C, 0)]), (10, [(A, 0), (B, 0)])]
    assert [rounds.round(number).lost for number in range(2)] == [[B], []]


def test_availability_by_hand() -> None:
    """C comes at 4, when a slot is free for it; the two that came before fill the buffer at 3 and 6."""
    rounds = schedule(Pace(3, 2), Given([2, 3, 7], away={C: 4}))
    assert told(rounds, 4) == [
        (3, [(A, 0), (B, 0)]),
        (6, [(A, 0), (B, 0)]),
        (9, [(A, 0), (B, 0)]),
        (11, [(A, 0), (C, 2)]),
    ]
    assert [rounds.round(number).sampled for number in range(2)] == [[A, B], [A, B, C]]


def test_round_ends_early_if_all_clients_are_lost() -> None:
    rounds = schedule(Pace(2, 2), Given([2, 3], lost=frozenset({(A, 0), (B, 0)})))
    assert told(rounds, 2) == [(3, []), (6, [(A, 0), (B, 0)])]
    assert rounds.round(0).lost == [A, B]


def test_clients_that_never_come_are_refused() -> None:
    rounds = schedule(Pace(1, 1), Given([2], away={A: NEVER}))
    for _ in range(2):
        with pytest.raises(RunError, match="asynchronous round 1: no client is available any more after 0 virtual"):
            rounds.round(0)


@pytest.mark.parametrize("pace", [Pace(3, 1), Pace(1, 3)])
def test_more_slots_than_clients_are_refused(pace: Pace) -> None:
    with pytest.raises(ConfigError, match=r"asynchronous\.(concurrency|buffer): 3 given, but there are 2 clients"):
        schedule(pace, Given([1, 1]))


@pytest.mark.parametrize("duration", [0, 5])
def test_equal_durations_and_a_full_buffer_sample_as_synchronous_rounds(duration: int) -> None:
    rounds = schedule(Pace(4, 4), Given([duration] * 10), seed=3)
    for number in range(5):
        expected = np.sort(rng(3, "clients", 0, number).choice(10, size=4, replace=False))
        this = rounds.round(number)
        assert (this.sampled, this.clients, this.end) == (expected.tolist(), expected.tolist(), duration * (number + 1))
        assert set(this.versions) == {number}


def test_one_slot_is_sequential() -> None:
    rounds = schedule(Pace(1, 1), Given([2, 3, 7]), seed=1)
    found = [rounds.round(number) for number in range(20)]
    assert all(one.staleness.tolist() == [0] and one.sampled == one.clients for one in found)
    assert np.diff([0] + [one.end for one in found]).tolist() == [[2, 3, 7][one.clients[0]] for one in found]
    assert len({one.clients[0] for one in found}) == 3


def random_case(seed: int) -> tuple[Pace, int, ClientTimes]:
    """Return random settings and profiles, of which some have gaps, failures and jitter."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 30))
    pace = Pace(
        int(random.integers(1, count + 1)),
        int(random.integers(1, count + 1)),
        None if random.random() < 0.5 else int(random.integers(1, 3 * 10**9)),
        None if random.random() < 0.5 else int(random.integers(0, 4)),
    )
    profile = Profile(
        devices={"phone_low": 0.5, "laptop": 0.5},
        device_spread=float(random.random() * 3),
        jitter=float(random.choice([0.0, 0.5])),
        failure_rate=float(random.choice([0.0, 0.3])),
        availability=Always() if random.random() < 0.5 else Diurnal(period=30.0, zones=30.0, share=0.5),
    )
    profiles = client_profiles(profile, count, seed)
    size = np.full(count, 10**6)
    examples = random.integers(1, 100, count).astype(np.float64)
    return pace, count, ClientTimes(profiles, 0, 1e9, size, size, np.ones(count, np.int64), examples)


def check_round(this: ScheduledRound, in_flight: Counter[tuple[int, int]], pace: Pace) -> None:
    """Check the invariants of a round; `in_flight` are the clients and versions under way, which it updates."""
    in_flight.update((client, this.number) for client in this.sampled)
    applied = list(zip(this.clients, this.versions, strict=True))
    ended = Counter(applied)
    others = [client for client, _ in in_flight.elements() if client in {*this.refused, *this.lost}]
    assert sorted(others) == sorted([*this.refused, *this.lost]), "an update ended that was not under way"
    ended.update(pair for pair in in_flight.elements() if pair[0] in {*this.refused, *this.lost})
    assert ended <= in_flight, "an update was applied that was not under way"
    in_flight.subtract(ended)
    left = list(in_flight.elements())
    assert len(left) == this.in_flight <= pace.concurrency
    assert len({client for client, _ in left}) == len(left), "a client is in flight twice"
    assert len(this.clients) <= pace.buffer
    assert this.start <= this.end
    if pace.max_staleness is not None:
        assert max(this.staleness, default=0) <= pace.max_staleness
    assert this.keeps_version == any(version == this.number for _, version in left)
    assert not {version for _, version in left} & set(this.freed)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 200))])
def test_every_update_is_applied_dropped_or_in_flight(seed: int) -> None:
    pace, count, times = random_case(seed)
    rounds = EventSchedule(pace, count, times, seed, 0)
    in_flight: Counter[tuple[int, int]] = Counter()
    needed: set[int] = set()
    for number in range(25):
        this = rounds.round(number)
        check_round(this, in_flight, pace)
        needed = (needed | ({number} if this.keeps_version else set())) - set(this.freed)
        assert needed == {version for _, version in in_flight.elements()}


@pytest.mark.parametrize("seed", range(2))
def test_rounds_do_not_depend_on_what_was_asked_before(seed: int) -> None:
    pace, count, times = random_case(seed)
    first = [EventSchedule(pace, count, times, seed, 0).round(number) for number in range(12)]
    again = EventSchedule(pace, count, times, seed, 0)
    order = np.random.default_rng(seed).permutation(12).tolist()
    assert [again.round(number) for number in order] == [first[number] for number in order]


def test_slots_are_filled_uniformly() -> None:
    """400 clients in 20 slots: over 4,000 updates of equal length, each client takes part about ten times."""
    rounds = schedule(Pace(20, 5), Given([7] * 400), seed=5)
    counts = Counter(client for number in range(800) for client in rounds.round(number).clients)
    found = np.array([counts[client] for client in range(400)])
    assert found.sum() == 4000
    assert ((found - 10) ** 2 / 10).sum() < 500  # chi-square with 399 degrees of freedom: 0.9996 quantile


def test_fixed_durations_of_profiles_are_those_of_single_updates() -> None:
    profiles = client_profiles(Profile(device_spread=2.0), 50, 0)
    size, examples = np.full(50, 10**6), np.arange(50, dtype=np.float64)
    times = ClientTimes(profiles, 0, 1e9, size, size, np.ones(50, np.int64), examples)
    clients = np.array([3, 17, 40])
    assert times.fixed is not None
    ends, arrive = times.finish(clients, 1000, np.full(3, 9))
    assert (ends - 1000).tolist() == times.fixed[clients].tolist()
    assert arrive.all()
    work = Work(size[clients], size[clients], examples[clients], 1e9)
    assert work.flops == times.flops


@pytest.mark.parametrize("index", [0, 3, 20])
def test_times_of_one_update_are_those_of_many(index: int) -> None:
    profile = Profile(jitter=0.5, failure_rate=0.4, availability=Diurnal(period=60.0, zones=60.0, share=0.5))
    size, clients = np.full(40, 10**6), np.arange(40)
    times = ClientTimes(client_profiles(profile, 40, 0), 0, 1e9, size, size, np.ones(40, np.int64), clients + 1.0)
    ends, arrive = times.finish(clients, 7 * 10**9, np.full(40, index))
    one_by_one = [times.finish_one(client, 7 * 10**9, index) for client in range(40)]
    assert one_by_one == list(zip(ends.tolist(), arrive.tolist(), strict=True))
    assert 0 < arrive.sum() < 40


@pytest.mark.parametrize("clients", [40, 3000])  # below and above the number of updates that are computed at once
def test_durations_that_are_computed_ahead_are_those_of_single_updates(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = Profile(jitter=0.5, failure_rate=0.2, availability=Diurnal(period=600.0, zones=600.0, share=0.5))
    size, examples = np.full(clients, 10**6), np.arange(clients) + 1.0
    profiles = client_profiles(profile, clients, 0)

    def rounds() -> list[ScheduledRound]:
        times = ClientTimes(profiles, 0, 1e9, size, size, np.ones(clients, np.int64), examples)
        found = EventSchedule(Pace(15, 2), clients, times, 1, 0)
        return [found.round(number) for number in range(40)]

    ahead, single = rounds(), ClientTimes.finish_one
    monkeypatch.setattr(ClientTimes, "finish_one", lambda self, *update: single(self, *update[:3]))
    assert rounds() == ahead
