"""What the workers are at: each at one call at most, while another may wait there so that it goes on at once."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from simfl.runtime.ray.cost_model import remaining
from simfl.runtime.ray.jobs import Job
from simfl.timing import Clock, Span


@dataclass(frozen=True)
class Call:
    """A piece of work under way."""

    job: Job
    place: int  # of the worker
    work: int
    expected: float  # seconds; inf: not known
    alone: bool = False  # nothing may go out beside it
    since: float = field(default_factory=lambda: time.perf_counter())  # when its worker had nothing else to do
    clock: float = field(default_factory=lambda: time.time())  # the same

    @property
    def name(self) -> str:
        """What an error calls it."""
        return self.job.errands.names[self.work]

    def count(self, clock: Clock) -> None:
        """Add what the worker cannot know: how long its work waited to be begun, and how long it was under way."""
        clock.worker = self.place
        clock.add("queue", self.since - self.job.began)
        clock.add("transfer", max(0.0, time.perf_counter() - self.since - clock.busy))
        if clock.traced:
            first = min(span.began for span in clock.spans)
            clock.spans.append(Span("dispatch", self.clock, max(0.0, first - self.clock)))


class Calls:
    """All of them, by what Ray calls their results, in the order in which they went out."""

    def __init__(self) -> None:
        self.by_ref: dict[Any, Call] = {}

    @property
    def at_work(self) -> list[Call]:
        """The call that each worker is at."""
        return list({call.place: call for call in reversed(self.by_ref.values())}.values())

    @property
    def alone(self) -> bool:
        """Whether nothing may go out beside what is under way."""
        return any(call.alone for call in self.by_ref.values())

    def ready(self) -> dict[int, float]:
        """In how many seconds each worker at work will have done all that is there."""
        now, found = time.perf_counter(), dict[int, float]()
        for call in self.by_ref.values():
            first = call.place not in found
            more = remaining(call.expected, now - call.since) if first else call.expected
            found[call.place] = found.get(call.place, 0.0) + more
        return found

    def with_room(self) -> list[int]:
        """Places of workers at something that is known to end, with nothing that waits there."""
        count = Counter(call.place for call in self.by_ref.values())
        return [call.place for call in self.by_ref.values() if count[call.place] == 1 and call.expected < math.inf]

    def back(self, ref: Any) -> Call:
        """A call has ended; what waited behind it has begun."""
        ended = self.by_ref.pop(ref)
        for waited, call in self.by_ref.items():
            if call.place == ended.place:
                self.by_ref[waited] = replace(call, since=time.perf_counter(), clock=time.time())
                break
        return ended

    def drop(self, place: int) -> list[Call]:
        """All that is at a worker which is gone, the one that it was at first."""
        refs = [ref for ref, call in self.by_ref.items() if call.place == place]
        return [self.by_ref.pop(ref) for ref in refs]
