"""The tasks of a run on Ray: which are waiting, which worker runs which, and which are retried.

A `WorkerTask` is one call of a worker: to train a cohort, evaluate a shard, or compute the gradient of a micro-batch.
Tasks whose results are needed together, such as the cohorts of a round, form a `TaskBatch`, which knows what is left to
do: the longest tasks go first, and a task whose worker died is retried. A task whose workers died twice, or that ran
out of memory, runs last and exclusively: alone on its worker, while all others are idle. The `TaskQueue` of a run holds
the unfinished batches, the oldest first, and the tasks under way. Each worker runs one task, and a second one may wait
at the worker, so that the worker continues without the driver.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from simfl.autotune.probe import ProbeRequest
from simfl.errors import ClusterError, OutOfMemory
from simfl.evaluation.scoring import EvaluationTask
from simfl.runtime.ray.cluster import ObjectRef
from simfl.runtime.ray.cost_model import CostModel, Shape, assign, remaining
from simfl.timing import Clock, Span
from simfl.training.data_parallel import MicroBatch
from simfl.training.plan import CohortPlan

MAX_RETRIES = 3  # how often a task is retried after its worker died


class TimedResult(Protocol):
    """A result with the times its worker spent on it."""

    @property
    def clock(self) -> Clock:
        """Return the times."""


Result = TypeVar("Result", bound=TimedResult)


@dataclass(frozen=True)
class WorkerTask:
    """One call of a worker."""

    plan: CohortPlan | EvaluationTask | MicroBatch | ProbeRequest
    name: str  # in error messages
    shape: Shape  # quantities that its duration grows with
    states: Sequence[str] = ()  # digests of the client states that it reads


class TaskBatch(Generic[Result]):
    """Tasks whose results are needed together, all for one method of the workers."""

    def __init__(self, method: str, tasks: Sequence[WorkerTask], shared: Sequence[ObjectRef], costs: CostModel) -> None:
        """`shared`: references to arguments that all tasks have in common."""
        self.method, self.tasks, self.shared, self.costs = method, tasks, shared, costs
        seconds = [costs.mean_seconds(task.shape) for task in tasks]
        self.waiting = sorted(range(len(tasks)), key=lambda i: (-seconds[i], i))  # in the order of dispatch
        self.created = time.perf_counter()
        self.error: Exception | None = None
        self.workers: set[int] = set()  # that got a task
        self._exclusive: deque[int] = deque()
        self._deaths, self._out_of_memory = [0] * len(tasks), [False] * len(tasks)
        self._num_sent = self._num_done = self._num_retried = 0  # sent = done + retried
        self._results: dict[int, Result] = {}  # not yet taken
        self._num_taken = 0

    @property
    def finished(self) -> bool:
        """Return whether all tasks are done, or the batch has failed."""
        if self.error is not None:
            return True
        if self.waiting or self._exclusive or self._num_sent > self._num_done + self._num_retried:
            return False
        assert self._num_sent == self._num_done + self._num_retried, "a task came back that was not sent"
        assert self._num_done == len(self.tasks), "a task was never done"
        return True

    @property
    def num_waiting(self) -> int:
        """Return the number of tasks that were not sent yet."""
        return len(self.waiting) + len(self._exclusive)

    @property
    def exclusive_next(self) -> bool:
        """Return whether the next task must run exclusively."""
        return not self.waiting and bool(self._exclusive)

    def start(self, index: int) -> None:
        """Take a task from those that wait."""
        self.waiting.remove(index)
        self._num_sent += 1

    def start_exclusive(self) -> int:
        """Take the next exclusive task; the caller must keep all other workers idle."""
        self._num_sent += 1
        return self._exclusive.popleft()

    def complete(self, index: int, result: Result) -> None:
        """Store a result."""
        self._num_done += 1
        self._results[index] = result

    def requeue(self, index: int) -> None:
        """Return a task to the queue that waited at a worker which is gone; it does not count as a retry."""
        self._num_retried += 1
        self.waiting.insert(0, index)

    def retry_after_death(self, index: int, cause: str) -> str:
        """Retry a task whose worker died, exclusively from the second time on; return a message.

        Raises ClusterError after too many retries.
        """
        self._num_retried += 1
        self._deaths[index] += 1
        if self._deaths[index] > MAX_RETRIES:
            raise ClusterError(f"a worker died {self._deaths[index]} times on {self.tasks[index].name}: {cause}")
        if self._deaths[index] == 1:
            self.waiting.insert(0, index)
        else:
            self._exclusive.append(index)
        return f"a worker died on {self.tasks[index].name} ({cause}); it is replaced and the task is retried"

    def retry_after_out_of_memory(self, index: int, cause: str) -> str:
        """Retry a task that ran out of memory, exclusively on a fresh worker; return a message.

        Raises OutOfMemory the second time.
        """
        self._num_retried += 1
        name = self.tasks[index].name
        if self._out_of_memory[index]:
            raise OutOfMemory(f"out of memory on {name}, also alone on a fresh worker: {cause}")
        self._out_of_memory[index] = True
        self._exclusive.append(index)
        return f"out of memory on {name} ({cause}); the task is retried alone on a fresh worker"

    def take_results(self) -> Iterator[Result]:
        """Yield the results that are available, in the order of the tasks, and drop them."""
        while self._num_taken in self._results:
            self._num_taken += 1
            yield self._results.pop(self._num_taken - 1)

    def seconds(self, worker: int, index: int) -> float:
        """Return the expected duration of a task on a worker."""
        return self.costs.seconds(worker, self.tasks[index].shape)


AnyBatch = TaskBatch[Any]


@dataclass(frozen=True)
class RunningTask:
    """A task that was sent to a worker."""

    batch: AnyBatch
    index: int  # of the task in its batch
    worker: int
    expected: float  # seconds; inf if not known
    exclusive: bool = False
    started: float = field(default_factory=lambda: time.perf_counter())  # when its worker had nothing else to do
    wall_time: float = field(default_factory=lambda: time.time())  # the same, in seconds since 1970

    @property
    def task(self) -> WorkerTask:
        """Return the task."""
        return self.batch.tasks[self.index]

    def add_times(self, clock: Clock) -> None:
        """Add the times that the worker cannot measure: waiting in the queue, and transfer."""
        clock.worker = self.worker
        clock.add("queue", self.started - self.batch.created)
        clock.add("transfer", max(0.0, time.perf_counter() - self.started - clock.busy))
        if clock.traced:
            first = min(span.began for span in clock.spans)
            clock.spans.append(Span("dispatch", self.wall_time, max(0.0, first - self.wall_time)))


class TaskQueue:
    """The unfinished batches of a run, the oldest first, and the running tasks in the order of dispatch."""

    def __init__(self) -> None:
        self.batches: list[AnyBatch] = []
        self.running: dict[ObjectRef, RunningTask] = {}  # those of failed batches too, until they return

    @property
    def exclusive(self) -> bool:
        """Return whether an exclusive task is running."""
        return any(running.exclusive for running in self.running.values())

    def current(self) -> list[RunningTask]:
        """Return the task that each busy worker is running."""
        return list({running.worker: running for running in reversed(self.running.values())}.values())

    def busy_seconds(self) -> dict[int, float]:
        """Return in how many seconds each busy worker will have finished all its tasks."""
        now, seconds = time.perf_counter(), dict[int, float]()
        for running in self.running.values():
            first = running.worker not in seconds
            more = remaining(running.expected, now - running.started) if first else running.expected
            seconds[running.worker] = seconds.get(running.worker, 0.0) + more
        return seconds

    def with_room(self) -> list[int]:
        """Return the workers that run one task of known duration, with none waiting."""
        count = Counter(running.worker for running in self.running.values())
        return [r.worker for r in self.running.values() if count[r.worker] == 1 and r.expected < math.inf]

    def idle(self, workers: Sequence[int]) -> list[int]:
        """Return those of the workers that have no task."""
        busy = {running.worker for running in self.running.values()}
        return [worker for worker in workers if worker not in busy]

    def assign(
        self, batch: AnyBatch, waiting: Sequence[int], takers: Collection[int], workers: Sequence[int]
    ) -> dict[int, int]:
        """Return the task of a batch that each taker gets now; all `workers` are considered as alternatives."""
        if not waiting or not takers:
            return {}
        return assign(waiting, takers, dict.fromkeys(workers, 0.0) | self.busy_seconds(), batch.seconds)

    def finish(self, ref: ObjectRef) -> None:
        """Remove a task that returned; the one that waited at its worker has started."""
        ended = self.running.pop(ref)
        for other, running in self.running.items():
            if running.worker == ended.worker:
                self.running[other] = replace(running, started=time.perf_counter(), wall_time=time.time())
                break

    def drop(self, worker: int) -> list[RunningTask]:
        """Remove and return the tasks of a worker that is gone, the one it was running first."""
        refs = [ref for ref, running in self.running.items() if running.worker == worker]
        return [self.running.pop(ref) for ref in refs]
