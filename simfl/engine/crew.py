"""Who works: Ray's actors, hired as soon as Ray is up, which build data and model while the driver builds its own."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch

from simfl.cohort.pieces import Piece, Slope, Step
from simfl.cohort.plan import CohortPlan
from simfl.cohort.visit import CohortResult
from simfl.engine import boot
from simfl.engine.worker import Worker
from simfl.errors import ConfigError
from simfl.evaluation import EvaluationPlan, Scores
from simfl.experiment import Experiment
from simfl.protocol import Parts, Weights
from simfl.setting import Setting
from simfl.weights import from_raw_bytes, raw_bytes


class Hosted:
    """A worker in an actor, which builds data and model at once, and works when it has been told how.

    It looks modules up where the driver does, so components beside an experiment are found.
    """

    def __init__(self, path: list[str], makings: bytes) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        _share_tensors()
        experiment, cache, device = pickle.loads(makings)
        torch.set_num_threads(experiment.cohort.threads)
        self.setting = Setting(experiment, cache, torch.device(device))
        self.worker: Worker | None = None
        self.failure: Exception | None = None
        try:
            self.setting.module  # noqa: B018  (built here, while the driver builds its own)
        except Exception as error:  # to be told when somebody listens
            self.failure = error

    def begin(self, setup: bytes, phase: int, base: Weights) -> None:
        """Enter a phase."""
        if self.failure is not None:
            raise self.failure
        if self.worker is None:
            self.worker = Worker(pickle.loads(setup), self.setting)
        self.worker.begin(phase, base)

    def train(self, plan: CohortPlan, received: Parts) -> CohortResult:
        """Train a cohort."""
        assert self.worker is not None
        return self.worker.train(plan, received)

    def evaluate(self, plan: EvaluationPlan, received: Parts) -> Scores:
        """Score a shard."""
        assert self.worker is not None
        return self.worker.evaluate(plan, received)

    def slope(self, piece: Piece, shared: Step, received: Parts) -> Slope:
        """What a piece of a local batch adds to its gradient."""
        assert self.worker is not None
        return self.worker.slope(piece, shared, received)

    def spare(self) -> None:
        """Give back the memory that torch keeps for later."""
        assert self.worker is not None
        self.worker.spare()


class Crew:
    """The actors of a run, hired in a thread as soon as Ray is up, for a pool to take over."""

    def __init__(self, workers: int | str, address: str | None) -> None:
        self.workers, self.address, self.gpus = workers, address, torch.cuda.is_available()
        self.ray: Any = None
        self.actors: list[Any] = []
        self.error: BaseException | None = None
        self._lock, self._dismissed = Lock(), False
        self._thread: Thread | None = None

    def hire(self, experiment: Experiment, cache: Path) -> None:
        """Have actors build what the experiment needs; its data should be in the cache, or all would make them."""
        self.makings = experiment, cache, "cuda" if self.gpus else "cpu"
        self._thread = Thread(target=self._hire, name="crew")
        self._thread.start()

    def _hire(self) -> None:
        try:
            ray = start_ray(self.address)
            count = count_workers(self.machines(ray), self.workers)
            self.arguments = [os.path.abspath(folder) for folder in sys.path], ray.cloudpickle.dumps(self.makings)
            with self._lock:
                self.ray = ray
                if not self._dismissed:
                    self.actors = [self.actor() for _ in range(count)]
        except BaseException as error:  # raised again by whoever waits
            self.error = error

    def actor(self) -> Any:
        """One more actor."""
        kind = self.ray.remote(num_cpus=1, num_gpus=1 if self.gpus else 0, max_restarts=0)(Hosted)
        return kind.remote(*self.arguments)

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
        """End the actors; where there are none yet, there will be none."""
        with self._lock:
            self._dismissed = True
            for actor in self.actors:
                self.ray.kill(actor)


@contextmanager
def crew_of(backend: str, workers: int | str, address: str | None) -> Iterator[Crew | None]:
    """A crew to hire for a run on Ray, None otherwise. Ray starts beside the block and, if started here, ends with it.

    Meanwhile the caller can read data, check them and build a model of its own, and so can the crew.
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
    _share_tensors()
    return ray


def _share_tensors() -> None:
    """Tensors that this process sends lie in the object store as they are and are read there, never written to.

    Torch's own pickle copies them four times: 9 and 3 ms for 5 MB at the two ends, against 4 and under 1.
    """
    from ray.util import register_serializer

    register_serializer(
        torch.Tensor,
        serializer=lambda tensor: (raw_bytes(tensor), tensor.dtype, tuple(tensor.shape)),
        deserializer=lambda parts: from_raw_bytes(*parts),
    )


def count_workers(machines: dict[str, float], workers: int | str) -> int:
    """Workers asked for, or as many as the cluster has GPUs (or CPUs) for."""
    kind, number = next(iter(machines.items()))
    if workers == "auto":
        return max(1, int(number))
    if int(workers) > number:
        raise ConfigError(f"--workers: {workers} asked, Ray has {number:g} {kind}s")
    return int(workers)
