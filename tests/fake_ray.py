"""A fake Ray: the real `RayPool` with workers in this process, whose calls take as long as a simulated clock says.

Nothing depends on the speed of the machine, so it is known in advance which worker gets which task.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from simfl.run_context import RunContext
from simfl.runtime.ray import pool, task_queue
from simfl.runtime.ray.actor import WorkerLocation
from simfl.runtime.ray.pool import RayPool
from simfl.runtime.ray.worker_group import WorkerGroup
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.session import session


class ActorDied(Exception):
    """Stands for Ray's RayActorError."""


class TaskError(Exception):
    """Stands for Ray's RayTaskError, which wraps an error that a task raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class NeverRaised(Exception):
    """Stands for Ray's other errors."""


@dataclass(eq=False)
class Ref:
    """A reference to a value that is ready at some time of the simulated clock."""

    ready: float
    make: Callable[[], Any]

    def value(self) -> Any:
        """Return the value; it is made once."""
        found = self.__dict__.get("found")
        if found is None:
            found = self.__dict__["found"] = (self.make(),)
        return found[0]


@dataclass
class FakeRay:
    """The parts of the module `ray` that the pool uses, the simulated clock, and a record of all calls."""

    workers: int = 2
    slow: dict[int, float] = field(default_factory=dict)  # worker -> factor of its durations
    faults: dict[tuple[str, int], Exception] = field(default_factory=dict)  # (method, number of the call) -> raised
    silent: frozenset[tuple[str, int]] = frozenset()  # calls that never end
    row_seconds: float = 0.1  # of an evaluated example; a local step takes 1 s
    now: float = 0.0
    sent: list[tuple[int, str, str]] = field(default_factory=list)  # (worker, method, task), in order
    sent_ahead: list[tuple[str, str]] = field(default_factory=list)  # (method, task) sent to a busy worker
    began: dict[int, float] = field(default_factory=dict)  # round -> when its first cohort was sent
    count: dict[str, int] = field(default_factory=dict)  # method -> calls
    actors: list[FakeActor] = field(default_factory=list)
    local: Any = None  # local training of the run's first phase
    cloudpickle = pickle
    exceptions = SimpleNamespace(
        RayActorError=ActorDied, ObjectLostError=NeverRaised, OutOfMemoryError=NeverRaised, RayTaskError=TaskError
    )

    def wait(self, refs: Sequence[Ref], num_returns: int = 1, timeout: float = 0.0) -> tuple[list[Ref], list[Ref]]:
        """Return the reference that is ready first, if it is ready in time, and advance the clock."""
        first = min(refs, key=lambda ref: ref.ready)
        if first.ready > self.now + timeout:
            self.now += timeout
            return [], list(refs)
        self.now = max(self.now, first.ready)
        return [first], [ref for ref in refs if ref is not first]

    def get(self, ref: Ref) -> Any:
        """Return a value."""
        return ref.value()

    def put(self, value: Any) -> Ref:
        """Return a reference to a value that is ready."""
        return Ref(0.0, lambda: value)

    def kill(self, actor: FakeActor) -> None:
        """Do nothing: the group replaces the actor."""


class FakeGroup(WorkerGroup):
    """A worker group whose actors are fakes in this process."""

    def __init__(self, ray: FakeRay) -> None:
        super().__init__(ray.workers, None)
        self.ray, self.actors = ray, ray.actors

    def wait(self) -> None:
        """Return: the actors exist."""

    def _new_actor(self) -> FakeActor:
        return FakeActor(self.ray, len(self.actors))


class FakeActor:
    """A worker in this process, with one running and at most one waiting call."""

    def __init__(self, ray: FakeRay, number: int) -> None:
        self.ray, self.number, self.free_at, self.ends = ray, number, 0.0, list[float]()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._call(name, *given))

    def _call(self, method: str, *given: Any) -> Ref:
        ray, number = self.ray, self.ray.count.get(method, 0)
        ray.count[method] = number + 1
        self.ends = [end for end in self.ends if end > ray.now]
        assert len(self.ends) <= 1 or method in ("begin", "free_memory"), "a worker got a third call"
        worker = next((k for k, actor in enumerate(ray.actors) if actor is self), self.number)
        seconds = self._seconds(method, given) * ray.slow.get(worker, 1.0)
        seconds = math.inf if (method, number) in ray.silent else seconds
        self.free_at = max(self.free_at, ray.now) + seconds
        self.ends.append(self.free_at)
        if method in ("train", "evaluate"):
            task = f"{given[0].round}.{given[0].index}" if method == "train" else given[0].shards[0].model
            ray.sent.append((worker, method, task))
            if len(self.ends) == 2:
                ray.sent_ahead.append((method, task))
        if method == "train":
            ray.began.setdefault(given[0].round, ray.now)

        def make() -> Any:
            fault = ray.faults.get((method, number))
            if fault is not None:
                raise fault
            return getattr(self, f"_{method}")(seconds, *[v.value() if isinstance(v, Ref) else v for v in given])

        return Ref(self.free_at, make)

    def _seconds(self, method: str, given: Sequence[Any]) -> float:
        if method == "train":
            return float(sum(client.num_steps(self.ray.local) for client in given[0].clients))
        return given[0].num_examples * self.ray.row_seconds if method == "evaluate" else 0.0

    def _begin(self, seconds: float, setup: bytes, phase: int, base: Any) -> WorkerLocation:
        if "worker" not in self.__dict__:
            config: WorkerConfig = pickle.loads(setup)
            self.worker = Worker(config, RunContext(config.experiment, config.cache))
        self.worker.begin(phase, base)
        return WorkerLocation(remote=False, kind="fake")

    def _probe(self, seconds: float, question: Any, received: Any, states: Any) -> Any:
        return self.worker.probe(question, received), {}

    def _train(self, seconds: float, plan: Any, received: Any, states: Any) -> Any:
        result = self.worker.train(plan, received)
        result.clock.seconds = {"train": seconds}
        return result, {}

    def _evaluate(self, seconds: float, plan: Any, received: Any, states: Any) -> Any:
        scores = self.worker.evaluate(plan, received)
        scores.clock.seconds = {"evaluate": seconds}
        return scores, {}

    def _partial_gradient(self, seconds: float, piece: Any, shared: Any, received: Any, states: Any) -> Any:
        return self.worker.partial_gradient(piece, shared, received), {}

    def _free_memory(self, seconds: float) -> None:
        self.worker.free_memory()


def use_fake_ray(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> FakeRay:
    """Have inline runs use the Ray pool on a fake Ray, which is returned."""
    ray = FakeRay(**settings)

    @contextmanager
    def open_pool(
        backend: str, config: WorkerConfig, context: RunContext, workers: None, on_message: Callable[[str], None]
    ) -> Iterator[RayPool]:
        ray.local = config.experiment.phases[0].local
        ray.actors = [FakeActor(ray, number) for number in range(ray.workers)]
        pool = RayPool(FakeGroup(ray), config, on_message)
        yield pool
        pool.close()

    clock = SimpleNamespace(perf_counter=lambda: ray.now, monotonic=lambda: ray.now, time=lambda: ray.now)
    for module in (pool, task_queue):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(session, "open_pool", open_pool)
    return ray
