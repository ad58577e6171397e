"""Cohorts and shards onto Ray actors.

Results come in the order of the plans, whoever finishes first; free workers pull, the longest work goes out first.
Workers that start join when they are ready, workers that die are replaced, and the others go on meanwhile.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simfl.cohort.pieces import Piece, Slope, Step
from simfl.cohort.plan import Ahead, CohortPlan
from simfl.cohort.visit import CohortResult
from simfl.engine.berths import Berths
from simfl.engine.boot import cause
from simfl.engine.crew import Crew
from simfl.engine.errands import RETRIES, Errands
from simfl.engine.hosted import Berth
from simfl.engine.inline import cohort_names, shard_names
from simfl.engine.worker import Setup
from simfl.errors import OutOfMemory, RunError, SimflError
from simfl.evaluation import EvaluationPlan, Scores
from simfl.protocol import Parts, Weights
from simfl.timing import Clock, Span

PATIENCE = 30.0  # seconds without a word while workers start
LOOK = 5.0  # seconds between two looks for machines that have joined
START = 600.0  # seconds that the first worker has to start, if the watchdog has no more


@dataclass(frozen=True)
class Call:
    """A piece of work under way."""

    place: int  # of the worker
    work: int
    since: float = field(default_factory=time.perf_counter)
    clock: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Start:
    """A worker on its way into the phase."""

    place: int
    tries: int = 0  # workers that died here on the way


class RayPool:
    """Long-lived actors, one a CPU or GPU. What all of them need is put once into the object store, so once a node."""

    def __init__(self, crew: Crew, setup: Setup, on_message: Callable[[str], None]) -> None:
        crew.wait()
        self.crew, self.ray, self.say = crew, crew.ray, on_message
        self.setup = setup = replace(setup, sitting=uuid.uuid4().hex)
        found = self.ray.exceptions
        self.lost = (found.RayActorError, found.ObjectLostError, found.OutOfMemoryError)  # work that can be done again
        self.limit = setup.experiment.watchdog_seconds or float("inf")
        self.actors = crew.actors  # its own list: those in the place of others end with it too
        self.num_workers = len(self.actors)
        self.told = self.ray.cloudpickle.dumps(setup)
        self.phase: tuple[int, Any] = (-1, None)  # its number, and a reference to its base
        self.sent: tuple[Parts, Any] = ({}, None)  # what was put last, and the reference to it
        self.starting: dict[Any, Start] = {}
        self.berths = Berths(setup, self.ray.put, on_message)
        self.next_look = 0.0

    def begin(self, phase: int, base: Weights) -> None:
        """Returns when the first worker is in the phase; the others join the work when they are."""
        self.phase = (phase, self.ray.put(base))
        self.starting = {
            actor.begin.remote(self.told, *self.phase): Start(place) for place, actor in enumerate(self.actors)
        }
        while len(self.starting) == self.num_workers:
            self._started(self._first({}, ()))

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], ahead: Ahead
    ) -> list[CohortResult]:
        errands = Errands(cohort_names(plans), costs)
        shared = [self._put(received)]
        return self._map("train", plans, shared, errands, lambda plan: [v.memory for v in plan.visits], ahead)

    def slopes(self, pieces: Sequence[Piece], shared: Step) -> list[Slope]:
        names = [f"{len(piece.rows)} examples of client {piece.client}" for piece in pieces]
        both = [self.ray.put(replace(shared, received={})), self._put(shared.received)]
        errands = Errands(names, [len(piece.rows) for piece in pieces])
        return self._map("slope", pieces, both, errands, lambda _: [])

    def evaluate(self, plans: Sequence[EvaluationPlan], received: Parts) -> list[Scores]:
        errands = Errands(shard_names(plans), [len(plan.rows) for plan in plans])
        return self._map("evaluate", plans, [self._put(received)], errands, lambda plan: [plan.memory])

    def _put(self, received: Parts) -> Any:
        """A reference to what a round sends down, put once however often it is sent."""
        if self.sent[0] is not received:
            self.sent = received, self.ray.put(received)
        return self.sent[1]

    def _map(
        self,
        method: str,
        plans: Sequence[Any],
        shared: Sequence[Any],
        errands: Errands,
        needs: Callable[[Any], Sequence[str]],
        meanwhile: Callable[[], Any] | None = None,
    ) -> list[Any]:
        """Results in the order of the plans; `needs` are the digests of client memory that a plan reads.

        `meanwhile` is called once, when everybody is at work.
        """
        self._welcome()
        began = time.perf_counter()
        results: list[Any] = [None] * len(plans)
        running: dict[Any, Call] = {}
        absent = {start.place for start in self.starting.values()}
        idle = [place for place in range(self.num_workers) if place not in absent]
        while True:
            while idle and (work := self._next(errands, len(running), idle)) is not None:
                place = idle.pop()
                memory = self.berths.carry(place, needs(plans[work]))
                call = getattr(self.actors[place], method).remote(plans[work], *shared, memory)
                running[call] = Call(place, work)
            if not running and errands.empty:
                return results
            if meanwhile is not None:
                meanwhile()
                meanwhile = None
            ready = self._first(running, errands.names)
            if ready in self.starting:
                idle += self._started(ready)
                continue
            call = running.pop(ready)
            result = self._result(ready, call, errands)
            if result is not None:
                results[call.work] = result
                self._clock(result.clock, call, began)
                idle.append(call.place)

    def _next(self, errands: Errands, num_running: int, idle: list[int]) -> int | None:
        """What to send out; what has to be alone waits for the fresh worker, and for memory that others spare."""
        if errands.solitary:
            if num_running or self.starting:
                return None
            self.ray.wait(
                [self.actors[place].spare.remote() for place in idle], num_returns=len(idle), timeout=PATIENCE
            )
        return errands.next()

    def _result(self, ready: Any, call: Call, errands: Errands) -> Any:
        """What the work returned, or None if it has to be done again and its worker is being replaced."""
        try:
            result, memory = self._get(ready)
        except (*self.lost, OutOfMemory) as error:
            self._replace(call.place)
            starved = isinstance(error, (OutOfMemory, self.ray.exceptions.OutOfMemoryError))
            self.say((errands.starved if starved else errands.died)(call.work, cause(error)))
            return None
        self.berths.keep(memory)
        errands.done()
        return result

    def _welcome(self) -> None:
        """Hire for machines that have joined, or become free, since the last look."""
        now = time.monotonic()
        if not self.crew.grows or self.starting or now < self.next_look:
            return
        self.next_look = now + LOOK
        more = self.crew.free(self.ray)
        for _ in range(more):
            self.actors.append(self.crew.actor())
            begun = self.actors[-1].begin.remote(self.told, *self.phase)
            self.starting[begun] = Start(len(self.actors) - 1)
        if more:
            self.num_workers = len(self.actors)
            self.say(f"Ray has room for {more} worker{'s' if more > 1 else ''} more: {self.num_workers} from now on")

    def _clock(self, clock: Clock, call: Call, began: float) -> None:
        """What the worker cannot know: how long its work waited to be sent out, and how long it was under way."""
        clock.worker = call.place
        clock.add("queue", call.since - began)
        clock.add("transfer", max(0.0, time.perf_counter() - call.since - clock.busy))
        if clock.traced:
            first = min(span.began for span in clock.spans)
            clock.spans.append(Span("dispatch", call.clock, max(0.0, first - call.clock)))

    def _first(self, running: dict[Any, Call], names: Sequence[str]) -> Any:
        """The first call that is ready. While workers alone are waited for, says so: the cluster may be full."""
        waited, limit = 0.0, self.limit if running else max(self.limit, START)
        while waited < limit:
            step = min(PATIENCE, limit - waited)
            ready, _ = self.ray.wait([*running, *self.starting], num_returns=1, timeout=step)
            if ready:
                return ready[0]
            waited += step
            if not running:
                self.say(
                    f"{len(self.starting)} of {self.num_workers} workers are not ready; Ray has free: {self._free()}"
                )
        if not running:
            raise RunError(f"no worker was ready after {limit:g} s; Ray has free: {self._free()}")
        silent = "; ".join(f"worker {call.place} on {names[call.work]}" for call in running.values())
        raise RunError(
            f"no result for {self.limit:g} s from {silent}; where they stand is in {self.setup.stacks}; the run can"
            " go on with --resume, and if a cohort may take so long, with a larger watchdog_seconds"
        )

    def _replace(self, place: int, tries: int = 0) -> None:
        """A new worker in the place of one that died, or is out of reach and yet alive."""
        self.ray.kill(self.actors[place])
        self.actors[place] = self.crew.actor()
        self.starting[self.actors[place].begin.remote(self.told, *self.phase)] = Start(place, tries)

    def _started(self, ready: Any) -> list[int]:
        """The place of a worker that is now in the phase; none if it died on the way and another takes its place."""
        start = self.starting.pop(ready)
        try:
            berth: Berth = self._get(ready)
        except self.lost as error:
            if getattr(error, "actor_init_failed", False) or start.tries == RETRIES:
                raise self._cannot_start(error) from None
            self.say(f"a worker died while it started ({cause(error)}); it is replaced")
            self._replace(start.place, start.tries + 1)
            return []
        except self.ray.exceptions.RayTaskError as error:
            raise self._cannot_start(error) from None
        self.berths.note(start.place, berth)
        return [start.place]

    def _cannot_start(self, error: Exception) -> RunError:
        self.say(str(error).strip())
        return RunError(f"a worker cannot start: {cause(error)}; --backend inline shows it in this process")

    def _free(self) -> str:
        free = self.ray.available_resources()
        return ", ".join(f"{free.get(kind, 0):g} of {n:g} {kind}s" for kind, n in self.crew.machines(self.ray).items())

    def _get(self, refs: Any) -> Any:
        """Results; an error inside a worker rises as what it was there."""
        try:
            return self.ray.get(refs)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SimflError):
                raise error.cause from None
            raise

    def close(self) -> None:
        """End the actors."""
        self.crew.close()
        self.berths.close()
        self.starting, self.phase, self.sent = {}, (-1, None), ({}, None)
