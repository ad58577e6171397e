"""Work that is wanted together, and a piece of it under way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simfl.engine.costs import Costs, Shape
from simfl.engine.errands import Errands
from simfl.timing import Clock, Span


@dataclass(eq=False)
class Job:
    """The cohorts of a round, or the shards of an evaluation."""

    method: str  # of a worker
    plans: Sequence[Any]
    shared: Sequence[Any]  # references to what every piece of work is given
    memory: Sequence[Sequence[str]]  # digests of client memory that each plan reads
    shapes: Sequence[Shape]  # what the seconds of each plan grow with
    costs: Costs
    errands: Errands
    began: float  # as `time.perf_counter` has it
    results: list[Any]
    failure: Exception | None = None
    helpers: set[int] = field(default_factory=set)  # places of the workers that got some of it

    @property
    def over(self) -> bool:
        """Done, or of no use any more."""
        return self.failure is not None or self.errands.over

    def seconds(self, place: int, work: int) -> float:
        """What a piece of it is thought to take on the worker there."""
        return self.costs.seconds(place, self.shapes[work])


@dataclass(frozen=True)
class Call:
    """A piece of work under way."""

    job: Job
    place: int  # of the worker
    work: int
    expected: float  # seconds; inf: not known
    alone: bool  # nothing may go out beside it
    since: float  # as `time.perf_counter` has it
    clock: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """What an error calls it."""
        return self.job.errands.names[self.work]

    def count(self, clock: Clock) -> None:
        """Add what the worker cannot know: how long its work waited to be sent out, and how long it was under way."""
        clock.worker = self.place
        clock.add("queue", self.since - self.job.began)
        clock.add("transfer", max(0.0, time.perf_counter() - self.since - clock.busy))
        if clock.traced:
            first = min(span.began for span in clock.spans)
            clock.spans.append(Span("dispatch", self.clock, max(0.0, first - self.clock)))
