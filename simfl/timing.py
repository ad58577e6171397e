"""Measurement of time: seconds by name, and spans for a trace. Clock times never affect a result.

`@timed("encode")` names the time of a function; the clock that runs where the function is called counts it. A name
counts only its own time: reading examples during training is `load`, not `train`.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import NamedTuple, ParamSpec, TypeVar

NAMES = ("queue", "transfer", "decode", "load", "train", "encode", "sum", "server", "evaluate", "save")
WAITING = ("queue", "transfer")  # time in which a task waits outside of its worker
UNTRACED = ("load",)  # measured in every local step, and left out of traces

P = ParamSpec("P")
R = TypeVar("R")


class Span(NamedTuple):
    """A measured interval."""

    name: str
    began: float  # seconds since 1970
    seconds: float
    about: str = ""  # what was worked on


@dataclass
class Clock:
    """Seconds by name.

    Attributes:
        traced: Whether spans are kept too.
        worker: Number of the worker that did the work.
        seconds: Seconds by name.
        spans: Spans, if traced.
        memory: Peak memory in bytes so far: allocated on the GPU or, without one, resident in the process.
        use: Share of the time in which the GPU computed; None where it is not known.
    """

    traced: bool = False
    worker: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    memory: int = 0
    use: float | None = None
    _inner: float = 0.0  # seconds already counted inside the current measure

    @property
    def busy(self) -> float:
        """Seconds at work, without waiting."""
        return sum(seconds for name, seconds in self.seconds.items() if name not in WAITING)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def measure(self, name: str, about: str = "") -> Iterator[None]:
        """Count the seconds of the block, without those of measures inside it."""
        outer, self._inner, began, start = self._inner, 0.0, time.time(), time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.add(name, seconds - self._inner)
            self._inner = outer + seconds
            if self.traced and name not in UNTRACED:
                self.spans.append(Span(name, began, seconds, about))


_CURRENT: ContextVar[Clock | None] = ContextVar("simfl_clock", default=None)


@contextmanager
def clocked(clock: Clock) -> Iterator[Clock]:
    """Make this clock the one that counts timed functions inside the block."""
    token = _CURRENT.set(clock)
    try:
        yield clock
    finally:
        _CURRENT.reset(token)


@contextmanager
def measured(name: str, about: str = "") -> Iterator[None]:
    """Count the time of the block under a name, if a clock runs."""
    clock = _CURRENT.get()
    if clock is None:
        yield
        return
    with clock.measure(name, about):
        yield


def timed(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that its time is counted under a name."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            clock = _CURRENT.get()
            if clock is None:
                return function(*args, **kwargs)
            with clock.measure(name):
                return function(*args, **kwargs)

        return called

    return decorate


class Trace:
    """A Chrome trace (chrome://tracing, Perfetto): a row for the driver, one per worker. Complete after `close`."""

    def __init__(self, path: Path) -> None:
        """Replace the file. Each event has a line of its own, so an incomplete trace can still be read."""
        self._file = open(path, "w")  # noqa: SIM115  (closed by `close`)
        self._file.write("[")
        self._rows: set[int] = set()
        self._comma = ""

    def add(self, row: int, spans: list[Span]) -> None:
        """Add spans of the driver (row 0) or of worker `row - 1`."""
        if row not in self._rows:
            self._rows.add(row)
            name = f"worker {row - 1}" if row else "driver"
            self._event({"name": "process_name", "ph": "M", "pid": row, "tid": 0, "args": {"name": name}})
        for span in spans:
            times = {"ts": round(span.began * 1e6), "dur": round(span.seconds * 1e6)}
            self._event({"name": span.name, "ph": "X", "pid": row, "tid": 0, **times, "args": {"about": span.about}})

    def _event(self, event: dict[str, object]) -> None:
        self._file.write(f"{self._comma}\n{json.dumps(event)}")
        self._comma = ","

    def close(self) -> None:
        """Complete and close the file."""
        self._file.write("\n]\n")
        self._file.close()


class Lap(NamedTuple):
    """The time of a round by name, and the utilization of the workers."""

    timings: dict[str, float]  # seconds by name
    busy: tuple[float, ...]  # seconds at work of each worker
    memory: tuple[int, ...]  # peak bytes of each worker's GPU, or process, so far
    use: tuple[float | None, ...]  # mean utilization of each worker's GPU, 0 to 1; None: not known
    seconds: float  # since the last lap
    ended: float  # seconds since 1970


class Stopwatch:
    """The clock of the driver and those of its workers, read out once per round."""

    def __init__(self, num_workers: int, trace: Trace | None) -> None:
        """Start. Spans are added to the trace, if there is one."""
        self.own, self.trace = Clock(traced=trace is not None), trace
        self._seconds, self._busy = dict.fromkeys(NAMES, 0.0), [0.0] * num_workers
        self._memory = [0] * num_workers
        self._use: dict[int, list[float]] = {}  # readings of each worker's GPU, where known
        self._began = time.perf_counter()

    def count(self, clocks: Iterable[Clock], training: bool) -> None:
        """Add the clocks of finished tasks. Those of evaluations count for the workers' busy time only."""
        for clock in clocks:
            more = clock.worker + 1 - len(self._busy)  # workers may join
            self._busy, self._memory = self._busy + [0.0] * more, self._memory + [0] * more
            self._busy[clock.worker] += clock.busy
            self._memory[clock.worker] = max(self._memory[clock.worker], clock.memory)
            if clock.use is not None:
                self._use.setdefault(clock.worker, []).append(clock.use)
            for name, seconds in clock.seconds.items() if training else ():
                self._seconds[name] += seconds
            if self.trace is not None:
                self.trace.add(1 + clock.worker, clock.spans)

    def lap(self) -> Lap:
        """Return what was counted since the last lap."""
        if self.trace is not None:
            self.trace.add(0, self.own.spans)
        seconds = {name: self._seconds[name] + self.own.seconds.get(name, 0.0) for name in NAMES}
        busy = tuple(self._busy)
        use = tuple(mean(self._use[k]) if k in self._use else None for k in range(len(busy))) if self._use else ()
        self.own.seconds, self.own.spans = {}, []
        self._seconds, self._busy, self._use = dict.fromkeys(NAMES, 0.0), [0.0] * len(busy), {}
        now = time.perf_counter()
        duration, self._began = now - self._began, now
        return Lap(seconds, busy, tuple(self._memory), use, duration, time.time())
