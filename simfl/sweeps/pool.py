"""Execution of the runs of a sweep: one after another in this process, or one per CPU or GPU with Ray.

A worker executes one run after another, and keeps the data and the model that they share.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from simfl import files
from simfl.errors import ConfigError, RunError, SimflError, nearest
from simfl.experiment import Experiment
from simfl.run_context import RunContext
from simfl.runtime.ray import cluster
from simfl.runtime.ray.actor import DriverLocation
from simfl.runtime.ray.cluster import ActorHandle, ObjectRef
from simfl.runtime.ray.worker_group import start_fork_server
from simfl.session.check_data import check_data
from simfl.sweeps.job import Outcome, SweepJob, execute, failed

LOOK_SECONDS = 2.0  # between two looks at the machines of the cluster
REPORT_SECONDS = 10.0  # without a machine for any run, until this is reported
ROUNDING = 1e-6  # of the number of shares of a GPU
MAX_TRIES = 3  # workers that may die during one run; the next worker resumes from the last checkpoint


@dataclass(frozen=True)
class SweepPlacement:
    """Executors of the runs of a sweep."""

    backend: str = "ray"  # or inline
    workers: int | str = "auto"  # number of concurrent runs with Ray
    address: str | None = None  # of a running Ray cluster
    gpus: float = 1.0  # GPUs of each run, where Ray has some; below 1: a share of one
    cpus: int = 1  # CPUs of each run, where Ray has no GPUs
    profile: bool = False  # write a timeline of each run

    def share(self, resource: str) -> float:
        """Return the amount of a resource, CPU or GPU, that each run occupies.

        Raises:
            ConfigError: It is neither a share of one nor a whole number, or there are no GPUs, or there are some.
        """
        if not 0 < self.gpus <= 1 and not (self.gpus > 1 and self.gpus == int(self.gpus)):
            raise ConfigError(f"--gpus-per-run: {self.gpus:g} given; allowed: above 0, at most 1, or a whole number")
        if resource != "GPU" and self.gpus != 1:
            raise ConfigError(f"--gpus-per-run: {self.gpus:g} given, but there are no GPUs; allowed: --cpus-per-run")
        if resource == "GPU" and self.cpus != 1:
            raise ConfigError(f"--cpus-per-run: {self.cpus} given, but runs use GPUs; allowed: --gpus-per-run")
        return self.gpus if resource == "GPU" else float(self.cpus)


class RunPool(Protocol):
    """Executor of runs."""

    starts_at_once: bool  # `start` returns before the run has ended

    @property
    def free(self) -> int:
        """Number of runs that can be started now."""

    def expect(self, waiting: int) -> None:
        """Prepare for this number of runs that wait to be started."""

    def start(self, job: SweepJob) -> None:
        """Start a run."""

    def ended(self, seconds: float) -> list[Outcome]:
        """Return the runs that have ended since the last call; wait up to `seconds` for the first."""


class InlineRuns:
    """Executor in this process: `start` returns when the run has ended."""

    starts_at_once = False

    def __init__(self, display: Callable[[SweepJob], Any], profile: bool = False) -> None:
        self.display, self.shared, self.outcomes = display, dict[str, Any](), list[Outcome]()
        self.profile = profile

    @property
    def free(self) -> int:
        """One, unless an outcome has not been collected."""
        return 0 if self.outcomes else 1

    def expect(self, waiting: int) -> None:
        """Do nothing: this process executes all runs."""

    def start(self, job: SweepJob) -> None:
        """Execute a run."""
        self.outcomes.append(execute(job, self.shared, self.display(job), profile=self.profile))

    def ended(self, seconds: float) -> list[Outcome]:
        """Return the outcomes that have not been collected."""
        ended, self.outcomes = self.outcomes, []
        return ended


inherited: dict[str, Any] = {}  # in an actor that was forked: data and model of the first run


class RunActor:
    """Ray actor that executes one run after another."""

    def __init__(self, driver: DriverLocation, workers: int, profile: bool) -> None:
        driver.apply()
        self.shared: dict[str, Any] = dict(inherited)
        self.workers, self.profile = workers, profile

    def node(self) -> str:
        """Return the id of the node of Ray that the actor is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def execute(self, job: SweepJob) -> Outcome:
        """Execute a run; it fails if the folder of the sweep does not exist on this machine."""
        parent = job.location.folder.parent
        if not job.location.url and not parent.is_dir():
            reason = "a sweep needs a folder that all machines of Ray share, or a URL"
            return Outcome(job.label, "failed", f"{platform.node()} does not see {parent}: {reason}")
        return execute(job, self.shared, workers=self.workers, profile=self.profile)


@dataclass(frozen=True)
class Seat:
    """An actor that has started."""

    actor: ActorHandle
    node: str  # id of its node


class RayRuns:
    """Executor with one actor per CPU, GPU, fraction of a GPU, or group of several, each with one run at a time.

    Actors follow the machines of the cluster. A run is given to an actor that has started, never to one that waits for
    resources, so no run waits while an actor is idle. The run of a machine that died goes to the next idle actor.
    """

    starts_at_once = True

    def __init__(self, placement: SweepPlacement, log: Callable[[str], None]) -> None:
        self.ray, self.log = cluster.connect(placement.address), log
        self.resource = cluster.worker_resource(placement.address)
        self.share, self.profile = placement.share(self.resource), placement.profile
        self.groups: dict[ActorHandle, Any] = {}  # reserved CPUs or GPUs of an actor whose runs have several workers
        self.joined = placement.address is not None  # machines may join later
        self.limit = None if placement.workers == "auto" else int(placement.workers)
        self.nodes = dict[str, int]()  # id of each live node -> number of actors that it has room for
        self.idle = list[Seat]()
        self.starting: dict[ObjectRef, ActorHandle] = {}
        self.running: dict[ObjectRef, tuple[Seat, SweepJob, int]] = {}  # actor, run, deaths
        self.returned = list[tuple[SweepJob, int]]()  # runs of actors that died, and their deaths
        self.failed_starts, self._next_look = 0, 0.0
        self._said, self._waits_since = False, 0.0
        self._look()
        self._check_room(placement)

    @property
    def free(self) -> int:
        """Number of idle actors that no returned run needs."""
        return max(0, len(self.idle) - len(self.returned))

    def expect(self, waiting: int) -> None:
        """Start actors for the runs that wait, as many as the machines have room for; stop those that none needs.

        In a cluster that this process has joined, one more actor waits for a machine to join or to become free, which
        an autoscaler sees as demand.
        """
        if time.monotonic() >= self._next_look:
            self._look()
        waiting += len(self.returned)
        room = sum(self.nodes.values()) + self.joined - len(self.running) - len(self.idle)
        if self.limit is not None:
            room = min(room, self.limit - len(self.running) - len(self.idle))
        wanted = max(0, min(waiting - len(self.idle), room))
        while len(self.starting) < wanted:
            self._start_actor()
        while len(self.starting) > wanted:
            self._stop(self.starting.popitem()[1])
        while len(self.idle) > waiting:
            self._stop(self.idle.pop().actor)

    def start(self, job: SweepJob, tries: int = 0) -> None:
        """Start a run on an idle actor."""
        seat = self.idle.pop()
        self.running[seat.actor.execute.remote(job)] = (seat, job, tries)

    def ended(self, seconds: float) -> list[Outcome]:
        """Return the runs that have ended; wait up to `seconds` for a run to end or an actor to start."""
        calls = [*self.running, *self.starting]
        if not calls:
            time.sleep(seconds)
            return []
        first, _ = self.ray.wait(calls, num_returns=1, timeout=seconds)
        ready, _ = self.ray.wait(calls, num_returns=len(calls), timeout=0) if first else ([], [])
        for ref in [ref for ref in ready if ref in self.starting]:
            self._take_started(ref)
        found = [outcome for ref in ready if ref in self.running and (outcome := self._outcome(ref)) is not None]
        while self.returned and self.idle:
            self.start(*self.returned.pop(0))
        self._report_waiting()
        return found

    def close(self) -> None:
        """Stop all actors."""
        seats = [*self.idle, *(seat for seat, _, _ in self.running.values())]
        for actor in [*(seat.actor for seat in seats), *self.starting.values()]:
            self._stop(actor)

    def _check_room(self, placement: SweepPlacement) -> None:
        """Raise ConfigError if no run has room, or fewer than the requested number at a time."""
        total = sum(self._amounts().values())
        if self.share > 1 and total < self.share:
            name = f"--{self.resource.lower()}s-per-run"
            raise ConfigError(f"{name}: {self.share:g} given, but Ray has {total:g} {self.resource}s")
        if self.share > 1 and self.limit is not None and self.limit > sum(self.nodes.values()):
            raise ConfigError(
                f"--workers: requested {self.limit} runs of {self.share:g} {self.resource}s each, but Ray has"
                f" {total:g} {self.resource}s"
            )
        if self.share <= 1:
            cluster.count_workers(self.resource, sum(self.nodes.values()), placement.workers)

    def _start_actor(self) -> None:
        num_workers = max(1, int(self.share))
        if num_workers == 1:
            num_gpus, group = (self.share if self.resource == "GPU" else 0), None
            options: dict[str, Any] = {"num_cpus": 1, "num_gpus": num_gpus}
        else:
            group, options = self._reserve(num_workers)
        actor_class = self.ray.remote(max_restarts=0, **options)(RunActor)
        actor = actor_class.remote(DriverLocation.here(), num_workers, self.profile)
        self.starting[actor.node.remote()] = actor
        if group is not None:
            self.groups[actor] = group

    def _reserve(self, num_workers: int) -> tuple[Any, dict[str, Any]]:
        """Reserve the resources of a run's workers together; two runs that had a part each would wait forever.

        The actor that leads the run needs none. The workers that it starts take what is reserved.
        """
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        one = {"CPU": 1.0} | ({"GPU": 1.0} if self.resource == "GPU" else {})
        group = placement_group([one] * num_workers, strategy="PACK")
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
        return group, {"num_cpus": 0, "num_gpus": 0, "scheduling_strategy": strategy}

    def _stop(self, actor: ActorHandle) -> None:
        """Stop an actor, and free what is reserved for its runs."""
        self.ray.kill(actor)
        if (group := self.groups.pop(actor, None)) is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(group)

    def _take_started(self, ref: ObjectRef) -> None:
        """Note that an actor has started; RunError if actors fail to start repeatedly."""
        actor = self.starting.pop(ref)
        try:
            self.idle.append(Seat(actor, self.ray.get(ref)))
            self.failed_starts = 0
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.RayTaskError) as error:
            self.failed_starts += 1
            self._stop(actor)
            if self.failed_starts == MAX_TRIES or getattr(error, "actor_init_failed", False):
                raise RunError(f"a worker of the sweep cannot start: {cluster.last_line(error)}") from None

    def _outcome(self, call: ObjectRef) -> Outcome | None:
        """Return the outcome of a run; None if its actor died and another one resumes it.

        Deaths of machines are not counted: they are no sign that the run kills its worker.
        """
        seat, job, tries = self.running.pop(call)
        try:
            outcome: Outcome = self.ray.get(call)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.OutOfMemoryError) as error:
            self._stop(seat.actor)
            self._look()
            reason = cluster.last_line(error)
            lost = seat.node not in self.nodes or "node has died" in str(error)
            if not lost and tries + 1 == MAX_TRIES:
                return failed(job, RuntimeError(f"its worker died {MAX_TRIES} times: {reason}"))
            self.log(f"{job.label}: its {'machine' if lost else 'worker'} died ({reason}); another one resumes the run")
            self.returned.append((job, tries + (not lost)))
            return None
        self.idle.append(seat)
        return outcome

    def _look(self) -> None:
        """Count the actors that each live machine has room for, and forget idle actors of dead machines."""
        self._next_look = time.monotonic() + LOOK_SECONDS
        amounts = self._amounts()
        self.nodes = {node: int(amount / self.share + ROUNDING) for node, amount in amounts.items()}
        if amounts and not any(self.nodes.values()):  # a run needs several machines
            self.nodes[next(iter(amounts))] = int(sum(amounts.values()) / self.share)
        self.idle = [seat for seat in self.idle if seat.node in self.nodes]

    def _amounts(self) -> dict[str, float]:
        """Return the CPUs or GPUs of each live node, by its id."""
        return {
            node["NodeID"]: float(node["Resources"].get(self.resource, 0)) for node in self.ray.nodes() if node["Alive"]
        }

    def _report_waiting(self) -> None:
        """Report once per wait that no machine has room for a run."""
        waits = bool(self.starting or self.returned) and not self.running and not self.idle
        if waits and not self._said and self._waits_since and time.monotonic() - self._waits_since > REPORT_SECONDS:
            free = self.ray.available_resources().get(self.resource, 0)
            self.log(
                f"waiting for a machine with a free {self.resource}: Ray has {free:g} of"
                f" {sum(self._amounts().values()):g}"
            )
            self._said = True
        if not waits:
            self._said, self._waits_since = False, 0.0
        elif not self._waits_since:
            self._waits_since = time.monotonic()


@contextmanager
def _forking(experiments: Sequence[Experiment]) -> Iterator[None]:
    """Let the actors of this machine be forks of this process for the block, where Ray and the experiments allow it.

    They inherit all imports, and data and model of the first experiment. An error in these is reported by its run.
    """

    def build() -> None:
        torch.set_num_threads(1)
        with suppress(SimflError):
            context = RunContext(experiments[0], files.cache_folder(), torch.device("cpu"), inherited)
            check_data(experiments[0], context)
            context.module  # noqa: B018  (built on first use)

    server = start_fork_server(max(experiment.execution.threads for experiment in experiments), build)
    inherited.clear()  # this process needs neither data nor model
    with closing(server) if server is not None else nullcontext():
        yield


@contextmanager
def open_pool(
    placement: SweepPlacement,
    display: Callable[[SweepJob], Any],
    log: Callable[[str], None],
    experiments: Sequence[Experiment],
) -> Iterator[RunPool]:
    """Open the executor of a backend for the block; at its end, stop the workers and the Ray that was started here.

    `experiments` are those of the runs, or examples of them.
    """
    if placement.backend == "inline":
        placement.share("CPU")  # refuses what has no effect
        if placement.cpus != 1:
            raise ConfigError(f"--cpus-per-run: {placement.cpus} given; has no effect with --backend inline")
        yield InlineRuns(display, placement.profile)
    elif placement.backend == "ray":
        with cluster.started(placement.address), _forking(experiments):
            pool = RayRuns(placement, log)
            try:
                yield pool
            finally:
                pool.close()
    else:
        raise ConfigError(f"--backend: unknown {placement.backend!r}; {nearest(placement.backend, ['inline', 'ray'])}")
