"""A worker in an actor of Ray's, on whatever machine: what it builds, where it finds itself, what it is sent."""

from __future__ import annotations

import os
import pickle
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from simfl import __version__, files
from simfl.autotune.probe import ProbeRequest, ProbeResult
from simfl.cache import folder as own_cache
from simfl.errors import DataError, RunError
from simfl.evaluation import EvaluationPlan, Scores
from simfl.experiment import Experiment
from simfl.protocol import Parts, Weights
from simfl.run_context import RunContext
from simfl.runtime.gpu_monitor import processor
from simfl.runtime.ray.faststart import fork_server as nursery
from simfl.runtime.ray.remote_store import RemoteClientStore
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.training.cohort import CohortResult
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs
from simfl.training.plan import CohortPlan
from simfl.weights import from_raw_bytes, raw_bytes

VERSIONS = {"simfl": __version__, "torch": torch.__version__}  # the same on every machine of a run
Carry = dict[str, Any]  # digest of a client's memory -> where it is to be had


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker builds from, and what must be the same wherever one is."""

    experiment: Experiment
    cache: Path  # of data sets; on machines where there can be no such folder, their own
    device: str
    data_sha256: str
    versions: dict[str, str]


@dataclass(frozen=True)
class WorkerLocation:
    """Where a worker finds itself."""

    apart: bool  # it does not see the run's folder
    kind: str  # of its processor: among different ones, sums may differ in their last bits


@dataclass(frozen=True)
class DriverLocation:
    """From where a process sees files and modules, so that another one can see the same."""

    folder: str
    path: tuple[str, ...]  # of modules

    @staticmethod
    def here() -> DriverLocation:
        """That of this process; its folder may be gone, as a job's is when another node on its machine clears up."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            folder = ""
        return DriverLocation(folder, tuple(os.path.join(folder, entry) for entry in sys.path))

    def take(self) -> None:
        """Stand there, as far as this machine has such a folder: a Ray that was joined may run anywhere."""
        sys.path += [folder for folder in self.path if folder not in sys.path]
        if os.path.isdir(self.folder):
            os.chdir(self.folder)


class WorkerActor:
    """A worker in an actor, which builds data and model at once, and works when it has been told how.

    It looks modules up where the driver does, so components beside an experiment are found. Where it does not see the
    run's folder, client memory comes with its work and goes back with the results.
    """

    def __init__(self, place: DriverLocation, makings: bytes) -> None:
        place.take()
        share_tensors()
        self.worker: Worker | None = None
        self.carried: RemoteClientStore | None = None
        self.failure: Exception | None = None
        try:
            self.makings: WorkerSpec = pickle.loads(makings)
            self._build()
        except Exception as error:  # to be told when somebody listens
            self.failure = error

    def _build(self) -> None:
        """Data and model, while the driver builds its own."""
        made = self.makings
        if made.versions != VERSIONS:
            raise RunError(f"{platform.node()} has {VERSIONS}, the driver {made.versions}")
        torch.set_num_threads(made.experiment.execution.threads)
        built = nursery.inherited  # by a worker that was born from this run's nursery
        self.setting = (
            built[0] if built else RunContext(made.experiment, cache_here(made.cache), torch.device(made.device))
        )
        if self.setting.dataset.sha256 != made.data_sha256:
            raise DataError(f"{platform.node()}: the data there are not those of the driver: their hashes differ")
        self.setting.module  # noqa: B018  (built on first use)

    def begin(self, setup: bytes, phase: int, base: Weights) -> WorkerLocation:
        """Enter a phase; says where this is."""
        if self.failure is not None:
            raise self.failure
        if self.worker is None:
            self.worker = self._worker(pickle.loads(setup))
        self.worker.begin(phase, base)
        return WorkerLocation(self.carried is not None, processor(self.setting.device))

    def _worker(self, setup: WorkerConfig) -> Worker:
        if marker(setup.memory, setup.sitting).exists():
            return Worker(setup, self.setting)
        self.carried = RemoteClientStore()
        return Worker(setup, self.setting, store=self.carried)

    @contextmanager
    def _with(self, memory: Carry) -> Iterator[dict[str, Any]]:
        """A piece of work with the client memory that came along; the value: what goes back."""
        if self.carried is None:
            yield {}
            return
        import ray

        with self.carried.work({digest: ray.get(state) for digest, state in memory.items()}) as new:
            yield new

    def train(self, plan: CohortPlan, received: Parts, memory: Carry) -> tuple[CohortResult, Carry]:
        """Train a cohort; gives client memory that the driver is to keep, too."""
        assert self.worker is not None
        with self._with(memory) as new:
            return self.worker.train(plan, received), new

    def probe(self, question: ProbeRequest, received: Parts, memory: Carry) -> tuple[ProbeResult, Carry]:
        """Try execution_modes of training."""
        assert self.worker is not None
        with self._with(memory):
            return self.worker.probe(question, received), {}

    def evaluate(self, plan: EvaluationPlan, received: Parts, memory: Carry) -> tuple[Scores, Carry]:
        """Score a shard."""
        assert self.worker is not None
        with self._with(memory) as new:
            return self.worker.evaluate(plan, received), new

    def partial_gradient(
        self, piece: MicroBatch, shared: SharedStepInputs, received: Parts, memory: Carry
    ) -> tuple[PartialGradient, Carry]:
        """What a piece of a local batch adds to its gradient."""
        assert self.worker is not None
        return self.worker.partial_gradient(piece, shared, received), {}

    def spare(self) -> None:
        """Give back the memory that torch keeps for later."""
        assert self.worker is not None
        self.worker.spare()


def cache_here(given: Path) -> Path:
    """The driver's folder of data sets, or, on a machine where there can be none of that name, this machine's own."""
    try:
        given.mkdir(parents=True, exist_ok=True)
        return given
    except OSError:
        return own_cache()


def marker(memory: Path, sitting: str) -> Path:
    """A file that the driver lays: who sees it, and only who does, shares its disk."""
    return memory / f"{files.TEMP}shared-{sitting}"


def share_tensors() -> None:
    """Tensors that this process sends lie in the object store as they are and are read there, never written to.

    Torch's own pickle copies them four times: 9 and 3 ms for 5 MB at the two ends, against 4 and under 1.
    """
    from ray.util import register_serializer

    register_serializer(
        torch.Tensor,
        serializer=lambda tensor: (raw_bytes(tensor), tensor.dtype, tuple(tensor.shape)),
        deserializer=lambda parts: from_raw_bytes(*parts),
    )
