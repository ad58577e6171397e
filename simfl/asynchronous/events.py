"""The schedule of asynchronous training: when clients start and arrive, and which updates each server step applies.

The server has a number of slots (`concurrency`). A client that is sampled takes a slot, receives the newest version of
the model, trains, and uploads; its slot is free once the update has arrived or is given up. A *round* ends with a
server step: when the buffer is full, or at the deadline. The version r is the model after r steps, and the staleness of
an update in round r is r minus the version that its client received.

Order at one instant: updates arrive in the order of their clients' numbers, and the one that fills the buffer ends the
round; then the deadline ends it; then free slots are filled with idle clients. A client is idle again after the step
that ends the round in which its update arrived or was given up, so it takes part at most once per version and round.

Everything is a pure function of the settings, the durations and the seed. A round is computed from the one before it,
and earlier rounds by starting again: nothing of the schedule is stored in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import NamedTuple, Protocol

import numpy as np

from simfl.errors import ConfigError, RunError
from simfl.seeds import rng

BLOCK = 1 << 14  # clients that are drawn at a time
NEVER = 1 << 62  # instant that is never reached
NUM_KEPT = 4  # rounds that can be asked for again
AHEAD = 2048  # updates whose durations are computed at once, before they are asked for
FIRST_DRAWS = 24  # of the draws of a sample, those that are searched for the client that it will find

Likely = Callable[[], tuple[np.ndarray, np.ndarray]]  # clients and numbers of their updates, both int64 [n]


class UpdateTimes(Protocol):
    """Instants of client updates, in whole nanoseconds."""

    @property
    def fixed(self) -> np.ndarray | None:
        """Duration of any update of each client, int64 [K], if all clients are always available and never fail."""

    @property
    def always(self) -> bool:
        """True if every client is available at any time."""

    def finish(self, clients: np.ndarray, start: int, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return when updates that start at `start` end, int64 [n], and whether they arrive, bool [n].

        `index` is the number of each client's update in the phase, from 0, int64 [n].
        """

    def finish_one(self, client: int, start: int, index: int, likely: Likely | None = None) -> tuple[int, bool]:
        """Return the same of one update; `likely` names updates that may be asked for next, to compute them at once."""

    def is_available(self, client: int, instant: int) -> bool:
        """Return whether a client is available."""

    def next_available(self, clients: np.ndarray, instant: int) -> np.ndarray:
        """Return the first instant from `instant` on at which each client is available, int64 [n]; or `NEVER`."""


class Pace(NamedTuple):
    """The settings that the order of events depends on.

    Attributes:
        concurrency: Number of slots: clients that train or communicate at the same time.
        buffer: Arrived updates that make the server step.
        deadline: Nanoseconds after the last step at which the server steps with whatever has arrived; None: it waits.
        max_staleness: Largest staleness of an update that the server applies; None: any.
    """

    concurrency: int
    buffer: int
    deadline: int | None = None
    max_staleness: int | None = None


class ScheduledRound(NamedTuple):
    """The events of a round, from one server step to the next; instants are nanoseconds, clients ascend.

    Attributes:
        number: The round, from 0; also the version that clients sampled in it receive.
        start: Instant of the step before it.
        end: Instant of the step that ends it.
        sampled: Clients that received this round's version.
        clients: Clients whose updates the server applies.
        versions: Version that each of them received.
        refused: Clients whose updates arrived and are too stale to be applied.
        lost: Clients that gave up.
        keeps_version: Whether clients that received this round's version are in flight at the end.
        freed: Earlier versions that are not needed after this round.
        in_flight: Number of clients in flight at the end.
    """

    number: int
    start: int
    end: int
    sampled: list[int]
    clients: list[int]
    versions: list[int]
    refused: list[int]
    lost: list[int]
    keeps_version: bool
    freed: list[int]
    in_flight: int

    @property
    def staleness(self) -> np.ndarray:
        """Server steps between the download and the end of each applied update, int64 [n]."""
        return self.number - np.array(self.versions, np.int64)


# The end of a client update: instant, client, version, and whether it arrives. Events are compared in this order, and a
# client is in flight at most once. A plain tuple: a named one takes four times as long to make.
_Event = tuple[int, int, int, bool]


class EventSchedule:
    """The rounds of a phase, computed in order and on demand."""

    def __init__(self, pace: Pace, num_clients: int, times: UpdateTimes, seed: int, phase: int, start: int = 0) -> None:
        """Prepare the schedule.

        Args:
            pace: Slots, buffer, deadline and largest staleness.
            num_clients: K, all clients.
            times: Durations and availability of the clients.
            seed: Seed of the sampling of clients.
            phase: Number of the phase.
            start: Instant at which the phase starts.

        Raises:
            ConfigError: There are fewer clients than slots, or than places in the buffer.
        """
        for name in ("concurrency", "buffer"):
            if (given := getattr(pace, name)) > num_clients:
                raise ConfigError(f"asynchronous.{name}: {given} given, but there are {num_clients} clients")
        self._facts = (pace, num_clients, times, seed, phase, start)
        self._rounds: Iterator[ScheduledRound] = iter(())
        self._known: dict[int, ScheduledRound] = {}  # the newest
        self._next = 0  # round that `_rounds` yields next

    def round(self, number: int) -> ScheduledRound:
        """Return the events of a round, from 0."""
        if number not in self._known:
            if number < self._next or self._next == 0:
                self._rounds, self._next = _Server(*self._facts).rounds(), 0
            count, self._next = number + 1 - self._next, 0  # a schedule that fails starts again, and fails again
            for found in islice(self._rounds, count):
                self._known[found.number] = found
                self._known.pop(found.number - NUM_KEPT, None)
            self._next = number + 1
        return self._known[number]


class _Round:
    """The events of the round under way."""

    __slots__ = ("applied", "freed", "lost", "refused", "sampled", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.applied: list[tuple[int, int]] = []  # client, version
        self.refused: list[int] = []
        self.lost: list[int] = []
        self.sampled: list[int] = []
        self.freed: list[int] = []


class _Server:
    """The server and the clients in flight at the current instant."""

    def __init__(self, pace: Pace, num_clients: int, times: UpdateTimes, seed: int, phase: int, start: int) -> None:
        self.pace, self.num_clients, self.times = pace, num_clients, times
        self.now, self.version = start, 0
        self.in_flight: list[_Event] = []  # a heap
        self.users: dict[int, int] = {}  # version -> clients in flight that received it
        self.started = np.zeros(num_clients, np.int64)  # updates of each client so far; not needed if all are alike
        self.sampler = _Sampler(num_clients, times, seed, phase)

    def rounds(self) -> Iterator[ScheduledRound]:
        """Yield the rounds."""
        while True:
            this = _Round(self.now)
            self._until_step(this)
            yield self._finish(this)

    def _until_step(self, this: _Round) -> None:
        """Let events happen until the server steps."""
        limit = NEVER if self.pace.deadline is None else self.now + self.pace.deadline
        while True:
            if self._take_arrivals(this) or self.now >= limit:
                return
            wake = self._fill_slots(this)
            following = min(self.in_flight[0][0] if self.in_flight else NEVER, wake, limit)
            if following == NEVER:
                self._check_progress(this)
                return
            self.now = following

    def _take_arrivals(self, this: _Round) -> bool:
        """Take the updates that have ended by now; return whether the buffer is full."""
        heap, now, oldest = self.in_flight, self.now, self.pace.max_staleness
        while heap and heap[0][0] <= now:
            _, client, version, arrives = heappop(heap)
            users = self.users[version] - 1
            if users:
                self.users[version] = users
            else:
                del self.users[version]
                this.freed.append(version)
            if not arrives:
                this.lost.append(client)
            elif oldest is not None and self.version - version > oldest:
                this.refused.append(client)
            else:
                this.applied.append((client, version))
                if len(this.applied) == self.pace.buffer:
                    return True
        return False

    def _fill_slots(self, this: _Round) -> int:
        """Send the newest version to idle clients; return when the next idle client becomes available, or `NEVER`."""
        free = self.pace.concurrency - len(self.in_flight)
        if not free:
            return NEVER
        chosen, wake = self.sampler.sample(free, self.now, self.version)
        if not chosen:
            return wake
        if len(chosen) == 1:
            (client,) = chosen
            fixed = self.times.fixed
            if fixed is not None:
                end, arrives = self.now + int(fixed[client]), True
            else:
                index = int(self.started[client])
                end, arrives = self.times.finish_one(client, self.now, index, self._likely)
                self.started[client] = index + 1
            heappush(self.in_flight, (end, client, self.version, arrives))
        else:
            self._start(chosen)
        self.users[self.version] = self.users.get(self.version, 0) + len(chosen)
        this.sampled += chosen
        return wake

    def _start(self, chosen: list[int]) -> None:
        clients = np.array(chosen, np.int64)
        ends, arrive = self.times.finish(clients, self.now, self.started[clients])
        self.started[clients] += 1
        events = zip(ends.tolist(), chosen, [self.version] * len(chosen), arrive.tolist(), strict=True)
        if 4 * len(chosen) > len(self.in_flight):
            self.in_flight += events
            heapify(self.in_flight)
            return
        for event in events:
            heappush(self.in_flight, event)

    def _likely(self) -> tuple[np.ndarray, np.ndarray]:
        """Return updates that probably start next: clients and numbers of their updates, int64 [n]."""
        clients = self.sampler.likely(self.now)
        order = np.argsort(clients, kind="stable")
        ascending = clients[order]
        earlier = np.empty_like(clients)  # updates of the same client before each
        earlier[order] = np.arange(len(clients)) - np.searchsorted(ascending, ascending)
        return clients, self.started[clients] + earlier

    def _check_progress(self, this: _Round) -> None:
        """Raise RunError if nothing will ever happen again; else all clients have been tried in this round."""
        if not (this.applied or this.refused or this.lost):
            raise RunError(
                f"asynchronous round {self.version + 1}: no client is available any more after {self.now / 1e9:g}"
                " virtual seconds"
            )

    def _finish(self, this: _Round) -> ScheduledRound:
        """End the round: the clients that have come back are idle again, and the next version is the newest."""
        applied, version = sorted(this.applied), self.version
        clients = [client for client, _ in applied]
        self.sampler.release(clients + this.refused + this.lost)
        self.version += 1
        return ScheduledRound(
            version,
            this.start,
            self.now,
            sorted(this.sampled),
            clients,
            [received for _, received in applied],
            sorted(this.refused),
            sorted(this.lost),
            version in self.users,
            [old for old in this.freed if old != version],
            len(self.in_flight),
        )


class _Sampler:
    """Uniform sampling of idle and available clients.

    If all clients are idle and available, the clients are those of a synchronous round (`simfl.sampling`).
    """

    def __init__(self, num_clients: int, times: UpdateTimes, seed: int, phase: int) -> None:
        self.num_clients, self.times = num_clients, times
        self.names = (seed, phase)
        self.busy, self.num_busy = bytearray(num_clients), 0
        self.draws = _Draws(num_clients, seed, phase)
        self.num_enumerated = 0  # times that all idle clients were listed
        self.none_until = -1  # before this instant no idle client is available, unless one is released

    def release(self, clients: list[int]) -> None:
        """Make clients idle."""
        for client in clients:
            self.busy[client] = 0
        self.num_busy -= len(clients)
        self.none_until = -1

    def sample(self, count: int, now: int, version: int) -> tuple[list[int], int]:
        """Return up to `count` clients, now busy, and when another becomes available if they are too few."""
        count = min(count, self.num_clients - self.num_busy)
        if not count or now < self.none_until:
            return [], max(self.none_until, now) if count else NEVER
        chosen = self._of_synchronous(count, now, version) if not self.num_busy else []
        if not chosen:
            chosen = self._by_rejection(count, now)
        wake = NEVER
        if len(chosen) < count:
            rest, wake = self._by_enumeration(count - len(chosen), now)
            chosen += rest
        return chosen, wake

    def _take(self, clients: list[int]) -> list[int]:
        for client in clients:
            self.busy[client] = 1
        self.num_busy += len(clients)
        return clients

    def _of_synchronous(self, count: int, now: int, version: int) -> list[int]:
        """Return the clients of a synchronous round; none if not all of them are available."""
        seed, phase = self.names
        found = np.sort(rng(seed, "clients", phase, version).choice(self.num_clients, size=count, replace=False))
        if self.times.fixed is None and bool((self.times.next_available(found, now) > now).any()):
            return []
        return self._take(found.tolist())

    def _by_rejection(self, count: int, now: int) -> list[int]:
        """Draw clients until enough are idle and available, or the draws become futile."""
        if self._is_crowded:
            return []
        most = _num_draws(count)
        if self.times.fixed is not None:
            chosen = self._first_idle(islice(self.draws.singly, most), count)
        else:
            drawn: Iterable[int] = self.draws.window(most)
            if not self.times.always:
                drawn = filter(partial(self.times.is_available, instant=now), drawn)
            chosen = self._first_idle(drawn, count)
        self.num_busy += len(chosen)
        return chosen

    def _first_idle(self, drawn: Iterable[int], count: int) -> list[int]:
        """Return the first `count` idle clients, which are busy from now on."""
        busy, chosen = self.busy, list[int]()
        for client in drawn:
            if not busy[client]:
                busy[client] = 1
                chosen.append(client)
                if len(chosen) == count:
                    break
        return chosen

    @property
    def _is_crowded(self) -> bool:
        """True if at least half of the clients are busy, so that idle ones are listed and not drawn."""
        return 2 * self.num_busy >= self.num_clients

    def likely(self, now: int) -> np.ndarray:
        """Return up to `AHEAD` clients that will probably be sampled next, one at a time, int64 [n].

        A guess: what is sampled depends on which clients come back until then.
        """
        if self.num_clients <= AHEAD:
            return np.resize(np.arange(self.num_clients, dtype=np.int64), AHEAD)
        busy = np.frombuffer(self.busy, np.uint8)
        if self._is_crowded:
            return np.flatnonzero(busy == 0)[:AHEAD]
        size = _num_draws(1)
        drawn = self.draws.peek(AHEAD * size).reshape(AHEAD, size)[:, :FIRST_DRAWS]
        free = (busy[drawn] == 0) & (self.times.next_available(drawn.ravel(), now) <= now).reshape(drawn.shape)
        found: np.ndarray = drawn[np.arange(AHEAD), free.argmax(axis=1)]
        return found

    def _by_enumeration(self, count: int, now: int) -> tuple[list[int], int]:
        """Sample among all idle clients that are available; also return when the next one will be."""
        idle = np.flatnonzero(np.frombuffer(self.busy, np.uint8) == 0)
        available = idle if self.times.fixed is not None else None
        wake = NEVER
        if available is None:
            following = self.times.next_available(idle, now)
            available = idle[following <= now]
            wake = int(following[following > now].min(initial=NEVER))
        if len(available) <= count:
            self.none_until = wake
            return self._take(available.tolist()), wake
        seed, phase = self.names
        self.num_enumerated += 1
        chosen = rng(seed, "idle", phase, self.num_enumerated).choice(available, size=count, replace=False)
        return self._take(np.sort(chosen).tolist()), NEVER


def _num_draws(count: int) -> int:
    """Return after how many draws for a sample of `count` clients the idle ones are listed instead."""
    return 64 + 4 * count


class _Draws:
    """Clients, drawn uniformly with replacement: singly or many at once."""

    def __init__(self, num_clients: int, seed: int, phase: int) -> None:
        self.num_clients, self.names = num_clients, (seed, phase)
        self.drawn, self.at, self.num_blocks = np.empty(0, np.int64), 0, 0
        self.view = self.drawn.data  # single numbers of it are read several times as fast
        self.singly = (client for _ in count() for client in self._block().tolist())

    def window(self, count: int) -> memoryview[int]:
        """Return the next draws."""
        begin = self._reserve(count)
        self.at = begin + count
        return self.view[begin : self.at]

    def peek(self, count: int) -> np.ndarray:
        """Return draws to come without taking them, int64 [count]."""
        begin = self._reserve(count)
        return self.drawn[begin : begin + count]

    def _reserve(self, count: int) -> int:
        """Return the position of the next draw, of which there are `count` at least."""
        if self.at + count > len(self.drawn):
            blocks = [self.drawn[self.at :]]
            while sum(map(len, blocks)) < count:
                blocks.append(self._block())
            self.drawn, self.at = np.concatenate(blocks), 0
            self.view = self.drawn.data
        return self.at

    def _block(self) -> np.ndarray:
        seed, phase = self.names
        self.num_blocks += 1
        return rng(seed, "dispatch", phase, self.num_blocks - 1).integers(self.num_clients, size=BLOCK)
