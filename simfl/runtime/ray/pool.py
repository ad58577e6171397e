"""Cohorts and shards onto Ray actors.

Results come in the order of the plans, whoever finishes first; the longest work goes out first, to who would end it
first; a second call waits at each worker, but for the last. Workers that start join when they are ready, workers that
die are replaced, and the others go on meanwhile. An evaluation need not be waited for: its shards go to whoever has
nothing to train.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from simfl.autotune.probe import ProbeRequest, ProbeResult
from simfl.errors import OutOfMemory, RunError
from simfl.evaluation import EvaluationPlan, Scores
from simfl.protocol import Parts, Weights
from simfl.runtime.inline import cohort_names, shard_names
from simfl.runtime.ray.calls import Call, Calls
from simfl.runtime.ray.cluster import cause
from simfl.runtime.ray.cost_model import Costs, Shape, sent_now
from simfl.runtime.ray.crew import Crew
from simfl.runtime.ray.errands import Errands
from simfl.runtime.ray.jobs import Job
from simfl.runtime.ray.staff import Staff
from simfl.runtime.ray.wait import Lookout
from simfl.runtime.worker import WorkerConfig, keep_memory
from simfl.training.cohort import CohortResult
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs
from simfl.training.plan import CohortPlan, NextRound


class RayPool:
    """The jobs of a run on its workers. What all of them need is put once into the object store, so once a node."""

    overlaps = True

    def __init__(self, crew: Crew, setup: WorkerConfig, on_message: Callable[[str], None]) -> None:
        keep_memory()  # sums of models are made here
        self.staff, self.say = Staff(crew, setup, on_message), on_message
        self.ray = self.staff.ray
        self.sent: tuple[Parts, Any] = ({}, None)  # what was put last, and the reference to it
        self.jobs: list[Job] = []  # not over yet, the oldest first
        self.calls = Calls()  # those of jobs that failed too, until they come back
        self.costs: defaultdict[str, Costs] = defaultdict(Costs)  # by method
        self.lookout = Lookout(self.staff, self.calls)

    @property
    def kind(self) -> str:
        """What processors the workers have that are there."""
        return ", ".join(sorted(self.staff.berths.kinds))

    @property
    def num_workers(self) -> int:
        """Workers, those that start included."""
        return self.staff.size

    def begin(self, phase: int, base: Weights) -> None:
        """Returns when the first worker is in the phase; the others join the work when they are."""
        assert not self.jobs, "a phase ended with work under way"
        self.costs = defaultdict(Costs)
        self.staff.enter(phase, base)
        self.lookout.begin()
        while not self.staff.there:
            self._receive(held=False)

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], ahead: NextRound
    ) -> Iterator[CohortResult]:
        shapes = [(1.0, float(len(plan.visits)), float(steps)) for plan, steps in zip(plans, costs, strict=True)]
        memory, shared = [[visit.memory for visit in plan.visits] for plan in plans], [self._put(received)]
        return self._results(self._job("train", plans, shared, memory, shapes, cohort_names(plans)), ahead)

    def probe(self, question: ProbeRequest, received: Parts) -> ProbeResult:
        memory, shared = [[visit.memory for visit in question.visits]], [self._put(received)]
        job = self._job("probe", [question], shared, memory, [(1.0,)], ["modes of training"])
        try:
            found: list[ProbeResult] = list(self._results(job))
        except RunError:
            self._leave(job)
            raise
        return found[0]

    def partial_gradients(self, pieces: Sequence[MicroBatch], shared: SharedStepInputs) -> list[PartialGradient]:
        names = [f"{len(piece.rows)} examples of client {piece.client}" for piece in pieces]
        shapes = [(1.0, float(len(piece.rows))) for piece in pieces]
        both = [self.ray.put(replace(shared, received={})), self._put(shared.received)]
        job = self._job("slope", pieces, both, [[]] * len(pieces), shapes, names)
        return list(self._results(job, beside=False))

    def evaluate(self, plans: Sequence[EvaluationPlan], received: Parts) -> Callable[[], list[Scores]]:
        shapes = [(1.0, float(len(plan.rows))) for plan in plans]
        memory, shared = [[plan.memory] for plan in plans], [self._put(received)]
        job = self._job("evaluate", plans, shared, memory, shapes, shard_names(plans))
        self._send_out(self.jobs)
        return lambda: list(self._results(job))

    def _put(self, received: Parts) -> Any:
        """A reference to what a round sends down, put once however often it is sent."""
        if self.sent[0] is not received:
            self.sent = received, self.ray.put(received)
        return self.sent[1]

    def _job(
        self,
        method: str,
        plans: Sequence[Any],
        shared: Sequence[Any],
        memory: Sequence[Sequence[str]],
        shapes: Sequence[Shape],
        names: Sequence[str],
    ) -> Job:
        costs = self.costs[method]
        errands = Errands(names, [costs.anywhere(shape) for shape in shapes])
        job = Job(method, plans, shared, memory, shapes, costs, errands, time.perf_counter())
        self.jobs.append(job)
        return job

    def _results(self, job: Job, meanwhile: Callable[[], Any] | None = None, beside: bool = True) -> Iterator[Any]:
        """What comes of a job, in the order of its plans, as it comes; `beside` it, workers that it leaves idle are at
        the others.

        `meanwhile` is called once, when everybody is at work.
        """
        self.staff.welcome()
        self.lookout.begin()
        try:
            while not job.over:
                held = self._send_out([job, *(other for other in self.jobs if beside and other is not job)])
                self._send_ahead(job)
                if meanwhile is not None:
                    meanwhile()
                    meanwhile = None
                yield from job.taken()
                self._receive(held)
        finally:
            self.jobs.remove(job)
        if job.failure is not None:
            raise job.failure
        job.costs.doubt(set(range(self.num_workers)) - job.helpers)
        yield from job.taken()

    def _send_out(self, jobs: Sequence[Job]) -> bool:
        """Work to idle workers, of the first job first; whether some of that is held back though there are any.

        What has to be alone waits for the fresh worker, and for memory that others spare.
        """
        jobs = [job for job in jobs if job.failure is None]
        if not jobs or self.calls.alone:
            return False
        first, idle = jobs[0], self._idle()
        if first.errands.solitary:
            if not self.calls.by_ref and not self.staff.starting:
                self.staff.spare(idle)
                newest = max(idle, key=self.staff.entered.index)
                self._send(first, first.errands.take_alone(), newest, alone=True)
            return False
        for job in jobs:
            self._deal(job, job.errands.waiting, self._idle())
        return bool(first.errands.waiting and self._idle())

    def _send_ahead(self, job: Job) -> None:
        """More work to workers that are at some, but for the last pieces, one a worker: those are for who is free
        first."""
        if job.failure is None and not self.calls.alone and not job.errands.solitary:
            there = set(self.staff.there)
            self._deal(job, job.errands.waiting[: -len(there)], there & set(self.calls.with_room()))

    def _idle(self) -> list[int]:
        """The places of workers that are in the phase and have nothing to do."""
        busy = self.calls.ready()
        return [place for place in self.staff.there if place not in busy]

    def _deal(self, job: Job, waiting: Sequence[int], takers: Collection[int]) -> None:
        """Some of a job's work that is waiting to workers who may take it, if nobody else would end it earlier."""
        if not waiting or not takers:
            return
        ready = dict.fromkeys(self.staff.there, 0.0) | self.calls.ready()
        for place, work in sent_now(waiting, takers, ready, job.seconds).items():
            job.errands.take(work)
            self._send(job, work, place)

    def _send(self, job: Job, work: int, place: int, alone: bool = False) -> None:
        memory = self.staff.berths.carry(place, job.memory[work])
        expected = job.seconds(place, work) if job.costs.known else math.inf
        ref = getattr(self.staff.actors[place], job.method).remote(job.plans[work], *job.shared, memory)
        self.calls.by_ref[ref] = Call(job, place, work, expected, alone)
        job.helpers.add(place)

    def _receive(self, held: bool) -> None:
        """Take in the next thing that happens: a worker is there, or work came back."""
        ready = self.lookout.first(held)
        if ready in self.staff.starting:
            self.staff.started(ready)
        elif ready is not None:
            self._back(ready)

    def _back(self, ready: Any) -> None:
        """A result, or an error, for the job that is waited for or will be; that of a job that failed is dropped."""
        call = self.calls.by_ref[ready]
        job = call.job
        try:
            result, memory = self.staff.get(ready)
            if job.failure is None:
                self.staff.berths.keep(memory)
                job.errands.done()
                job.results[call.work] = result
                job.costs.learn(call.place, job.shapes[call.work], result.clock.busy)
                call.count(result.clock)
        except self.staff.lost as error:
            self._again(self._replace(call.place), error)  # whichever is told first, it died over what it was at
        except OutOfMemory as error:
            there = self._replace(call.place)
            self._again([call, *(other for other in there if other is not call)], error)
        except Exception as error:
            job.failure = job.failure or error
        if ready in self.calls.by_ref:
            self.calls.back(ready)

    def _leave(self, job: Job) -> None:
        """The run goes on without this job: who is still at it, and silent, is replaced."""
        for place in {call.place for call in self.calls.by_ref.values() if call.job is job}:
            self._replace(place)

    def _replace(self, place: int) -> list[Call]:
        """Another worker; gives what was at the one before, which is dropped."""
        self.staff.replace(place)
        for costs in self.costs.values():
            costs.forget(place)
        return self.calls.drop(place)

    def _again(self, calls: Sequence[Call], error: Exception) -> None:
        """Their worker is being replaced: the first will be done again, if it was not tried too often; others go out
        again."""
        starved = isinstance(error, (OutOfMemory, self.ray.exceptions.OutOfMemoryError))
        for call in [call for call in calls if call.job.failure is None]:
            errands = call.job.errands
            try:
                if call is not calls[0]:
                    errands.unbegun(call.work)
                else:
                    self.say((errands.starved if starved else errands.died)(call.work, cause(error)))
            except (OutOfMemory, RunError) as failure:
                call.job.failure = failure

    def close(self) -> None:
        """End the workers."""
        self.staff.close()
        self.calls.by_ref.clear()
        self.jobs, self.sent = [], ({}, None)
