"""A Ray that is pretended: the real pool on workers of this process, whose calls last as long as a clock says.

Nothing depends on how fast this machine is, so who gets which work is known beforehand.
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
from simfl.runtime.ray import calls, pool
from simfl.runtime.ray import wait as lookout
from simfl.runtime.ray.actor import WorkerLocation
from simfl.runtime.ray.pool import RayPool
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.session import session as sitting


class ActorDied(Exception):
    """As Ray says it."""


class TaskError(Exception):
    """An error of a task's own, as Ray wraps it."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Never(Exception):
    """What Ray raises on other occasions."""


@dataclass(eq=False)
class Ref:
    """Something in the object store, now or later."""

    ready: float
    make: Callable[[], Any]

    def value(self) -> Any:
        found = self.__dict__.get("found")
        if found is None:
            found = self.__dict__["found"] = (self.make(),)
        return found[0]


@dataclass
class Pretended:
    """What the pool uses of Ray, and the crew. `slow`: by worker, how many times; `faults`: (method, how often so far)
    -> what happens instead, an exception to raise; `silent`: such calls that never end; `sent`: (worker, method, what)
    in the order of calls."""

    workers: int = 2
    slow: dict[int, float] = field(default_factory=dict)
    faults: dict[tuple[str, int], Exception] = field(default_factory=dict)
    silent: frozenset[tuple[str, int]] = frozenset()
    row_seconds: float = 0.1  # of an evaluated row; a local step takes 1
    now: float = 0.0
    sent: list[tuple[int, str, str]] = field(default_factory=list)
    behind: list[tuple[str, str]] = field(default_factory=list)  # of those, what went to a worker at work
    began: dict[int, float] = field(default_factory=dict)  # round -> when its first cohort went out
    count: dict[str, int] = field(default_factory=dict)
    actors: list[Any] = field(default_factory=list)
    grows = False
    cloudpickle = pickle
    exceptions = SimpleNamespace(
        RayActorError=ActorDied, ObjectLostError=Never, OutOfMemoryError=Never, RayTaskError=TaskError
    )

    @property
    def ray(self) -> Pretended:
        return self

    def wait(self, *given: Any, num_returns: int = 1, timeout: float = 0.0) -> Any:
        """Of the crew: it is there; of Ray: the call that ends first, if it does in time."""
        if not given:
            return None
        refs: Sequence[Ref] = given[0]
        first = min(refs, key=lambda ref: ref.ready)
        if first.ready > self.now + timeout:
            self.now += timeout
            return [], list(refs)
        self.now = max(self.now, first.ready)
        return [first], [ref for ref in refs if ref is not first]

    def get(self, ref: Ref) -> Any:
        return ref.value()

    def put(self, value: Any) -> Ref:
        return Ref(0.0, lambda: value)

    def kill(self, actor: Any) -> None:
        """Its place is taken by another."""

    def actor(self) -> Any:
        return Actor(self, len(self.actors))

    def close(self) -> None:
        """Nothing is left."""


class Actor:
    """A worker."""

    def __init__(self, ray: Pretended, place: int) -> None:
        self.ray, self.place, self.free, self.ends = ray, place, 0.0, list[float]()  # of its calls

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._call(name, *given))

    def _call(self, method: str, *given: Any) -> Ref:
        ray, number = self.ray, self.ray.count.get(method, 0)
        ray.count[method] = number + 1
        self.ends = [end for end in self.ends if end > ray.now]
        assert len(self.ends) <= 1 or method in ("begin", "spare"), "a worker has a call, and another that waits"
        place = next((k for k, actor in enumerate(ray.actors) if actor is self), self.place)
        seconds = self._seconds(method, given) * ray.slow.get(place, 1.0)
        seconds = math.inf if (method, number) in ray.silent else seconds
        self.free = max(self.free, ray.now) + seconds
        self.ends.append(self.free)
        if method in ("train", "evaluate"):
            what = f"{given[0].round}.{given[0].index}" if method == "train" else given[0].model
            ray.sent.append((place, method, what))
            if len(self.ends) == 2:
                ray.behind.append((method, what))

        if method == "train":
            ray.began.setdefault(given[0].round, ray.now)

        def make() -> Any:
            fault = ray.faults.get((method, number))
            if fault is not None:
                raise fault
            return getattr(self, f"_{method}")(seconds, *[v.value() if isinstance(v, Ref) else v for v in given])

        return Ref(self.free, make)

    def _seconds(self, method: str, given: Sequence[Any]) -> float:
        if method == "train":
            return float(sum(visit.num_steps(LOCAL[0]) for visit in given[0].visits))
        return len(given[0].rows) * self.ray.row_seconds if method == "evaluate" else 0.0

    def _begin(self, seconds: float, told: bytes, phase: int, base: Any) -> WorkerLocation:
        if "worker" not in self.__dict__:
            setup: WorkerConfig = pickle.loads(told)
            self.worker = Worker(setup, RunContext(setup.experiment, setup.cache))
        self.worker.begin(phase, base)
        return WorkerLocation(apart=False, kind="pretended")

    def _probe(self, seconds: float, question: Any, received: Any, memory: Any) -> Any:
        return self.worker.probe(question, received), {}

    def _train(self, seconds: float, plan: Any, received: Any, memory: Any) -> Any:
        result = self.worker.train(plan, received)
        result.clock.seconds = {"train": seconds}
        return result, {}

    def _evaluate(self, seconds: float, plan: Any, received: Any, memory: Any) -> Any:
        scores = self.worker.evaluate(plan, received)
        scores.clock.seconds = {"evaluate": seconds}
        return scores, {}

    def _slope(self, seconds: float, piece: Any, shared: Any, received: Any, memory: Any) -> Any:
        return self.worker.partial_gradient(piece, shared, received), {}

    def _spare(self, seconds: float) -> None:
        self.worker.spare()


LOCAL: list[Any] = [None]  # what the run that goes on is trained with


def pretend(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Pretended:
    """From now on inline runs are made by the pool of Ray, on a Ray that is pretended."""
    ray = Pretended(**settings)

    @contextmanager
    def opened(
        backend: str, setup: WorkerConfig, setting: RunContext, crew: Any, say: Callable[[str], None]
    ) -> Iterator[RayPool]:
        LOCAL[0] = setup.experiment.phases[0].local
        ray.actors = [Actor(ray, place) for place in range(ray.workers)]
        found = RayPool(ray, setup, say)  # type: ignore[arg-type]
        yield found
        found.close()

    clock = SimpleNamespace(perf_counter=lambda: ray.now, monotonic=lambda: ray.now, time=lambda: ray.now)
    for module in (pool, calls, lookout):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(sitting, "open_pool", opened)
    return ray
