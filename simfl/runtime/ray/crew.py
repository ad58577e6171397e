"""Who works: Ray's actors, hired as soon as Ray is up, which have or build data and model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from threading import Lock, Thread
from typing import Any, TypeVar

import torch

from simfl.errors import ConfigError
from simfl.run_context import RunContext
from simfl.runtime.ray import cluster as boot
from simfl.runtime.ray.actor import VERSIONS, DriverLocation, WorkerActor, WorkerSpec, share_tensors
from simfl.runtime.ray.faststart.fork_server import ForkServer, possible

Seen = TypeVar("Seen")
PATIENCE = 30.0  # seconds that a worker has to look


class Crew:
    """The actors of a run, hired in a thread as soon as Ray is up, for a pool to take over."""

    def __init__(self, workers: int | str, address: str | None) -> None:
        self.workers, self.address = workers, boot.place(address)
        self.nursery: ForkServer | None = None
        self.ray: Any = None
        self.actors: list[Any] = []
        self.error: BaseException | None = None
        self._lock, self._dismissed = Lock(), False
        self._thread: Thread | None = None

    @cached_property
    def gpus(self) -> bool:
        """Whether each worker has a GPU: of a Ray started here torch knows, of another, whose machines differ, Ray."""
        if self.address is None:
            return torch.cuda.is_available()
        return bool(boot.ray(self.address).cluster_resources().get("GPU"))

    @property
    def device(self) -> str:
        """On what workers work."""
        return "cuda" if self.gpus else "cpu"

    @property
    def grows(self) -> bool:
        """Whether to hire whenever a machine joins or becomes free."""
        return self.workers == "auto" and self.address is not None

    def hire(self, setting: RunContext) -> None:
        """Have actors build what the experiment needs; its data should be in the cache, or all would make them.

        On one machine without a GPU it is built here, once, and they are forks of a fork of this process. ConfigError
        for a model that cannot be built.
        """
        self.makings = WorkerSpec(setting.experiment, setting.cache, self.device, setting.dataset.sha256, VERSIONS)
        cradle = boot.cradle()
        if cradle is not None and possible(setting.experiment.execution.threads):
            setting.module  # noqa: B018  (built on first use)
            self.nursery = ForkServer(setting, cradle)
        self._thread = Thread(target=self._hire, name="crew")
        self._thread.start()

    def _hire(self) -> None:
        try:
            ray = start_ray(self.address)
            count = count_workers(self.machines(ray), self.workers)
            if self.grows:  # what others leave of a cluster, and more as it becomes free
                count = max(1, min(count, self.free(ray)))
            self.arguments = DriverLocation.here(), ray.cloudpickle.dumps(self.makings)
            with self._lock:
                self.ray = ray
                if not self._dismissed:
                    self.actors = [self.actor() for _ in range(count)]
        except BaseException as error:  # raised again by whoever waits
            self.error = error

    def actor(self) -> Any:
        """One more actor."""
        kind = self.ray.remote(num_cpus=1, num_gpus=1 if self.gpus else 0, max_restarts=0)(WorkerActor)
        return kind.remote(*self.arguments)

    def free(self, ray: Any) -> int:
        """Workers that could start now."""
        kind = "GPU" if self.gpus else "CPU"
        return int(ray.available_resources().get(kind, 0))

    def machines(self, ray: Any) -> dict[str, float]:
        """How many GPUs, where they are used, and CPUs the cluster has."""
        cluster = ray.cluster_resources()
        return {kind: cluster.get(kind, 0) for kind in (["GPU", "CPU"] if self.gpus else ["CPU"])}

    def wait(self) -> None:
        """Returns when the actors are on their way; raises what went wrong."""
        assert self._thread is not None, "nobody was hired"
        self._thread.join()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the actors, again or for the first time; where there are none yet, there will be none."""
        with self._lock:
            self._dismissed = True
            for actor in self.actors:
                self.ray.kill(actor)
        nursery, self.nursery = self.nursery, None
        if nursery is not None:
            nursery.close()


@contextmanager
def crew_of(backend: str, workers: int | str, address: str | None) -> Iterator[Crew | None]:
    """A crew to hire for a run on Ray, None otherwise. Ray starts beside the block and, if started here, ends with it.

    Meanwhile the caller can read data, check them and build a model.
    """
    if backend != "ray":
        yield None
        return
    with boot.started(address):
        crew = Crew(workers, address)
        try:
            yield crew
        finally:
            crew.close()


def start_ray(address: str | None) -> Any:
    """Ray, started here or joined; ConfigError where nobody answers at the address."""
    ray = boot.ray(address)
    share_tensors()
    return ray


def count_workers(machines: dict[str, float], workers: int | str) -> int:
    """Workers asked for, or as many as the cluster has GPUs (or CPUs) for."""
    kind, number = next(iter(machines.items()))
    if workers == "auto":
        return max(1, int(number))
    if int(workers) > number:
        raise ConfigError(f"--workers: {workers} asked, Ray has {number:g} {kind}s")
    return int(workers)


def survey(address: str | None, look: Callable[[], Seen]) -> tuple[dict[str, float], Seen]:
    """What Ray has, started or joined as for a run, and what `look` sees on a worker, with a GPU if there are any."""
    with boot.started(address):
        ray = start_ray(address)
        resources = {kind: float(number) for kind, number in ray.cluster_resources().items()}
        remote = ray.remote(num_cpus=1, num_gpus=1 if resources.get("GPU") else 0, max_retries=0)(look)
        seen: Seen = ray.get(remote.remote(), timeout=PATIENCE)
        return resources, seen
