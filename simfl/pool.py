"""Cohorts and shards onto workers: this process, or Ray actors. The only file that knows Ray.

Both give results in the order of the plans, whoever finishes first; free workers pull, the longest work goes out first.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from simfl.cohort.plan import CohortPlan
from simfl.cohort.visit import CohortResult
from simfl.errors import ConfigError, RunError, SimflError, nearest
from simfl.evaluation import EvaluationPlan, Scores
from simfl.protocol import Parts, Weights
from simfl.setting import Setting
from simfl.worker import Setup, Worker

Plan = TypeVar("Plan")
RETRIES = 3  # how often a cohort is tried again when its worker died


class Pool(Protocol):
    """Where the work is done."""

    num_workers: int

    def begin(self, phase: int, base: Weights) -> None:
        """Bring every worker into a phase."""

    def train(self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float]) -> list[CohortResult]:
        """Results in the order of the plans."""

    def evaluate(self, plans: Sequence[EvaluationPlan], received: Parts) -> list[Scores]:
        """Scores in the order of the plans."""


class Inline:
    """Everything in this process, one cohort after the other. Imports no Ray."""

    def __init__(self, setup: Setup, setting: Setting) -> None:
        self.worker, self.num_workers = Worker(setup, setting), 1

    def begin(self, phase: int, base: Weights) -> None:
        self.worker.begin(phase, base)

    def train(self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float]) -> list[CohortResult]:
        return [self.worker.train(plan, received) for plan in plans]

    def evaluate(self, plans: Sequence[EvaluationPlan], received: Parts) -> list[Scores]:
        return [self.worker.evaluate(plan, received) for plan in plans]


class RayPool:
    """Long-lived actors, one a CPU or GPU. What all of them need is put once into the object store, so once to each node."""

    def __init__(self, setup: Setup, workers: int | str, address: str | None, on_message: Callable[[str], None]) -> None:
        self.ray, self.setup, self.say = _start_ray(address), setup, on_message
        self.gpus = setup.device == "cuda"
        self.num_workers = _count(self.ray, workers, self.gpus)
        self.setup_ref = self.ray.put(setup)
        self.phase: tuple[int, Any] | None = None
        self.actors = [self._actor() for _ in range(self.num_workers)]

    def _actor(self) -> Any:
        actor = self.ray.remote(num_cpus=1, num_gpus=1 if self.gpus else 0, max_restarts=0)(Worker)
        return actor.remote(self.setup_ref)

    def begin(self, phase: int, base: Weights) -> None:
        self.phase = (phase, self.ray.put(base))
        self._get([actor.begin.remote(*self.phase) for actor in self.actors])

    def train(self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float]) -> list[CohortResult]:
        return self._map("train", plans, received, costs)

    def evaluate(self, plans: Sequence[EvaluationPlan], received: Parts) -> list[Scores]:
        return self._map("evaluate", plans, received, [len(plan.rows) for plan in plans])

    def _map(self, method: str, plans: Sequence[Any], received: Parts, costs: Sequence[float]) -> list[Any]:
        shared = self.ray.put(received)
        waiting = deque(sorted(range(len(plans)), key=lambda i: (-costs[i], i)))
        results: list[Any] = [None] * len(plans)
        tries, idle, running = [0] * len(plans), list(self.actors), {}
        while waiting or running:
            while waiting and idle:
                place, actor = waiting.popleft(), idle.pop()
                running[getattr(actor, method).remote(plans[place], shared)] = (place, actor)
            (ready,), _ = self.ray.wait(list(running), num_returns=1)
            place, actor = running.pop(ready)
            try:
                results[place] = self._get(ready)
                idle.append(actor)
            except self.ray.exceptions.RayActorError as error:
                tries[place] += 1
                idle.append(self._replace(actor, tries[place], error))
                waiting.appendleft(place)
        return results

    def _replace(self, dead: Any, tries: int, error: Exception) -> Any:
        """A new worker in the place of one that died, brought into the phase."""
        cause = str(error).strip().splitlines()[0]
        if tries > RETRIES:
            raise RunError(f"a worker died {tries} times on the same cohort; the last time: {cause}")
        self.say(f"a worker died ({cause}); it is replaced and its cohort tried again")
        place = self.actors.index(dead)
        self.actors[place] = self._actor()
        if self.phase is not None:
            self._get(self.actors[place].begin.remote(*self.phase))
        return self.actors[place]

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
        for actor in self.actors:
            self.ray.kill(actor)


def _start_ray(address: str | None) -> Any:
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray lowers its workers' priority by 15 unless told not to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if not ray.is_initialized():
        local = {} if address else {"include_dashboard": False}
        ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
    return ray


def _count(ray: Any, workers: int | str, gpus: bool) -> int:
    """Workers asked for, or as many as the cluster has GPUs (or CPUs) for."""
    available = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 0))
    if workers == "auto":
        return max(1, available)
    if int(workers) > available:
        raise ConfigError(f"--workers: {workers} asked, Ray has {available} {'GPUs' if gpus else 'CPUs'}")
    return int(workers)


@contextmanager
def open_pool(
    backend: str, setup: Setup, setting: Setting, workers: int | str, address: str | None, on_message: Callable[[str], None]
) -> Iterator[Pool]:
    """The pool of this backend; its workers end with the block, and so does Ray if it was started here."""
    if backend == "inline":
        yield Inline(setup, setting)
    elif backend == "ray":
        import ray

        was_running = ray.is_initialized()
        pool = RayPool(setup, workers, address, on_message)
        try:
            yield pool
        finally:
            pool.close()
            if not was_running:
                ray.shutdown()
    else:
        raise ConfigError(f"--backend: unknown {backend!r}; {nearest(backend, ['inline', 'ray'])}")
