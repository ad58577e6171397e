"""A worker in an actor of Ray, on any machine of the cluster."""

from __future__ import annotations

import os
import pickle
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from simfl import __version__
from simfl.aggregation.round import CohortResult
from simfl.autotune.probe import ProbeRequest, ProbeResult
from simfl.errors import DataError, RunError
from simfl.evaluation.scoring import EvaluationResult, EvaluationTask
from simfl.experiment import Experiment
from simfl.files import cache_folder as local_cache
from simfl.protocol import Parts, Weights
from simfl.run_context import RunContext
from simfl.runtime.gpu_monitor import processor
from simfl.runtime.gpus import shared_with_others
from simfl.runtime.ray.cluster import ObjectRef
from simfl.runtime.ray.remote_store import RemoteClientStore, marker_file
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs
from simfl.training.plan import CohortPlan
from simfl.weights import State, from_raw_bytes, to_raw_bytes

VERSIONS = {"simfl": __version__, "torch": torch.__version__}  # must be equal on all machines of a run
StateRefs = dict[str, ObjectRef]  # digest of a client state -> reference to it in the object store
States = dict[str, State]  # by digest

inherited: list[RunContext] = []  # in a worker that was forked: the context that its fork server has built


@dataclass(frozen=True)
class WorkerSpec:
    """Source of a worker's run context, equal on all workers."""

    experiment: Experiment
    cache: Path  # of data sets; a machine where this folder cannot exist uses its own
    device: str
    data_sha256: str
    versions: dict[str, str]


@dataclass(frozen=True)
class WorkerLocation:
    """Properties of the machine that a worker runs on."""

    remote: bool  # it does not see the run's folder
    kind: str  # its processor: sums may differ in their last bits between kinds
    machine: str = ""  # name of the machine
    shared: str = ""  # note on the GPU of the worker, if others used it when the worker started


@dataclass(frozen=True)
class DriverLocation:
    """Working directory and module path of the driver, which workers take over."""

    folder: str
    path: tuple[str, ...]  # of modules

    @staticmethod
    def here() -> DriverLocation:
        """Return the location of this process.

        Its working directory may not exist: Ray removes a job's directory when another node on the machine shuts down.
        """
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            folder = ""
        return DriverLocation(folder, tuple(os.path.join(folder, entry) for entry in sys.path))

    def apply(self) -> None:
        """Extend this process's module path, and change to the folder if it exists on this machine."""
        sys.path += [folder for folder in self.path if folder not in sys.path]
        if os.path.isdir(self.folder):
            os.chdir(self.folder)


class WorkerActor:
    """A worker in an actor, which builds data and model at once and takes tasks after `begin`.

    It imports modules from the driver's path, so components in the experiment's folder are found. If it does not see
    the run's folder, client states arrive with its tasks and return with the results.
    """

    def __init__(self, location: DriverLocation, spec: bytes) -> None:
        """Build data and model from a pickled `WorkerSpec`; an error is raised by `begin`."""
        location.apply()
        share_tensors()
        self._worker: Worker | None = None
        self._remote_store: RemoteClientStore | None = None
        self._error: Exception | None = None
        self._shared = shared_with_others()  # before this process uses the GPU itself
        try:
            self.context = _build_context(pickle.loads(spec))
        except Exception as error:  # kept, since the driver reads the result of `begin` only
            self._error = error

    def begin(self, config: bytes, phase: int, base: Weights) -> WorkerLocation:
        """Start a phase with a pickled `WorkerConfig` and return the location of this worker."""
        if self._error is not None:
            raise self._error
        if self._worker is None:
            self._worker = self._make_worker(pickle.loads(config))
        self._worker.begin(phase, base)
        remote, kind = self._remote_store is not None, processor(self.context.device)
        return WorkerLocation(remote, kind, platform.node(), self._shared)

    def _make_worker(self, config: WorkerConfig) -> Worker:
        if marker_file(config.client_states, config.session_name).exists():
            return Worker(config, self.context)
        self._remote_store = RemoteClientStore()
        return Worker(config, self.context, store=self._remote_store)

    @property
    def worker(self) -> Worker:
        """Return the worker, which exists after `begin`."""
        assert self._worker is not None, "the actor got a task before it began a phase"
        return self._worker

    @contextmanager
    def _states(self, refs: StateRefs) -> Iterator[States]:
        """Provide the client states of a task; the block's value collects those to send back."""
        if self._remote_store is None:
            yield {}
            return
        import ray

        with self._remote_store.task({digest: ray.get(ref) for digest, ref in refs.items()}) as new:
            yield new

    def train(self, plan: CohortPlan, received: Parts, states: StateRefs) -> tuple[CohortResult, States]:
        """Train a cohort; return the result, and the client states that the driver has to keep."""
        with self._states(states) as new:
            result = self.worker.train(plan, received)
            result.owned = frozenset()  # the driver reads the object store, which cannot be written to
            return result, new

    def probe(self, request: ProbeRequest, received: Parts, states: StateRefs) -> tuple[ProbeResult, States]:
        """Try execution modes of training."""
        with self._states(states):
            return self.worker.probe(request, received), {}

    def evaluate(self, task: EvaluationTask, received: Parts, states: StateRefs) -> tuple[EvaluationResult, States]:
        """Evaluate the shards of a task."""
        with self._states(states) as new:
            return self.worker.evaluate(task, received), new

    def partial_gradient(
        self, micro_batch: MicroBatch, shared: SharedStepInputs, received: Parts, states: StateRefs
    ) -> tuple[PartialGradient, States]:
        """Return the gradient of a micro-batch."""
        return self.worker.partial_gradient(micro_batch, shared, received), {}

    def free_memory(self) -> None:
        """Free the memory that torch caches."""
        self.worker.free_memory()


def _build_context(spec: WorkerSpec) -> RunContext:
    """Read the data and build the model, while the driver builds its own; a forked worker has inherited both."""
    if spec.versions != VERSIONS:
        raise RunError(f"{platform.node()} has {VERSIONS}, but the driver has {spec.versions}")
    torch.set_num_threads(spec.experiment.execution.threads)
    if inherited:
        context = inherited[0]
    else:
        context = RunContext(spec.experiment, usable_cache(spec.cache), torch.device(spec.device))
    if context.dataset.sha256 != spec.data_sha256:
        raise DataError(f"{platform.node()}: the data differ from the driver's: their hashes are not equal")
    context.module  # noqa: B018  (built on first use)
    return context


def usable_cache(given: Path) -> Path:
    """Return the driver's folder of data sets, or this machine's own if that folder cannot be made here."""
    try:
        given.mkdir(parents=True, exist_ok=True)
        return given
    except OSError:
        return local_cache()


def share_tensors() -> None:
    """Put tensors that this process sends into the object store as raw bytes, which receivers read without a copy.

    Torch's own pickle copies them four times: 9 and 3 ms for 5 MB at the two ends, against 4 and under 1 ms.
    """
    from ray.util import register_serializer

    register_serializer(
        torch.Tensor,
        serializer=lambda tensor: (to_raw_bytes(tensor), tensor.dtype, tuple(tensor.shape)),
        deserializer=lambda parts: from_raw_bytes(*parts),
    )
