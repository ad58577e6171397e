"""Work that is wanted together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from simfl.runtime.ray.cost_model import Costs, Shape
from simfl.runtime.ray.errands import Errands


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
    results: dict[int, Any] = field(default_factory=dict)  # by their place in `plans`, until somebody takes them
    failure: Exception | None = None
    helpers: set[int] = field(default_factory=set)  # places of the workers that got some of it
    num_taken: int = 0  # results

    @property
    def over(self) -> bool:
        """Done, or of no use any more."""
        return self.failure is not None or self.errands.over

    def taken(self) -> Iterator[Any]:
        """What has come back, in the order of the plans, as far as all before it was taken."""
        while self.num_taken in self.results:
            self.num_taken += 1
            yield self.results.pop(self.num_taken - 1)

    def seconds(self, place: int, work: int) -> float:
        """What a piece of it is thought to take on the worker there."""
        return self.costs.seconds(place, self.shapes[work])
