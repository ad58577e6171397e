"""Cohorts and shards onto workers: this process, or Ray actors. The only file that knows Ray.

Both give results in the order of the plans, whoever finishes first; free workers pull, the longest work goes out first.
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
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
PATIENCE = 30.0  # seconds without a word while workers start


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


class Hosted(Worker):
    """A worker in an actor. It looks modules up where the driver does, so components beside an experiment are found."""

    def __init__(self, path: list[str], setup: bytes) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        super().__init__(pickle.loads(setup))


class RayPool:
    """Long-lived actors, one a CPU or GPU. What all of them need is put once into the object store, so once a node."""

    def __init__(
        self, setup: Setup, workers: int | str, address: str | None, on_message: Callable[[str], None]
    ) -> None:
        self.ray, self.setup, self.say = _start_ray(address), setup, on_message
        found = self.ray.exceptions
        self.lost = (found.RayActorError, found.ObjectLostError, found.OutOfMemoryError)  # work that can be done again
        self.gpus = setup.device == "cuda"
        self.num_workers = _count(self._machines(), workers)
        self.arguments = [os.path.abspath(folder) for folder in sys.path], self.ray.cloudpickle.dumps(setup)
        self.phase: tuple[int, Any] = (-1, None)  # its number, and a reference to its base
        self.actors = [self._actor() for _ in range(self.num_workers)]

    def _actor(self) -> Any:
        actor = self.ray.remote(num_cpus=1, num_gpus=1 if self.gpus else 0, max_restarts=0)(Hosted)
        return actor.remote(*self.arguments)

    def begin(self, phase: int, base: Weights) -> None:
        self.phase = (phase, self.ray.put(base))
        started = [actor.begin.remote(*self.phase) for actor in self.actors]
        self._wait_for_start(started)
        for place, ref in enumerate(started):
            self._begun(place, ref)

    def _wait_for_start(self, started: list[Any]) -> None:
        """Say so while workers are not there: the cluster may be full."""
        waiting = started
        while waiting:
            _, waiting = self.ray.wait(waiting, num_returns=len(waiting), timeout=PATIENCE, fetch_local=False)
            if waiting:
                self.say(f"{len(waiting)} of {self.num_workers} workers are not ready; Ray has free: {self._free()}")

    def _free(self) -> str:
        free = self.ray.available_resources()
        return ", ".join(f"{free.get(kind, 0):g} of {n:g} {kind}s" for kind, n in self._machines().items())

    def _machines(self) -> dict[str, float]:
        cluster = self.ray.cluster_resources()
        return {kind: cluster.get(kind, 0) for kind in (["GPU", "CPU"] if self.gpus else ["CPU"])}

    def _begun(self, place: int, ref: Any) -> None:
        """Wait until the worker at this place is in the phase; another takes its place if it dies on the way."""
        for tries in itertools.count():
            try:
                self._get(ref)
                break
            except self.lost as error:
                if getattr(error, "actor_init_failed", False) or tries == RETRIES:
                    raise RunError(f"a worker cannot start: {_cause(error)}") from error
                self.say(f"a worker died while it started ({_cause(error)}); it is replaced")
                ref = self._new_actor(place).begin.remote(*self.phase)

    def train(self, plans: Sequence[CohortPlan], received: Parts, costs: Sequence[float]) -> list[CohortResult]:
        names = [f"clients {', '.join(str(visit.client) for visit in plan.visits)}" for plan in plans]
        return self._map("train", plans, received, costs, names)

    def evaluate(self, plans: Sequence[EvaluationPlan], received: Parts) -> list[Scores]:
        names = [f"{len(plan.rows)} examples of split {plan.split}" for plan in plans]
        return self._map("evaluate", plans, received, [len(plan.rows) for plan in plans], names)

    def _map(
        self, method: str, plans: Sequence[Any], received: Parts, costs: Sequence[float], names: Sequence[str]
    ) -> list[Any]:
        shared = self.ray.put(received)
        waiting = deque(sorted(range(len(plans)), key=lambda i: (-costs[i], i)))
        results: list[Any] = [None] * len(plans)
        tries, idle = [0] * len(plans), list(range(self.num_workers))
        running: dict[Any, tuple[int, int]] = {}  # what each call works on, and where
        while waiting or running:
            while waiting and idle:
                plan, place = waiting.popleft(), idle.pop()
                running[getattr(self.actors[place], method).remote(plans[plan], shared)] = (plan, place)
            (ready,), _ = self.ray.wait(list(running), num_returns=1)
            plan, place = running.pop(ready)
            try:
                results[plan] = self._get(ready)
            except self.lost as error:
                tries[plan] += 1
                if tries[plan] > RETRIES:
                    raise RunError(f"a worker died {tries[plan]} times on {names[plan]}: {_cause(error)}") from error
                self.say(f"a worker died on {names[plan]} ({_cause(error)}); it is replaced and they are tried again")
                self._begun(place, self._new_actor(place).begin.remote(*self.phase))
                waiting.appendleft(plan)
            idle.append(place)
        return results

    def _new_actor(self, place: int) -> Any:
        self.ray.kill(self.actors[place])  # it may be out of reach and yet alive
        self.actors[place] = self._actor()
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
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
        except ConnectionError as error:
            raise ConfigError(f"--address: no Ray cluster answers at {address!r}: {_cause(error)}") from None
    return ray


def _count(machines: dict[str, float], workers: int | str) -> int:
    """Workers asked for, or as many as the cluster has GPUs (or CPUs) for."""
    kind, number = next(iter(machines.items()))
    if workers == "auto":
        return max(1, int(number))
    if int(workers) > number:
        raise ConfigError(f"--workers: {workers} asked, Ray has {number:g} {kind}s")
    return int(workers)


def _cause(error: Exception) -> str:
    """The last line of Ray's account, which says what happened; the others say to whom."""
    return str(error).strip().splitlines()[-1].strip()


@contextmanager
def open_pool(
    backend: str,
    setup: Setup,
    setting: Setting,
    workers: int | str,
    address: str | None,
    on_message: Callable[[str], None],
) -> Iterator[Pool]:
    """The pool of this backend; its workers end with the block, and so does Ray if it was started here."""
    if backend == "inline":
        yield Inline(setup, setting)
    elif backend == "ray":
        import ray

        was_running = ray.is_initialized()
        try:
            pool = RayPool(setup, workers, address, on_message)
            try:
                yield pool
            finally:
                pool.close()
        finally:
            if not was_running:
                ray.shutdown()
    else:
        raise ConfigError(f"--backend: unknown {backend!r}; {nearest(backend, ['inline', 'ray'])}")
