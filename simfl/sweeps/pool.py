"""Execution of the runs of a sweep: one after another in this process, or one per CPU or GPU with Ray.

A worker executes one run after another, and keeps the data and the model that they share.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from simfl.errors import ConfigError, nearest
from simfl.runtime.ray import cluster
from simfl.runtime.ray.actor import DriverLocation
from simfl.runtime.ray.cluster import ActorHandle, ObjectRef
from simfl.sweeps.job import Outcome, SweepJob, execute, failed

MAX_TRIES = 3  # workers that may die during one run; the next worker resumes from the last checkpoint


@dataclass(frozen=True)
class SweepPlacement:
    """Executors of the runs of a sweep."""

    backend: str = "ray"  # or inline
    workers: int | str = "auto"  # number of concurrent runs with Ray
    address: str | None = None  # of a running Ray cluster


class RunPool(Protocol):
    """Executor of runs."""

    @property
    def free(self) -> int:
        """Number of runs that can be started now."""

    def start(self, job: SweepJob) -> None:
        """Start a run."""

    def ended(self, seconds: float) -> list[Outcome]:
        """Return the runs that have ended since the last call; wait up to `seconds` for the first."""


class InlineRuns:
    """Executor in this process: `start` returns when the run has ended."""

    def __init__(self, display: Callable[[SweepJob], Any]) -> None:
        self.display, self.shared, self.outcomes = display, dict[str, Any](), list[Outcome]()

    @property
    def free(self) -> int:
        """One, unless an outcome has not been collected."""
        return 0 if self.outcomes else 1

    def start(self, job: SweepJob) -> None:
        """Execute a run."""
        self.outcomes.append(execute(job, self.shared, self.display(job)))

    def ended(self, seconds: float) -> list[Outcome]:
        """Return the outcomes that have not been collected."""
        ended, self.outcomes = self.outcomes, []
        return ended


class RunActor:
    """Ray actor that executes one run after another."""

    def __init__(self, driver: DriverLocation) -> None:
        driver.apply()
        self.shared: dict[str, Any] = {}

    def execute(self, job: SweepJob) -> Outcome:
        """Execute a run; it fails if the folder of the sweep does not exist on this machine."""
        parent = job.location.folder.parent
        if not job.location.url and not parent.is_dir():
            reason = "a sweep needs a folder that all machines of Ray share, or a URL"
            return Outcome(job.label, "failed", f"{platform.node()} does not see {parent}: {reason}")
        return execute(job, self.shared)


class RayRuns:
    """Executor with one actor per CPU or GPU, each with one run at a time."""

    def __init__(self, workers: int | str, address: str | None, log: Callable[[str], None]) -> None:
        self.ray, self.log = cluster.connect(address), log
        self.resource = cluster.worker_resource(address)
        available = self.ray.cluster_resources().get(self.resource, 0)
        self.num_workers = cluster.count_workers(self.resource, available, workers)
        self.idle: list[ActorHandle] = []
        self.running: dict[ObjectRef, tuple[ActorHandle, SweepJob, int]] = {}  # actor, run, deaths

    @property
    def free(self) -> int:
        """Number of workers without a run."""
        return self.num_workers - len(self.running)

    def start(self, job: SweepJob, tries: int = 0) -> None:
        """Start a run on an idle or a new actor."""
        actor = self.idle.pop() if self.idle else self._new_actor()
        self.running[actor.execute.remote(job)] = (actor, job, tries)

    def _new_actor(self) -> ActorHandle:
        num_gpus = 1 if self.resource == "GPU" else 0
        actor_class = self.ray.remote(num_cpus=1, num_gpus=num_gpus, max_restarts=0)(RunActor)
        return actor_class.remote(DriverLocation.here())

    def ended(self, seconds: float) -> list[Outcome]:
        """Return the runs that have ended; wait up to `seconds` for the first."""
        if not self.running:
            return []
        first, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        calls, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0) if first else ([], [])
        return [outcome for call in calls if (outcome := self._outcome(call)) is not None]

    def _outcome(self, call: ObjectRef) -> Outcome | None:
        """Return the outcome of a run; None if its actor died and another one resumes it."""
        actor, job, tries = self.running.pop(call)
        try:
            outcome: Outcome = self.ray.get(call)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.OutOfMemoryError) as error:
            self.ray.kill(actor)
            reason = cluster.last_line(error)
            if tries + 1 == MAX_TRIES:
                return failed(job, RuntimeError(f"its worker died {MAX_TRIES} times: {reason}"))
            self.log(f"{job.label}: its worker died ({reason}); another worker resumes the run")
            self.start(job, tries + 1)
            return None
        self.idle.append(actor)
        return outcome

    def close(self) -> None:
        """Stop all actors."""
        for actor in [*self.idle, *(actor for actor, _, _ in self.running.values())]:
            self.ray.kill(actor)


@contextmanager
def open_pool(
    placement: SweepPlacement, display: Callable[[SweepJob], Any], log: Callable[[str], None]
) -> Iterator[RunPool]:
    """Open the executor of a backend for the block; at its end, stop the workers and the Ray that was started here."""
    if placement.backend == "inline":
        yield InlineRuns(display)
    elif placement.backend == "ray":
        with cluster.started(placement.address):
            pool = RayRuns(placement.workers, placement.address, log)
            try:
                yield pool
            finally:
                pool.close()
    else:
        raise ConfigError(f"--backend: unknown {placement.backend!r}; {nearest(placement.backend, ['inline', 'ray'])}")
