"""Availability of clients over time: processes that are pure functions of the seed, the client and the instant.

A schedule answers two questions for many clients at once: when is each available next, and until when. Both are exact,
so a simulation jumps from event to event and never polls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np

from simfl.constraints import Fraction, NonNegativeFloat, PositiveFloat
from simfl.errors import ConfigError
from simfl.virtual_time.instants import FOREVER, draws, nanoseconds

DAY = 86_400.0  # seconds


class AvailabilitySchedule(Protocol):
    """Times at which clients are available."""

    def next_available(self, clients: np.ndarray, instant: np.ndarray | int) -> np.ndarray:
        """Return the first instant from `instant` on at which each client is available, int64 [n] in nanoseconds.

        `FOREVER` for a client that is never available again. `clients` is int64 [n], `instant` int64 [n] or one.
        """
        ...

    def available_until(self, clients: np.ndarray, instant: np.ndarray | int) -> np.ndarray:
        """Return when each client, available at `instant`, becomes unavailable, int64 [n]; `FOREVER`: never.

        A client is unavailable from this instant on. For a client that is not available at `instant`, `instant`.
        """
        ...

    def available_until_one(self, client: int, instant: int) -> int:
        """Return the same of one client; own schedules that derive from this class need not define it."""
        return int(self.available_until(np.array([client]), instant)[0])


@dataclass(frozen=True)
class Availability:
    """Base of the settings of availability."""

    @property
    def is_always(self) -> bool:
        """True if every client is available at any time."""
        return False

    def schedule(self, num_clients: int, seed: int) -> AvailabilitySchedule:
        """Return the schedule of K clients.

        Raises:
            ConfigError, DataError: The settings do not fit the clients; the message starts with the setting.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Always(Availability):
    """Every client is available at any time."""

    @property
    def is_always(self) -> bool:
        """True."""
        return True

    def schedule(self, num_clients: int, seed: int) -> AvailabilitySchedule:
        """Return the schedule without gaps."""
        return AlwaysSchedule()


class AlwaysSchedule(AvailabilitySchedule):
    """Schedule without gaps."""

    def next_available(self, clients: np.ndarray, instant: np.ndarray | int) -> np.ndarray:
        """Return `instant` for every client."""
        return np.broadcast_to(np.asarray(instant, np.int64), clients.shape).copy()

    def available_until(self, clients: np.ndarray, instant: np.ndarray | int) -> np.ndarray:
        """Return `FOREVER` for every client."""
        return np.full(clients.shape, FOREVER, np.int64)

    def available_until_one(self, client: int, instant: int) -> int:
        """Return `FOREVER`."""
        return FOREVER


@dataclass(frozen=True)
class Diurnal(Availability):
    """One window per client in each period, such as a phone that charges at night.

    The window begins at `start` plus a shift of up to `zones` that is a hash of the client, and lasts `share` of the
    period times a factor between 1/(1 + spread) and 1 + spread.
    """

    start: NonNegativeFloat = 0.0  # seconds from the start of the period to the windows of the first zone
    share: Fraction = 0.33  # median fraction of the period in which a client is available
    zones: NonNegativeFloat = DAY  # seconds over which the starts of the windows are spread
    spread: NonNegativeFloat = 0.0  # of the length of the windows, see above
    period: PositiveFloat = DAY  # seconds

    def schedule(self, num_clients: int, seed: int) -> AvailabilitySchedule:
        """Return the windows of K clients."""
        clients = np.arange(num_clients, dtype=np.int64)
        period = int(nanoseconds(self.period))
        shift = nanoseconds(self.start + self.zones * draws((seed, "window"), clients)) % period
        drawn = draws((seed, "window length"), clients)
        away = 1.0 + self.spread * np.abs(2.0 * drawn - 1.0)
        share = self.share * np.where(drawn < 0.5, 1.0 / away, away)
        length = np.minimum(nanoseconds(share * self.period), period)
        return WindowSchedule(shift, length, period)


@dataclass(frozen=True)
class WindowSchedule(AvailabilitySchedule):
    """One window per client and period; all values are nanoseconds."""

    shift: np.ndarray  # start of each client's window within the period, int64 [K]
    length: np.ndarray  # length of each client's window, at most the period, int64 [K]
    period: int

    def next_available(self, clients: np.ndarray, instant: np.ndarray | int) -> np.ndarray:
        """Return `instant` within a window, and the start of the next one otherwise."""
        at = np.broadcast_to(np.asarray(instant, np.int64), clients.shape)
        position = (at - self.shift[clients]) % self.period
        return np.where(position < self.length[clients], at, at + self.period - position)

    def available_until(self, clients: np.ndarray, instant: np.ndarray | int) -> np.ndarray:
        """Return the end of the window; a window of the whole period has none."""
        at = np.broadcast_to(np.asarray(instant, np.int64), clients.shape)
        length = self.length[clients]
        position = (at - self.shift[clients]) % self.period
        end = np.where(position < length, at + length - position, at)
        return np.where(length == self.period, FOREVER, end)

    def available_until_one(self, client: int, instant: int) -> int:
        """Return the end of the window; a window of the whole period has none."""
        shifts, lengths = self._views
        length: int = lengths[client]
        if length == self.period:
            return FOREVER
        position = (instant - shifts[client]) % self.period
        return instant + length - position if position < length else instant

    @cached_property
    def _views(self) -> tuple[memoryview[int], memoryview[int]]:
        """Starts and lengths, of which single numbers are read several times as fast as those of arrays."""
        return self.shift.data, self.length.data


@dataclass(frozen=True)
class Intervals(Availability):
    """The same intervals for all clients, optionally shifted for each and repeated."""

    example: ClassVar[Mapping[str, object]] = {"intervals": [[0.0, 3600.0]], "period": 7200.0}

    intervals: tuple[tuple[NonNegativeFloat, PositiveFloat], ...]  # [start, end] in seconds, ascending and disjoint
    period: PositiveFloat | None = None  # seconds after which the intervals repeat; null: never
    shift: NonNegativeFloat = 0.0  # largest delay of a client in seconds, a hash of the client; needs a period

    def __post_init__(self) -> None:
        """Check the intervals."""
        check_intervals(self.intervals, self.period, "intervals")
        if self.shift and self.period is None:
            raise ConfigError(f"shift: {self.shift:g} given, but without period the last interval ends; give a period")

    def schedule(self, num_clients: int, seed: int) -> AvailabilitySchedule:
        """Return the intervals of K clients."""
        shift = nanoseconds(self.shift * draws((seed, "shift"), np.arange(num_clients, dtype=np.int64)))
        own = IntervalTable.of([self.intervals], None if self.period is None else [self.period])
        return IntervalSchedule(own, np.zeros(num_clients, np.int64), shift)


def check_intervals(intervals: Sequence[Sequence[float]], period: float | None, where: str) -> None:
    """Raise ConfigError unless intervals are ascending and disjoint, and end within the period."""
    last = 0.0
    if not intervals:
        raise ConfigError(f"{where}: the list is empty; give at least one [start, end]")
    for start, end in intervals:
        if not last <= start < end:
            raise ConfigError(
                f"{where}: [{start:g}, {end:g}] given after {last:g}; allowed: ascending, disjoint, start before end"
            )
        last = end
    if period is not None and last > period:
        raise ConfigError(f"{where}: the last one ends at {last:g}, after the period of {period:g} seconds")


@dataclass(frozen=True)
class IntervalTable:
    """Intervals of several traces, one after the other; all values are nanoseconds.

    Attributes:
        starts: Starts of the intervals, int64 [intervals].
        ends: Their ends, exclusive, int64 [intervals].
        first: Position of the first interval of each trace, and of the end of the last one, int64 [traces + 1].
        periods: Period of each trace, int64 [traces]; `FOREVER`: it does not repeat.
    """

    starts: np.ndarray
    ends: np.ndarray
    first: np.ndarray
    periods: np.ndarray

    @staticmethod
    def of(traces: Sequence[Sequence[Sequence[float]]], periods: Sequence[float] | None) -> IntervalTable:
        """Return intervals in seconds as a table; `periods` in seconds, None: no trace repeats."""
        whole = [_merged(trace) for trace in traces]
        pairs = np.array([pair for trace in whole for pair in trace], np.float64).reshape(-1, 2)
        first = np.concatenate([[0], np.cumsum([len(trace) for trace in whole])]).astype(np.int64)
        repeats = np.full(len(traces), FOREVER, np.int64) if periods is None else nanoseconds(np.array(periods))
        return IntervalTable(nanoseconds(pairs[:, 0]), nanoseconds(pairs[:, 1]), first, repeats)


def _merged(intervals: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return intervals, of which those that adjoin are one."""
    found: list[tuple[float, float]] = []
    for start, end in intervals:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


@dataclass(frozen=True)
class IntervalSchedule(AvailabilitySchedule):
    """Intervals of clients: each follows one trace of a table, delayed by its shift."""

    table: IntervalTable
    traces: np.ndarray  # trace of each client, int64 [K]
    shift: np.ndarray  # nanoseconds, int64 [K]

    def next_available(self, clients: np.ndarray, instant: np.ndarray | int) -> np.ndarray:
        """Return `instant` within an interval, and the start of the next one otherwise."""
        at, position, base, found = self._find(clients, instant)
        trace = self.traces[clients]
        last, period = self.table.first[trace + 1], self.table.periods[trace]
        inside, opening = found < last, self.table.first[trace]
        start = self.table.starts[np.minimum(found, len(self.table.starts) - 1)]
        repeats = (period < FOREVER) & (opening < last)
        reopened = self.table.starts[np.minimum(opening, len(self.table.starts) - 1)]
        again = np.where(repeats, base + np.where(repeats, period, 0) + reopened, FOREVER)
        later = np.where(inside, base + np.maximum(start, position), again)
        return np.maximum(later, at)

    def available_until(self, clients: np.ndarray, instant: np.ndarray | int) -> np.ndarray:
        """Return the end of the interval; one that lasts until the next period's first one ends with that."""
        at, position, base, found = self._find(clients, instant)
        trace, most = self.traces[clients], len(self.table.starts) - 1
        index, opening = np.minimum(found, most), np.minimum(self.table.first[trace], most)
        inside = (found < self.table.first[trace + 1]) & (self.table.starts[index] <= position)
        wraps = inside & (self.table.ends[index] == self.table.periods[trace]) & (self.table.starts[opening] == 0)
        end = base + self.table.ends[index] + np.where(wraps, self.table.ends[opening], 0)
        return np.where(wraps & (index == opening), FOREVER, np.where(inside, end, at))

    def available_until_one(self, client: int, instant: int) -> int:
        """Return the end of the interval; one that lasts until the next period's first one ends with that."""
        starts, ends, first, periods = self._lists
        trace = int(self.traces[client])
        opening, last, period = first[trace], first[trace + 1], periods[trace]
        position = instant - int(self.shift[client])
        if period < FOREVER:
            position %= period
        found = bisect_right(ends, position, opening, last)
        if found == last or starts[found] > position:
            return instant
        wraps = ends[found] == period and starts[opening] == 0
        if wraps and found == opening:
            return FOREVER
        return instant - position + ends[found] + (ends[opening] if wraps else 0)

    @cached_property
    def _lists(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Starts, ends, first intervals and periods of the table."""
        table = self.table
        return table.starts.tolist(), table.ends.tolist(), table.first.tolist(), table.periods.tolist()

    def _find(
        self, clients: np.ndarray, instant: np.ndarray | int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the instants, positions in the trace, starts of the periods, and first intervals that end later."""
        at = np.broadcast_to(np.asarray(instant, np.int64), clients.shape)
        trace = self.traces[clients]
        shifted, period = at - self.shift[clients], self.table.periods[trace]
        position = np.where(period < FOREVER, shifted % period, shifted)
        low, high = self.table.first[trace], self.table.first[trace + 1]
        while bool((low < high).any()):  # a binary search of all clients at once
            middle = (low + high) // 2
            ends = self.table.ends[np.minimum(middle, len(self.table.ends) - 1)]
            later = (low < high) & (ends <= position)
            low, high = np.where(later, middle + 1, low), np.where((low < high) & ~later, middle, high)
        return at, position, at - position, low
