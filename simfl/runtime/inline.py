"""What a pool is, and the one that does everything in this process. Imports no Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from simfl.autotune.probe import ProbeRequest, ProbeResult
from simfl.errors import OutOfMemory
from simfl.evaluation import EvaluationPlan, Scores
from simfl.protocol import Parts, Weights
from simfl.run_context import RunContext
from simfl.runtime.gpu_monitor import processor
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.training.cohort import CohortResult
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs
from simfl.training.plan import CohortPlan, NextRound, no_next_round

Result = TypeVar("Result", CohortResult, Scores)


class WorkerPool(Protocol):
    """Where the work is done."""

    overlaps: bool  # whether an evaluation goes on while the next round is trained

    @property
    def num_workers(self) -> int:
        """Among how many processes work is divided."""

    @property
    def kind(self) -> str:
        """What processors the workers have."""

    def begin(self, phase: int, base: Weights) -> None:
        """Bring every worker into a phase."""

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], ahead: NextRound
    ) -> Iterator[CohortResult]:
        """Results in the order of the plans, as they come; OutOfMemory if a cohort does not fit, also alone on a fresh
        worker.

        `ahead` gives the round after, to be asked while there is nothing to do but wait.
        """

    def probe(self, question: ProbeRequest, received: Parts) -> ProbeResult:
        """What one worker finds when it tries execution_modes of training."""

    def partial_gradients(self, pieces: Sequence[MicroBatch], shared: SharedStepInputs) -> list[PartialGradient]:
        """What the pieces of a local batch add to its gradient, in their order; OutOfMemory if one does not fit."""

    def evaluate(self, plans: Sequence[EvaluationPlan], received: Parts) -> Callable[[], list[Scores]]:
        """Begin an evaluation, where one can go on by itself. What comes back is called once, in the same phase.

        It waits for the scores, in the order of the plans; OutOfMemory if a shard does not fit.
        """

    def close(self) -> None:
        """End the workers."""


class InlinePool:
    """Everything in this process, one cohort after the other."""

    overlaps = False

    def __init__(self, setup: WorkerConfig, setting: RunContext) -> None:
        self.worker, self.num_workers = Worker(setup, setting, home=setting.device), 1
        self.kind = processor(setting.device)

    def begin(self, phase: int, base: Weights) -> None:
        self.worker.begin(phase, base)

    def train(
        self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float], ahead: NextRound
    ) -> Iterator[CohortResult]:
        def work(plan: CohortPlan, received: Parts) -> CohortResult:
            return self.worker.train(plan, received, ahead if plan is plans[-1] else no_next_round)  # asked once

        return self._each(work, plans, received, cohort_names(plans))

    def probe(self, question: ProbeRequest, received: Parts) -> ProbeResult:
        return self.worker.probe(question, received)

    def partial_gradients(self, pieces: Sequence[MicroBatch], shared: SharedStepInputs) -> list[PartialGradient]:
        return [self.worker.partial_gradient(piece, shared, shared.received) for piece in pieces]

    def evaluate(self, plans: Sequence[EvaluationPlan], received: Parts) -> Callable[[], list[Scores]]:
        return lambda: list(self._each(self.worker.evaluate, plans, received, shard_names(plans)))

    def _each(
        self, work: Callable[[Any, Parts], Result], plans: Sequence[Any], received: Parts, names: Sequence[str]
    ) -> Iterator[Result]:
        began = time.perf_counter()
        for plan, name in zip(plans, names, strict=True):
            queue = time.perf_counter() - began
            result = self._twice(work, plan, received, name)
            result.clock.add("queue", queue)
            yield result

    def _twice(self, work: Callable[[Any, Parts], Result], plan: Any, received: Parts, name: str) -> Result:
        """The result; what wants memory is tried once more, when all that is not in use has been given back."""
        try:
            return work(plan, received)
        except OutOfMemory as error:
            cause = str(error)  # the error itself would keep alive what did not fit
        self.worker.spare()
        try:
            return work(plan, received)
        except OutOfMemory:
            raise OutOfMemory(f"out of memory on {name}, tried twice: {cause}") from None

    def close(self) -> None:
        self.worker.watch.close()


def cohort_names(plans: Sequence[CohortPlan]) -> list[str]:
    """What an error calls each cohort."""
    return [f"clients {', '.join(str(visit.client) for visit in plan.visits)}" for plan in plans]


def shard_names(plans: Sequence[EvaluationPlan]) -> list[str]:
    """What an error calls each shard."""
    return [f"{len(plan.rows)} examples of split {plan.split}" for plan in plans]
