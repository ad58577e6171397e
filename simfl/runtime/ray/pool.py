"""The worker pool on Ray: it sends the tasks of a run to its workers and returns the results in order.

`RayPool` joins three objects: the `WorkerGroup` (which workers there are), the `TaskQueue` (which tasks there are) and
a `CostModel` per method (how long a task takes on which worker). Each of its calls makes a `TaskBatch` and repeats
three steps until the batch is finished. It assigns waiting tasks to idle workers, the longest task first and each to
the worker expected to finish it first; a second task is sent to busy workers, except for the last tasks. It yields the
results that are next in the order of the tasks, whichever finish first. And it waits for one event: a result, an
error, a worker that has started. Workers that start join when they are ready; workers that die are replaced while the
others continue. An evaluation can run in the background: its shards go to workers that have nothing to train.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from simfl.aggregation.round import CohortResult
from simfl.autotune.probe import ProbeRequest, ProbeResult
from simfl.errors import ClusterError, OutOfMemory, RunError
from simfl.evaluation.scoring import EvaluationResult, EvaluationTask
from simfl.protocol import Parts, Weights
from simfl.runtime.inline import cohort_names
from simfl.runtime.ray.cluster import ObjectRef, RayModule, last_line
from simfl.runtime.ray.cost_model import CostModel
from simfl.runtime.ray.task_queue import AnyBatch, Result, RunningTask, TaskBatch, TaskQueue, WorkerTask
from simfl.runtime.ray.worker_group import WorkerGroup
from simfl.runtime.worker import WorkerConfig, keep_freed_memory
from simfl.tracking.events import PoolLoad
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs
from simfl.training.plan import ClientPlans, CohortPlan, NextRound

STATUS_INTERVAL = 30.0  # seconds between two messages while workers start
REASSIGN_INTERVAL = 1.0  # seconds after which tasks that wait for a busy worker are assigned again
START_TIMEOUT = 600.0  # seconds that the first worker has to start, unless the watchdog allows more


class RayPool:
    """Workers on Ray. What all of them need is put into the object store once, so it is sent once per node."""

    overlaps = True

    def __init__(self, group: WorkerGroup, config: WorkerConfig, on_message: Callable[[str], None]) -> None:
        keep_freed_memory()  # uploads are summed in this process
        group.open(config, on_message)
        self.group, self.queue, self.on_message = group, TaskQueue(), on_message
        self.costs: defaultdict[str, CostModel] = defaultdict(CostModel)  # by method
        self._broadcast: tuple[Parts, ObjectRef] = ({}, None)  # the last value put, and its reference
        self._last_event = 0.0  # time of the last result or start

    @property
    def kind(self) -> str:
        """Return the names of the workers' processors."""
        return ", ".join(sorted(self.group.kinds))

    @property
    def num_workers(self) -> int:
        """Return the number of workers, including those that are starting."""
        return self.group.size

    def begin(self, phase: int, base: Weights) -> None:
        """Send all workers into a phase and wait for the first; the others join when they are ready."""
        assert not self.queue.batches, "a phase ended with unfinished tasks"
        self.costs = defaultdict(CostModel)
        self.group.enter_phase(phase, base)
        self._last_event = time.monotonic()
        while not self.group.ready:
            self._handle_event(held_back=False)

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], next_round: NextRound
    ) -> Iterator[CohortResult]:
        """Train cohorts; `next_round` is called when all workers are busy."""
        tasks = [
            WorkerTask(
                plan,
                name,
                (1.0, float(len(plan.clients)), float(steps)),
                ClientPlans.of(plan.clients).stored_digests(),
            )
            for plan, name, steps in zip(plans, cohort_names(plans), costs, strict=True)
        ]
        batch: TaskBatch[CohortResult] = self._submit("train", tasks, [self._put(received)])
        return self._results(batch, next_round)

    def probe(self, request: ProbeRequest, received: Parts) -> ProbeResult:
        """Try execution modes on one worker; if that fails, the run can continue with another probe."""
        digests = ClientPlans.of(request.clients).stored_digests()
        task = WorkerTask(request, "execution modes", (1.0,), digests)
        batch: TaskBatch[ProbeResult] = self._submit("probe", [task], [self._put(received)])
        try:
            results = list(self._results(batch))
        except RunError:
            self._abandon(batch)
            raise
        return results[0]

    def partial_gradients(self, micro_batches: Sequence[MicroBatch], shared: SharedStepInputs) -> list[PartialGradient]:
        """Return the gradients of the micro-batches; no other task is sent meanwhile."""
        tasks = [
            WorkerTask(
                micro_batch,
                f"{len(micro_batch.rows)} examples of client {micro_batch.client}",
                (1.0, float(len(micro_batch.rows))),
            )
            for micro_batch in micro_batches
        ]
        refs = [self.ray.put(replace(shared, received={})), self._put(shared.received)]
        batch: TaskBatch[PartialGradient] = self._submit("partial_gradient", tasks, refs)
        return list(self._results(batch, alone=True))

    def evaluate(self, tasks: Sequence[EvaluationTask], received: Parts) -> Callable[[], list[EvaluationResult]]:
        """Send tasks to idle workers, and return a function that waits for all scores."""
        calls = [
            WorkerTask(
                task,
                task.name,
                (1.0, float(len(task.shards)), float(task.num_examples)),
                [shard.state_digest for shard in task.shards],
            )
            for task in tasks
        ]
        batch: TaskBatch[EvaluationResult] = self._submit("evaluate", calls, [self._put(received)])
        self._dispatch(self.queue.batches)
        return lambda: list(self._results(batch))

    def load(self) -> PoolLoad:
        """Return the current tasks and workers."""
        queued = sum(batch.num_waiting for batch in list(self.queue.batches))
        workers = self.group.size
        return PoolLoad(queued, len(self.queue.running), workers, max(0, workers - len(self.group.starting)))

    def raise_if_lost(self) -> None:
        """Raise ClusterError if the monitor has found that Ray has ended or is frozen."""
        if self.group.is_lost:
            self.group.raise_if_lost()

    def close(self) -> None:
        """Stop the workers."""
        self.group.close()
        self.queue.running.clear()
        self._broadcast = ({}, None)

    @property
    def ray(self) -> RayModule:
        """Return the module `ray`."""
        return self.group.ray

    def _put(self, received: Parts) -> ObjectRef:
        """Return a reference to a round's broadcast, which is put into the object store once."""
        if self._broadcast[0] is not received:
            self._broadcast = received, self.ray.put(received)
        return self._broadcast[1]

    def _submit(self, method: str, tasks: Sequence[WorkerTask], shared: Sequence[ObjectRef]) -> AnyBatch:
        batch: AnyBatch = TaskBatch(method, tasks, shared, self.costs[method])
        self.queue.batches.append(batch)
        return batch

    def _results(
        self, batch: TaskBatch[Result], meanwhile: Callable[[], object] | None = None, alone: bool = False
    ) -> Iterator[Result]:
        """Yield the results of a batch in the order of its tasks, as they come.

        `meanwhile` is called once, when all workers are busy. Unless `alone`, workers that the batch leaves idle get
        tasks of other batches.
        """
        self.group.grow()
        self._last_event = time.monotonic()
        try:
            while not batch.finished:
                others = [] if alone else [other for other in self.queue.batches if other is not batch]
                held_back = self._dispatch([batch, *others])
                self._dispatch_ahead(batch)
                if meanwhile is not None:
                    meanwhile()
                    meanwhile = None
                yield from batch.take_results()
                self._handle_event(held_back)
        finally:
            self.queue.batches.remove(batch)
        if batch.error is not None:
            raise batch.error
        batch.costs.decay(set(range(self.num_workers)) - batch.workers)
        yield from batch.take_results()

    # Dispatch

    def _dispatch(self, batches: Sequence[AnyBatch]) -> bool:
        """Send tasks to idle workers, those of the first batch first; return whether tasks wait for a busy worker.

        An exclusive task is sent when no other task is running, to the newest worker, after the others freed memory.
        """
        batches = [batch for batch in batches if batch.error is None]
        if not batches or self.queue.exclusive:
            return False
        first, idle = batches[0], self.queue.idle(self.group.ready)
        if first.exclusive_next:
            if not self.queue.running and not self.group.starting:
                self.group.free_memory(idle)
                self._send(first, first.start_exclusive(), self.group.newest(idle), exclusive=True)
            return False
        for batch in batches:
            self._assign(batch, batch.waiting, self.queue.idle(self.group.ready))
        return bool(first.waiting and self.queue.idle(self.group.ready))

    def _dispatch_ahead(self, batch: AnyBatch) -> None:
        """Send a second task to busy workers, except for the last tasks, one per worker: those go to idle workers."""
        if batch.error is None and not self.queue.exclusive and not batch.exclusive_next:
            ready = set(self.group.ready)
            self._assign(batch, batch.waiting[: -len(ready)], ready & set(self.queue.with_room()))

    def _assign(self, batch: AnyBatch, waiting: Sequence[int], takers: Collection[int]) -> None:
        for worker, index in self.queue.assign(batch, waiting, takers, self.group.ready).items():
            batch.start(index)
            self._send(batch, index, worker)

    def _send(self, batch: AnyBatch, index: int, worker: int, exclusive: bool = False) -> None:
        task = batch.tasks[index]
        states = self.group.transfer.send(worker, task.states)
        expected = batch.seconds(worker, index) if batch.costs.fitted else math.inf
        ref = getattr(self.group.actors[worker], batch.method).remote(task.plan, *batch.shared, states)
        self.queue.running[ref] = RunningTask(batch, index, worker, expected, exclusive)
        batch.workers.add(worker)

    # Events

    def _handle_event(self, held_back: bool) -> None:
        """Wait for one event and handle it: a worker has started, or a task has returned."""
        ref = wait_any(self.group, self.queue, self._last_event, held_back)
        if ref is None:
            return
        self._last_event = time.monotonic()
        if ref in self.group.starting:
            self.group.finish_start(ref)
        else:
            self._handle_result(ref)

    def _handle_result(self, ref: ObjectRef) -> None:
        """Store a result or error with its batch; those of a failed batch are dropped."""
        running = self.queue.running[ref]
        batch = running.batch
        try:
            result, states = self.group.get(ref)
            if batch.error is None:
                self.group.transfer.receive(states)
                batch.complete(running.index, result)
                batch.costs.observe(running.worker, running.task.shape, result.clock.busy)
                running.add_times(result.clock)
        except self.group.lost as error:
            self._retry(self._replace(running.worker), error)  # the task that the worker was running is to blame
        except OutOfMemory as error:
            dropped = self._replace(running.worker)
            self._retry([running, *(other for other in dropped if other is not running)], error)
        except Exception as error:
            self.group.raise_if_lost()
            batch.error = batch.error or error
        if ref in self.queue.running:
            self.queue.finish(ref)

    def _abandon(self, batch: AnyBatch) -> None:
        """Replace the workers that are still running tasks of a batch, so that the run can continue without it."""
        for worker in {running.worker for running in self.queue.running.values() if running.batch is batch}:
            self._replace(worker)

    def _replace(self, worker: int) -> list[RunningTask]:
        """Replace a worker; remove its tasks from the queue and return them."""
        self.group.replace(worker)
        for costs in self.costs.values():
            costs.forget(worker)
        return self.queue.drop(worker)

    def _retry(self, dropped: Sequence[RunningTask], error: Exception) -> None:
        """Retry the first of a replaced worker's tasks unless it was retried too often, and requeue the others."""
        out_of_memory = isinstance(error, (OutOfMemory, self.ray.exceptions.OutOfMemoryError))
        for running in [running for running in dropped if running.batch.error is None]:
            batch = running.batch
            try:
                if running is not dropped[0]:
                    batch.requeue(running.index)
                    continue
                retry = batch.retry_after_out_of_memory if out_of_memory else batch.retry_after_death
                self.on_message(retry(running.index, last_line(error)))
            except (OutOfMemory, RunError) as failure:
                batch.error = failure


def wait_any(group: WorkerGroup, queue: TaskQueue, last_event: float, held_back: bool) -> ObjectRef | None:
    """Wait for the first call to finish and return its reference.

    Returns None after a while if `held_back`: tasks that wait for a busy worker are then assigned again. Reports from
    time to time if all workers are still starting, as the cluster may be full. Raises RunError at the watchdog's limit.

    Args:
        group: Its `starting` calls are waited for.
        queue: Its running tasks are waited for.
        last_event: When the last call finished, as `time.monotonic` counts.
        held_back: Whether tasks wait although there are idle workers.
    """
    watchdog = group.config.experiment.watchdog_seconds or math.inf
    limit = watchdog if queue.running else max(watchdog, START_TIMEOUT)
    while (left := last_event + limit - time.monotonic()) > 0:
        refs = [*queue.running, *group.starting]
        interval = REASSIGN_INTERVAL if held_back else STATUS_INTERVAL
        ready, _ = group.ray.wait(refs, num_returns=1, timeout=min(interval, left))
        if ready:
            return ready[0]
        if held_back:
            return None
        if not queue.running:
            absent = f"{len(group.starting)} of {group.size} workers are not ready"
            group.on_message(f"{absent}; Ray has free: {group.describe_free()}")
    if not queue.running:
        raise ClusterError(f"no worker was ready after {limit:g} s; Ray has free: {group.describe_free()}")
    silent = "; ".join(f"worker {running.worker} on {running.task.name}" for running in queue.current())
    raise ClusterError(
        f"no result for {watchdog:g} s from {silent}; their stacks are in {group.config.stacks}; resume the run with"
        " --resume; if a cohort may take this long, increase watchdog_seconds"
    )
