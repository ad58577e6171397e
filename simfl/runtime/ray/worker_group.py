"""The workers of a run on Ray: started early, replaced when they die, stopped at the end.

A `WorkerGroup` goes through three steps. `launch` starts one actor per CPU or GPU in a thread, as soon as Ray is up;
the actors read data and build the model while the driver still checks the experiment. `open` takes the settings of the
run once they are known. `enter_phase` brings all workers into a phase: `starting` holds the calls that do so, and
`ready` lists the workers that have finished theirs. Workers have numbers; a worker that dies is replaced by a new actor
with the same number, which enters the phase while the others continue. On a cluster with `--workers auto`, the group
grows when machines join or become free.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from simfl.errors import RunError, SimflError
from simfl.protocol import Weights
from simfl.run_context import RunContext
from simfl.runtime.ray import cluster
from simfl.runtime.ray.actor import VERSIONS, DriverLocation, WorkerActor, WorkerLocation, WorkerSpec, share_tensors
from simfl.runtime.ray.cluster import ActorHandle, ObjectRef, RayModule, last_line
from simfl.runtime.ray.monitor import RayMonitor, monitored
from simfl.runtime.ray.remote_store import StateTransfer
from simfl.runtime.worker import WorkerConfig

if TYPE_CHECKING:
    from simfl.runtime.ray.faststart.fork_server import ForkServer

MAX_START_RETRIES = 3  # how often a worker that dies while it starts is replaced
FREE_TIMEOUT = 30.0  # seconds that idle workers have to free memory
GROW_INTERVAL = 5.0  # seconds between two looks for machines that have joined


@dataclass(frozen=True)
class _Start:
    """A worker that is entering the phase."""

    worker: int
    retries: int = 0  # predecessors that died while they started


def start_fork_server(threads: int, build: Callable[[], RunContext | None]) -> ForkServer | None:
    """Make the workers of this machine forks of this process, where Ray and this process allow it, or else return None.

    Call it before this process connects to Ray.

    Args:
        threads: Torch threads of each worker.
        build: Called before the fork; it builds what workers inherit, and returns the context that they take, if any.
    """
    address = cluster.fork_address()
    if address is None:
        return None
    from simfl.runtime.ray.faststart.fork_server import ForkServer, can_fork

    return ForkServer(build(), address) if can_fork(threads) else None


class WorkerGroup:
    """Long-lived actors, one per CPU or GPU, numbered from 0."""

    config: WorkerConfig
    transfer: StateTransfer
    lost: tuple[type[Exception], ...]  # Ray's errors after which a task can be done again

    def __init__(self, workers: int | str, address: str | None) -> None:
        """Request a number of workers, or `auto`, of the Ray at an address, or of one started on this machine."""
        self.requested, self.address = workers, cluster.resolve_address(address)
        self.ray: RayModule = None
        self.actors: list[ActorHandle] = []
        self.starting: dict[ObjectRef, _Start] = {}
        self.entered: list[int] = []  # workers, in the order in which they entered the phase
        self.kinds: set[str] = set()  # names of the workers' processors
        self._notes: set[str] = set()  # on shared GPUs, reported once
        self._phase: tuple[int, ObjectRef] = (-1, None)  # its number, and a reference to its base
        self._next_growth = 0.0
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._lock, self._closed = Lock(), False
        self._cleanup = ExitStack()
        self.monitor: RayMonitor | None = None

    @cached_property
    def resource(self) -> str:
        """Return what each worker occupies: GPU or CPU."""
        return cluster.worker_resource(self.address)

    @property
    def device(self) -> str:
        """Return the type of the workers' torch device."""
        return "cuda" if self.resource == "GPU" else "cpu"

    @property
    def grows(self) -> bool:
        """Return whether workers are added when a machine joins or becomes free."""
        return self.requested == "auto" and self.address is not None

    # Start

    def launch(self, context: RunContext) -> None:
        """Start actors that build what the experiment needs; call it with the data in the cache.

        Where workers can be forked, the model is built here first, once for all; raises ConfigError if it cannot be.
        """
        experiment = context.experiment
        self._spec = WorkerSpec(experiment, context.cache, self.device, context.dataset.sha256, VERSIONS)
        self._start_fork_server(context)
        self._thread = Thread(target=self._launch, name="workers")
        self._thread.start()

    def _start_fork_server(self, context: RunContext) -> None:
        def build() -> RunContext:
            context.module  # noqa: B018  (built on first use)
            return context

        server = start_fork_server(context.experiment.execution.threads, build)
        if server is not None:
            self._cleanup.callback(server.close)

    def _launch(self) -> None:
        try:
            ray = cluster.connect(self.address)
            share_tensors()
            available = ray.cluster_resources().get(self.resource, 0)
            count = cluster.count_workers(self.resource, available, self.requested, self._each)
            if self.grows:  # other jobs may use the cluster; workers are added when they end
                count = max(1, min(count, self._num_free(ray)))
            self._arguments = DriverLocation.here(), ray.cloudpickle.dumps(self._spec)
            with self._lock:
                self.ray = ray
                if not self._closed:
                    self.actors = [self._new_actor() for _ in range(count)]
        except BaseException as error:  # raised again by `wait`
            self._error = error

    def _new_actor(self) -> ActorHandle:
        num_gpus = self._each if self.resource == "GPU" else 0
        return self.ray.remote(num_cpus=1, num_gpus=num_gpus, max_restarts=0)(WorkerActor).remote(*self._arguments)

    def wait(self) -> None:
        """Wait until the actors are requested from Ray, and raise the error if that failed."""
        assert self._thread is not None, "the workers were not launched"
        self._thread.join()
        if self._error is not None:
            raise self._error

    def open(self, config: WorkerConfig, on_message: Callable[[str], None]) -> None:
        """Take the settings of the run, before the first phase."""
        self.wait()
        self.on_message, self.config = on_message, replace(config, session_name=uuid.uuid4().hex)
        errors = self.ray.exceptions
        self.lost = (errors.RayActorError, errors.ObjectLostError, errors.OutOfMemoryError)
        self._pickled_config: bytes = self.ray.cloudpickle.dumps(self.config)
        self.transfer = StateTransfer(config.client_states, self.config.session_name, self.ray.put)
        self._cleanup.callback(self.transfer.close)

    # Phases

    @property
    def size(self) -> int:
        """Return the number of workers, including those that are starting."""
        return len(self.actors)

    @property
    def ready(self) -> list[int]:
        """Return the workers that are in the phase."""
        absent = {start.worker for start in self.starting.values()}
        return [worker for worker in range(self.size) if worker not in absent]

    def enter_phase(self, phase: int, base: Weights) -> None:
        """Send all workers into a phase."""
        self._phase = (phase, self.ray.put(base))
        self.starting = {}
        for worker in range(self.size):
            self._begin(worker)

    def _begin(self, worker: int, retries: int = 0) -> None:
        self.starting[self.actors[worker].begin.remote(self._pickled_config, *self._phase)] = _Start(worker, retries)

    def grow(self) -> None:
        """Add workers for machines that have joined or become free since the last look."""
        now = time.monotonic()
        if not self.grows or self.starting or now < self._next_growth:
            return
        self._next_growth = now + GROW_INTERVAL
        added = self._num_free(self.ray)
        for _ in range(added):
            self.actors.append(self._new_actor())
            self._begin(self.size - 1)
        if added:
            self.on_message(f"Ray has room for {added} more worker{'s'[: added > 1]}: {self.size} from now on")

    @contextmanager
    def monitored(self, on_lost: Callable[[], object]) -> Iterator[None]:
        """Watch Ray for the block; `on_lost` is called in another thread when Ray has ended or is frozen."""
        with monitored(self.ray, self.config.experiment.watchdog_seconds, on_lost) as self.monitor:
            yield

    def raise_if_lost(self) -> None:
        """Raise ClusterError if Ray itself has ended or is frozen."""
        if self.monitor is not None:
            self.monitor.raise_if_lost()

    @property
    def is_lost(self) -> bool:
        """Return whether Ray is known to have ended or to be frozen."""
        return self.monitor is not None and bool(self.monitor.lost)

    def replace(self, worker: int, retries: int = 0) -> None:
        """Replace a worker that died, or that cannot be reached although it is alive.

        Raises ClusterError if Ray itself is lost.
        """
        self.raise_if_lost()
        self.ray.kill(self.actors[worker])
        self.actors[worker] = self._new_actor()
        self._begin(worker, retries)

    def finish_start(self, ref: ObjectRef) -> None:
        """Note that a worker has entered the phase, or replace it if it died.

        Raises RunError if workers cannot start.
        """
        start = self.starting.pop(ref)
        try:
            location: WorkerLocation = self.get(ref)
        except self.lost as error:
            if getattr(error, "actor_init_failed", False) or start.retries == MAX_START_RETRIES:
                raise self._cannot_start(error) from None
            self.on_message(f"a worker died while it started ({last_line(error)}); it is replaced")
            self.replace(start.worker, start.retries + 1)
            return
        except self.ray.exceptions.RayTaskError as error:
            raise self._cannot_start(error) from None
        self._note_location(start.worker, location)
        self.entered = [worker for worker in self.entered if worker != start.worker] + [start.worker]

    def _cannot_start(self, error: Exception) -> RunError:
        self.on_message(str(error).strip())
        return RunError(f"a worker cannot start: {last_line(error)}; --backend inline shows the error in this process")

    def _note_location(self, worker: int, location: WorkerLocation) -> None:
        """Note where a worker runs, and report each fact about a run on several machines once."""
        if location.remote and not self.transfer.remote:
            folder = self.config.client_states.parent
            self.on_message(f"a worker does not see {folder}: client states are sent through Ray")
        if self.kinds and location.kind not in self.kinds:
            kinds = ", ".join(sorted({*self.kinds, location.kind}))
            self.on_message(
                f"workers have different processors ({kinds}): sums may differ in their last bits, depending on which"
                " worker trains which client; one worker tries the execution modes for all"
            )
        if location.shared and self.address is not None:  # on one machine, the driver has said so
            self._note_shared(worker, location)
        (self.transfer.remote.add if location.remote else self.transfer.remote.discard)(worker)
        self.kinds.add(location.kind)

    def _note_shared(self, worker: int, location: WorkerLocation) -> None:
        """Report once that others use the GPU which Ray gave to a worker."""
        text = f"worker {worker} on {location.machine} shares its GPU with others: {location.shared}"
        if text not in self._notes:
            self._notes.add(text)
            self.on_message(text)

    # Calls

    def get(self, ref: ObjectRef) -> Any:
        """Return the result of a call; an error of simfl raised in a worker is raised here as it was there."""
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SimflError):
                raise error.cause from None
            raise

    def free_memory(self, workers: Sequence[int]) -> None:
        """Have idle workers free the memory that torch caches."""
        refs = [self.actors[worker].free_memory.remote() for worker in workers]
        self.ray.wait(refs, num_returns=len(refs), timeout=FREE_TIMEOUT)

    def newest(self, workers: Sequence[int]) -> int:
        """Return the worker that entered the phase last."""
        return max(workers, key=self.entered.index)

    def _num_free(self, ray: RayModule) -> int:
        """Return the number of workers that could start now."""
        return int(ray.available_resources().get(self.resource, 0)) // self._each

    @property
    def _each(self) -> int:
        """Return how many GPUs a worker occupies, or CPUs."""
        return self._spec.experiment.execution.model_parallel if self.resource == "GPU" else 1

    def describe_free(self) -> str:
        """Return the free resources of Ray, for a message."""
        free, total = self.ray.available_resources(), self.ray.cluster_resources()
        kinds = ("GPU", "CPU") if self.resource == "GPU" else ("CPU",)
        return ", ".join(f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s" for kind in kinds)

    def close(self) -> None:
        """Stop the actors, and start none that are not started yet. May be called twice."""
        with self._lock:
            self._closed = True
            if self.is_lost:
                cluster.abandon()
            else:
                for actor in self.actors:
                    self.ray.kill(actor)
        self._cleanup.close()
        self.starting, self._phase = {}, (-1, None)


@contextmanager
def open_worker_group(backend: str, workers: int | str, address: str | None) -> Iterator[WorkerGroup | None]:
    """Provide a group for a run on Ray, None for other backends.

    Ray starts in the background, so that the caller can read data and build a model meanwhile. A Ray that was started
    here stops with the block.
    """
    if backend != "ray":
        yield None
        return
    with cluster.started(address):
        group = WorkerGroup(workers, address)
        try:
            yield group
        finally:
            group.close()
