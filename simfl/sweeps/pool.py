"""Where the runs of a sweep are done: in this process, or one on each CPU or GPU of Ray.

A worker serves one run after the other, and keeps the data and the model that they have in common.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from simfl.errors import ConfigError, nearest
from simfl.runtime.ray import cluster as boot
from simfl.runtime.ray.actor import DriverLocation
from simfl.runtime.ray.cluster import cause
from simfl.runtime.ray.crew import count_workers, start_ray
from simfl.sweeps.job import Job, Outcome, failed, perform

TRIES = 3  # workers that may die under one run; each of its successors goes on from the last commit


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


class Seat:
    """In an actor: does one run after the other."""

    def __init__(self, place: DriverLocation) -> None:
        place.take()
        self.shared: dict[str, Any] = {}

    def perform(self, job: Job) -> Outcome:
        if not job.place.url and not job.place.folder.parent.is_dir():
            where = f"{platform.node()} does not see {job.place.folder.parent}"
            why = "a sweep needs a folder that all machines of Ray share, or a URL"
            return Outcome(job.label, "failed", f"{where}: {why}")
        return perform(job, self.shared)


class RaySeats:
    """One actor a CPU or GPU, each with one run at a time."""

    def __init__(self, workers: int | str, address: str | None, say: Callable[[str], None]) -> None:
        self.ray, self.say = start_ray(address), say
        cluster = self.ray.cluster_resources()
        started_here = boot.place(address) is None  # else Ray knows better than this machine, which may have no GPU
        self.gpus = torch.cuda.is_available() if started_here else bool(cluster.get("GPU"))
        kind = "GPU" if self.gpus else "CPU"
        self.num_workers = count_workers({kind: cluster.get(kind, 0)}, workers)
        self.idle: list[Any] = []
        self.running: dict[Any, tuple[Any, Job, int]] = {}  # call -> worker, run, workers that died under it

    @property
    def free(self) -> int:
        return self.num_workers - len(self.running)

    def start(self, job: Job, tries: int = 0) -> None:
        worker = self.idle.pop() if self.idle else self._worker()
        self.running[worker.perform.remote(job)] = (worker, job, tries)

    def _worker(self) -> Any:
        kind = self.ray.remote(num_cpus=1, num_gpus=1 if self.gpus else 0, max_restarts=0)(Seat)
        return kind.remote(DriverLocation.here())

    def ended(self, seconds: float) -> list[Outcome]:
        if not self.running:
            return []
        first, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        more, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0) if first else ([], [])
        return [outcome for call in more if (outcome := self._outcome(call)) is not None]

    def _outcome(self, call: Any) -> Outcome | None:
        """How a run ended; None if its worker died and another goes on with it."""
        worker, job, tries = self.running.pop(call)
        try:
            outcome: Outcome = self.ray.get(call)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.OutOfMemoryError) as error:
            self.ray.kill(worker)
            if tries + 1 == TRIES:
                return failed(job, RuntimeError(f"its worker died {TRIES} times: {cause(error)}"))
            self.say(f"{job.label}: its worker died ({cause(error)}); another goes on with it")
            self.start(job, tries + 1)
            return None
        self.idle.append(worker)
        return outcome

    def close(self) -> None:
        """End the workers."""
        for worker in [*self.idle, *(worker for worker, _, _ in self.running.values())]:
            self.ray.kill(worker)


@contextmanager
def open_seats(
    backend: str, workers: int | str, address: str | None, display: Callable[[Job], Any], say: Callable[[str], None]
) -> Iterator[Seats]:
    """The seats of this backend; the workers end with the block, and so does Ray if it was started here."""
    if backend == "inline":
        yield Here(display)
    elif backend == "ray":
        with boot.started(address):
            seats = RaySeats(workers, address, say)
            try:
                yield seats
            finally:
                seats.close()
    else:
        raise ConfigError(f"--backend: unknown {backend!r}; {nearest(backend, ['inline', 'ray'])}")
