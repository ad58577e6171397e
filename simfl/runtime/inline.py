"""The interface of a worker pool, and the pool that runs everything in this process. Imports no Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from simfl.aggregation.round import CohortResult
from simfl.autotune.probe import ProbeRequest, ProbeResult
from simfl.errors import OutOfMemory
from simfl.evaluation.scoring import EvaluationResult, EvaluationTask
from simfl.generators.process import global_states_kept
from simfl.protocol import Parts, Weights
from simfl.run_context import RunContext
from simfl.runtime.gpu_monitor import processor
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.tracking.events import PoolLoad
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs
from simfl.training.plan import CohortPlan, NextRound, no_next_round

Result = TypeVar("Result", CohortResult, EvaluationResult)


class WorkerPool(Protocol):
    """The workers that train and evaluate for a run."""

    overlaps: bool  # whether an evaluation can run while the next round is trained

    @property
    def num_workers(self) -> int:
        """Return the number of worker processes."""

    @property
    def kind(self) -> str:
        """Return the names of the workers' processors."""

    def begin(self, phase: int, base: Weights) -> None:
        """Start a phase on every worker; `base` holds the model tensors that earlier phases have changed."""

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], next_round: NextRound
    ) -> Iterator[CohortResult]:
        """Train cohorts and yield their results in the order of the plans, as soon as each is available.

        Raises OutOfMemory if a cohort does not fit, even alone on a fresh worker.

        Args:
            plans: One cohort each.
            received: What the clients download.
            costs: Local steps of each cohort.
            next_round: Prepares the next round; called once, while the workers are busy.
        """

    def probe(self, request: ProbeRequest, received: Parts) -> ProbeResult:
        """Try execution modes of training on one worker."""

    def partial_gradients(self, micro_batches: Sequence[MicroBatch], shared: SharedStepInputs) -> list[PartialGradient]:
        """Return the gradients of the micro-batches of one local batch, in their order.

        Raises OutOfMemory if one does not fit.
        """

    def evaluate(self, tasks: Sequence[EvaluationTask], received: Parts) -> Callable[[], list[EvaluationResult]]:
        """Start an evaluation, in the background if the pool can, and return a function that waits for the scores.

        Call the function once, in the same phase. It returns the results in the order of the tasks and raises
        OutOfMemory if a task does not fit.
        """

    def load(self) -> PoolLoad:
        """Return the current tasks and workers; may be called from another thread."""

    def raise_if_lost(self) -> None:
        """Raise ClusterError if what runs the workers was found to have ended or to be frozen."""

    def close(self) -> None:
        """Stop the workers."""


class InlinePool:
    """A pool with one worker in this process, which trains one cohort after the other."""

    overlaps = False

    def __init__(self, config: WorkerConfig, context: RunContext) -> None:
        self.worker, self.num_workers = Worker(config, context, home=context.device), 1
        self.kind = processor(context.device)
        self._unfinished = 0  # tasks of the current call

    def begin(self, phase: int, base: Weights) -> None:
        """Start a phase."""
        self.worker.begin(phase, base)

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], next_round: NextRound
    ) -> Iterator[CohortResult]:
        """Train cohorts one after the other; the last one prepares the next round."""
        prepare = [*[no_next_round] * (len(plans) - 1), next_round]
        tasks = [partial(self.worker.train, plan, received, ahead) for plan, ahead in zip(plans, prepare, strict=False)]
        return self._run(tasks, cohort_names(plans))

    def probe(self, request: ProbeRequest, received: Parts) -> ProbeResult:
        """Try execution modes of training."""
        return self.worker.probe(request, received)

    def partial_gradients(self, micro_batches: Sequence[MicroBatch], shared: SharedStepInputs) -> list[PartialGradient]:
        """Return the gradients of the micro-batches, in their order."""
        return [self.worker.partial_gradient(micro_batch, shared, shared.received) for micro_batch in micro_batches]

    def evaluate(self, tasks: Sequence[EvaluationTask], received: Parts) -> Callable[[], list[EvaluationResult]]:
        """Return a function that carries out the tasks, since nothing can run in the background."""
        calls = [partial(self.worker.evaluate, task, received) for task in tasks]
        return lambda: list(self._run(calls, [task.name for task in tasks]))

    def _run(self, tasks: Sequence[Callable[[], Result]], names: Sequence[str]) -> Iterator[Result]:
        """Run tasks one after the other; one that runs out of memory is run a second time.

        The global generators of this process, which tasks seed, keep their states.
        """
        with global_states_kept():
            yield from self._run_all(tasks, names)

    def _run_all(self, tasks: Sequence[Callable[[], Result]], names: Sequence[str]) -> Iterator[Result]:
        began, self._unfinished = time.perf_counter(), len(tasks)
        for task, name in zip(tasks, names, strict=True):
            queue, cause = time.perf_counter() - began, None
            try:
                result = task()
            except OutOfMemory as error:
                cause = str(error)  # the exception itself would keep the tensors alive that did not fit
            if cause is not None:
                result = self._run_again(task, name, cause)
            result.clock.add("queue", queue)
            self._unfinished -= 1
            yield result

    def _run_again(self, task: Callable[[], Result], name: str, cause: str) -> Result:
        """Free all unused memory and run a task again."""
        self.worker.free_memory()
        try:
            return task()
        except OutOfMemory:
            raise OutOfMemory(f"out of memory on {name}, tried twice: {cause}") from None

    def load(self) -> PoolLoad:
        """Return the current tasks of this process, which runs one at a time."""
        unfinished = self._unfinished
        return PoolLoad(max(0, unfinished - 1), min(1, unfinished), 1, 1)

    def raise_if_lost(self) -> None:
        """Do nothing: this process is alive."""

    def close(self) -> None:
        """Close the worker's watchdog."""
        self.worker.watchdog.close()


def cohort_names(plans: Sequence[CohortPlan]) -> list[str]:
    """Return the name of each cohort in error messages."""
    return [f"clients {', '.join(map(str, plan.client_numbers))}" for plan in plans]
