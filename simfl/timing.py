"""Where the time goes: seconds by name, and spans for a trace. Clock times never touch a result.

Functions say with `@timed("encode")` what their time is called; the clock that runs where they are called counts it. A
name counts its own time alone: reading examples inside of training is `load`, not `train`.
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
from typing import Any, NamedTuple, ParamSpec, TypeVar

NAMES = ("queue", "transfer", "decode", "load", "train", "encode", "sum", "server", "evaluate", "commit")
AROUND = ("queue", "transfer")  # what a piece of work waits for outside of its worker
BRIEF = ("load",)  # counted at every local step, and left out of traces

P = ParamSpec("P")
R = TypeVar("R")


class Span(NamedTuple):
    """Something that lasted: its name, when it began (seconds since 1970), its length in seconds, what it was about."""

    name: str
    began: float
    seconds: float
    about: str = ""


@dataclass
class Clock:
    """Seconds by name; with `traced`, spans too. `worker` is where the work was done."""

    traced: bool = False
    worker: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    memory: int = 0  # bytes at their highest so far: allocated on the GPU, or, without one, of the process
    use: float | None = None  # share of the time in which the GPU computed; None where that is not known
    _inner: float = 0.0  # seconds already counted inside the measure that is open

    @property
    def busy(self) -> float:
        """Seconds at work, without those around it."""
        return sum(seconds for name, seconds in self.seconds.items() if name not in AROUND)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def measure(self, name: str, about: str = "") -> Iterator[None]:
        """Count the block's own seconds, without those of measures inside it."""
        outer, self._inner, began, start = self._inner, 0.0, time.time(), time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.add(name, seconds - self._inner)
            self._inner = outer + seconds
            if self.traced and name not in BRIEF:
                self.spans.append(Span(name, began, seconds, about))


_CURRENT: ContextVar[Clock | None] = ContextVar("simfl_clock", default=None)


@contextmanager
def clocked(clock: Clock) -> Iterator[Clock]:
    """Inside the block, timed functions count on this clock."""
    token = _CURRENT.set(clock)
    try:
        yield clock
    finally:
        _CURRENT.reset(token)


@contextmanager
def measured(name: str, about: str = "") -> Iterator[None]:
    """A block whose time has a name; where no clock runs, it is run as it is."""
    clock = _CURRENT.get()
    if clock is None:
        yield
        return
    with clock.measure(name, about):
        yield


def timed(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose time has a name."""

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
    """A Chrome trace (chrome://tracing, Perfetto): one row for the driver, one for each worker. Whole after `close`."""

    def __init__(self, path: Path) -> None:
        """A file that is there is replaced; each event is on its line, so a cut-off trace can still be read."""
        self._file = open(path, "w")  # noqa: SIM115  (closed by `close`)
        self._file.write("[")
        self._rows: set[int] = set()
        self._comma = ""

    def add(self, row: int, spans: list[Span]) -> None:
        """Spans of the driver (row 0) or of worker `row - 1`."""
        if row not in self._rows:
            self._rows.add(row)
            name = f"worker {row - 1}" if row else "driver"
            self._event({"name": "process_name", "ph": "M", "pid": row, "tid": 0, "args": {"name": name}})
        for span in spans:
            times = {"ts": round(span.began * 1e6), "dur": round(span.seconds * 1e6)}
            self._event({"name": span.name, "ph": "X", "pid": row, "tid": 0, **times, "args": {"about": span.about}})

    def _event(self, event: dict[str, Any]) -> None:
        self._file.write(f"{self._comma}\n{json.dumps(event)}")
        self._comma = ","

    def close(self) -> None:
        """End the file."""
        self._file.write("\n]\n")
        self._file.close()


class Lap(NamedTuple):
    """Where the time of a round went, and what workers made of their machines."""

    timings: dict[str, float]  # seconds by name
    busy: tuple[float, ...]  # seconds of each worker at work
    memory: tuple[int, ...]  # bytes of each worker's GPU, or process, at their highest so far
    use: tuple[float | None, ...]  # mean share of the time in which each worker's GPU computed; none: not known
    seconds: float  # since the last lap
    ended: float  # seconds since 1970


class Stopwatch:
    """The time of a round: the driver's own clock, and those of its workers."""

    def __init__(self, num_workers: int, trace: Trace | None) -> None:
        """With a trace, spans go there."""
        self.own, self.trace = Clock(traced=trace is not None), trace
        self._seconds, self._busy = dict.fromkeys(NAMES, 0.0), [0.0] * num_workers
        self._memory = [0] * num_workers
        self._use: dict[int, list[float]] = {}  # of each worker's GPU, where it is known
        self._began = time.perf_counter()

    def count(self, clocks: Iterable[Clock], training: bool) -> None:
        """Clocks of finished work. Of evaluation only the workers' hours count: `evaluate` is what it is waited for."""
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
        """What was counted since the last lap."""
        if self.trace is not None:
            self.trace.add(0, self.own.spans)
        seconds = {name: self._seconds[name] + self.own.seconds.get(name, 0.0) for name in NAMES}
        busy = tuple(self._busy)
        use = tuple(mean(self._use[k]) if k in self._use else None for k in range(len(busy))) if self._use else ()
        self.own.seconds, self.own.spans = {}, []
        self._seconds, self._busy, self._use = dict.fromkeys(NAMES, 0.0), [0.0] * len(busy), {}
        now = time.perf_counter()
        lasted, self._began = now - self._began, now
        return Lap(seconds, busy, tuple(self._memory), use, lasted, time.time())
