"""Where the runs of a sweep are done: in this process, or one on each CPU or GPU of Ray.

A worker serves one run after the other, and keeps the data and the model that they have in common.
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
from simfl.runtime.ray.cluster import ActorHandle, ObjectRef, last_line
from simfl.sweeps.job import Job, Outcome, failed, perform

MAX_DEATHS = 3  # workers that may die during one run; each successor resumes from the last checkpoint


class Seats(Protocol):
    """What a sweep needs of the place where its runs are done."""

    @property
    def free(self) -> int:
        """Runs that could start now."""

    def start(self, job: Job) -> None:
        """Begin a run."""

    def ended(self, seconds: float) -> list[Outcome]:
        """Runs that have ended since the last call; waits so long for the first."""


class Here:
    """This process: a run is done when `start` returns."""

    def __init__(self, display: Callable[[Job], Any]) -> None:
        self.display, self.shared, self.outcomes = display, dict[str, Any](), list[Outcome]()

    @property
    def free(self) -> int:
        return 0 if self.outcomes else 1

    def start(self, job: Job) -> None:
        self.outcomes.append(perform(job, self.shared, self.display(job)))

    def ended(self, seconds: float) -> list[Outcome]:
        ended, self.outcomes = self.outcomes, []
        return ended


class RunActor:
    """An actor that does one run after the other."""

    def __init__(self, location: DriverLocation) -> None:
        location.apply()
        self.shared: dict[str, Any] = {}

    def perform(self, job: Job) -> Outcome:
        """Do a run."""
        if not job.place.url and not job.place.folder.parent.is_dir():
            problem = f"{platform.node()} does not see {job.place.folder.parent}"
            solution = "a sweep needs a folder that all machines of Ray share, or a URL"
            return Outcome(job.label, "failed", f"{problem}: {solution}")
        return perform(job, self.shared)


@dataclass(frozen=True)
class _Running:
    """A run that an actor is doing."""

    actor: ActorHandle
    job: Job
    deaths: int  # actors that have died during this run


class RaySeats:
    """One actor per CPU or GPU, each with one run at a time."""

    def __init__(self, workers: int | str, address: str | None, on_message: Callable[[str], None]) -> None:
        self.ray, self.on_message = cluster.connect(address), on_message
        self.resource = cluster.worker_resource(address)
        available = self.ray.cluster_resources().get(self.resource, 0)
        self.num_workers = cluster.count_workers(self.resource, available, workers)
        self.idle: list[ActorHandle] = []
        self.running: dict[ObjectRef, _Running] = {}

    @property
    def free(self) -> int:
        """Return the number of runs that could start now."""
        return self.num_workers - len(self.running)

    def start(self, job: Job, deaths: int = 0) -> None:
        """Begin a run on an idle actor, or on a new one."""
        actor = self.idle.pop() if self.idle else self._new_actor()
        self.running[actor.perform.remote(job)] = _Running(actor, job, deaths)

    def _new_actor(self) -> ActorHandle:
        num_gpus = 1 if self.resource == "GPU" else 0
        actor_class = self.ray.remote(num_cpus=1, num_gpus=num_gpus, max_restarts=0)(RunActor)
        return actor_class.remote(DriverLocation.here())

    def ended(self, seconds: float) -> list[Outcome]:
        """Return the outcomes of runs that have ended; wait up to this many seconds for the first."""
        if not self.running:
            return []
        first, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        ended, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0) if first else ([], [])
        return [outcome for ref in ended if (outcome := self._outcome(ref)) is not None]

    def _outcome(self, ref: ObjectRef) -> Outcome | None:
        """Return the outcome of a run; None if its actor died and a new one resumes the run."""
        running = self.running.pop(ref)
        try:
            outcome: Outcome = self.ray.get(ref)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.OutOfMemoryError) as error:
            self.ray.kill(running.actor)
            if running.deaths + 1 == MAX_DEATHS:
                return failed(running.job, RuntimeError(f"its worker died {MAX_DEATHS} times: {last_line(error)}"))
            self.on_message(f"{running.job.label}: its worker died ({last_line(error)}); a new one resumes the run")
            self.start(running.job, running.deaths + 1)
            return None
        self.idle.append(running.actor)
        return outcome

    def close(self) -> None:
        """Stop the actors."""
        for actor in [*self.idle, *(running.actor for running in self.running.values())]:
            self.ray.kill(actor)


@contextmanager
def open_seats(
    backend: str, workers: int | str, address: str | None, display: Callable[[Job], Any], say: Callable[[str], None]
) -> Iterator[Seats]:
    """The seats of this backend; the workers end with the block, and so does Ray if it was started here."""
    if backend == "inline":
        yield Here(display)
    elif backend == "ray":
        with cluster.started(address):
            seats = RaySeats(workers, address, say)
            try:
                yield seats
            finally:
                seats.close()
    else:
        raise ConfigError(f"--backend: unknown {backend!r}; {nearest(backend, ['inline', 'ray'])}")
