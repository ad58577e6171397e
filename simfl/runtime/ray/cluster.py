"""Connection to Ray: start it on this machine or join a cluster, and count its resources.

Ray starts in the background, while the caller imports libraries, reads data and builds a model. For versions of Ray
that the optional package `faststart` supports, a process of its own starts Ray, and this process joins it. Otherwise
`ray.init` runs in a thread of this process. The thread lives as long as Ray does, because the kernel ends Ray's
processes with the thread that started them.

Imports nothing heavy, so that Ray can start before anything else is imported.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Event, Thread
from typing import Any, TypeVar

from simfl.errors import ClusterError, ConfigError, RunError
from simfl.runtime import machine
from simfl.runtime.ray.access import on_loopback, private_token
from simfl.safe_text import has_secret, mask_secrets

try:
    from simfl.runtime.ray import faststart
except ImportError:  # the package is optional: without it, Ray starts in the usual way
    faststart = None  # type: ignore[assignment]

RayModule = Any  # the module `ray`, connected
ActorHandle = Any
ObjectRef = Any
Found = TypeVar("Found")

log = logging.getLogger(__name__)
SETTINGS = {  # environment variables
    "RAY_worker_niceness": "0",  # by default, Ray lowers its workers' priority by 15
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
REACH_TIMEOUT = 10.0  # seconds that an address has to answer
CLIENT_PORT = "10001"  # of a ray:// address without a port
START_SECONDS = 60.0  # that Ray has to start, or a cluster to accept this process
STOP_SECONDS = 30.0  # the longest time for Ray to stop in order; a launcher needs up to 20
SURVEY_TIMEOUT = 30.0  # seconds that workers have to answer `survey`
MAX_SURVEYED = 64  # workers that `survey` asks
MIN_FREE_BYTES = 20_000_000  # in the folder of Ray's session
SHORT_OF_MEMORY = re.compile(r"Memory on the node \(IP: ([^,]+),.*?\).* was ([\d.]+GB.*?)(?:, which|$)")
QUIET = {"log_to_driver": False, "configure_logging": False}


class RayStartup:
    """Ray from the start in the background until `close`."""

    def __init__(self, address: str | None) -> None:
        """Start Ray, or join it at the address.

        A Ray that the launcher starts is joined by the first `wait`: this process can be forked until then.
        """
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self.address = resolve_address(address)
        self.launcher = faststart.RayLauncher() if _uses_faststart(address) else None
        self.error: BaseException | None = None
        self.abandoned = False
        self._ready, self._closing = Event(), Event()
        self._thread: Thread | None = None
        if self.launcher is None:
            self._start_thread()

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._live, name="ray", daemon=True)
            self._thread.start()

    def _live(self) -> None:
        try:
            _connect(self.address, self.launcher)
        except BaseException as error:  # raised again by `wait`
            self.error = error
        self._ready.set()
        if self.error is None:
            self._closing.wait()
            sys.modules["ray"].shutdown()
        if self.launcher is not None:
            self.launcher.close()

    def wait(self) -> None:
        """Wait until this process is connected to Ray, and raise the error if the start failed.

        Raises:
            ClusterError: Ray has not started after `START_SECONDS`; what there is of it is killed.
        """
        self._start_thread()
        if not self._ready.wait(START_SECONDS):
            self.abandon()
            raise ClusterError(f"Ray has not started after {START_SECONDS:g} s; start the run again, with --resume")
        if self.error is not None:
            raise self.error

    def abandon(self) -> None:
        """Kill a Ray that is lost. This process stays connected to it: to disconnect could wait forever."""
        self.abandoned = True
        if self.launcher is not None:
            self.launcher.kill()

    def close(self, wait: bool) -> None:
        """Stop Ray, in the background unless `wait` is set. One that takes longer than `STOP_SECONDS` is abandoned."""
        if self.abandoned:
            return
        self._closing.set()
        if self._thread is None:
            assert self.launcher is not None, "without a launcher, the thread starts at once"
            self.launcher.close(wait)
        elif wait:
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():  # to disconnect from a frozen server would wait forever
                self.abandon()

    @property
    def closing(self) -> bool:
        """Return whether `close` was called."""
        return self._closing.is_set()

    @property
    def ended(self) -> bool:
        """Return whether Ray is lost or is being stopped."""
        return self.closing or self.abandoned


_current: RayStartup | None = None


@contextmanager
def start_early(backend: str, address: str | None) -> Iterator[None]:
    """Start Ray before a block that imports and then runs, if the backend is Ray and the launcher starts it."""
    with started(address) if backend == "ray" and _uses_faststart(address) else nullcontext():
        yield


@contextmanager
def started(address: str | None) -> Iterator[None]:
    """Start Ray, or join it, for a block; Ray stops at the end of the block, unless it was running before.

    If the block fails, the error propagates without waiting for Ray to stop.
    """
    startup = _begin(address)
    try:
        yield
    except BaseException:
        if startup is not None:
            startup.close(wait=False)
        raise
    if startup is not None:
        startup.close(wait=True)


def connect(address: str | None) -> RayModule:
    """Return the module `ray`, connected; wait for `started`, or start or join Ray here.

    Raises ConfigError if no cluster answers at the address.
    """
    if _current is not None and not _current.closing:
        _current.wait()
    return _connect(resolve_address(address), None)


def abandon() -> None:
    """Kill a Ray that was started here and is lost."""
    if _current is not None:
        _current.abandon()


def is_abandoned() -> bool:
    """Return whether this process is connected to a Ray that is lost; its exit would wait for that Ray."""
    return _current is not None and _current.abandoned


def fork_address() -> str | None:
    """Return the socket on which Ray asks for forked workers, or None if Ray starts its workers in the usual way."""
    launcher = None if _current is None or _current.closing else _current.launcher
    return None if launcher is None else launcher.fork_address


def running() -> bool:
    """Return whether Ray is running here or starting; wait for a Ray that is stopping."""
    if _current is not None:
        if not _current.closing:
            return True
        _current.close(wait=True)
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def joined() -> bool:
    """Return whether this process is connected, or connects, to a Ray that it did not start."""
    if _current is not None and not _current.ended:
        return _current.address is not None
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def resolve_address(address: str | None) -> str | None:
    """Return the address of the Ray to join: the one given, or RAY_ADDRESS; None to start Ray on this machine.

    Raises:
        ConfigError: The address holds a user or a password.
    """
    found = address or os.environ.get("RAY_ADDRESS") or None
    if found is not None and (has_secret(found) or "@" in found):
        name = "--address" if address else "RAY_ADDRESS"
        shown = mask_secrets(found) if has_secret(found) else f"***@{found.rpartition('@')[2]}"
        raise ConfigError(f"{name}: {shown} holds a user or a password; Ray takes a token instead, in RAY_AUTH_TOKEN")
    return found


def worker_resource(address: str | None) -> str:
    """Return the resource that each worker occupies: GPU if there are GPUs, else CPU.

    For a Ray that starts on this machine torch decides; a cluster, whose machines differ, is asked.
    """
    if resolve_address(address) is not None:
        return "GPU" if connect(address).cluster_resources().get("GPU") else "CPU"
    import torch

    return "GPU" if torch.cuda.is_available() else "CPU"


def count_workers(resource: str, available: float, workers: int | str, each: int = 1) -> int:
    """Return the number of workers: the requested one, or for `auto` as many as there are CPUs or GPUs.

    `each`: GPUs that a worker occupies.

    Raises:
        ConfigError: More workers are requested than there are, or not even one has its GPUs.
    """
    if each > max(1, available):
        raise ConfigError(f"execution.model_parallel: {each}, but Ray has {available:g} {resource}s; allowed: fewer")
    if workers == "auto":
        return max(1, int(available) // each)
    if int(workers) * each > available:
        of_each = f" of {each} {resource}s" if each > 1 else ""
        raise ConfigError(f"--workers: requested {workers} workers{of_each}, but Ray has {available:g} {resource}s")
    return int(workers)


def survey(address: str | None, look: Callable[[], Found]) -> tuple[dict[str, float], list[Found]]:
    """Return Ray's resources and what `look` returns on workers: one for each GPU, or else one on each machine.

    Workers that Ray cannot start in time, as when other jobs have their GPUs, are missing.

    Raises:
        ClusterError: No worker answered.
    """
    with started(address):
        ray = connect(address)
        resources = {kind: float(number) for kind, number in ray.cluster_resources().items()}
        gpus = min(int(resources.get("GPU", 0)), MAX_SURVEYED)
        actors = [_surveyor(ray, num_gpus=1) for _ in range(gpus)] or [
            _surveyor(ray, node=node["NodeID"]) for node in ray.nodes()[:MAX_SURVEYED] if node["Alive"]
        ]
        calls = [actor.look.remote(look) for actor in actors]
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=SURVEY_TIMEOUT)
        if not done:
            raise ClusterError(f"no worker answered within {SURVEY_TIMEOUT:g} s")
        found: list[Found] = [ray.get(call) for call in calls if call in done]
        for actor in actors:
            ray.kill(actor)
        return resources, found


class Surveyor:
    """An actor that occupies a GPU or a place on a machine while others look at theirs."""

    def look(self, look: Callable[[], Found]) -> Found:
        """Return what a function returns here."""
        return look()


def _surveyor(ray: RayModule, num_gpus: int = 0, node: str | None = None) -> ActorHandle:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = {} if node is None else {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
    return ray.remote(num_cpus=1, num_gpus=num_gpus, max_restarts=0, **place)(Surveyor).remote()


def last_line(error: Exception) -> str:
    """Return the line of an error of Ray's that holds the cause: the last one; the others describe the task.

    Where memory is short, the amounts in a line above it are the cause, and the last one is advice.
    """
    lines = str(error).strip().splitlines()
    amounts = filter(None, map(SHORT_OF_MEMORY.search, lines))
    return next((f"memory of node {found[1]}: {found[2]}" for found in amounts), lines[-1].strip())


def _begin(address: str | None) -> RayStartup | None:
    """Start Ray; None if it is running or starting already."""
    global _current
    if running():
        return None
    found = resolve_address(address)  # checked before the run's folder is made
    if found is None:
        _check_space(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")
    _check_reachable(found)
    _current = RayStartup(address)
    return _current


def _uses_faststart(address: str | None) -> bool:
    """Return whether Ray starts on this machine, and with the fast start."""
    return resolve_address(address) is None and faststart is not None and faststart.enabled()


def _connect(address: str | None, launcher: faststart.RayLauncher | None) -> RayModule:
    """Join Ray at the address or the one of the launcher, or start it in this process."""
    import ray

    if not ray.is_initialized():
        for name in ("worker", "authentication.authentication_token_setup"):
            logging.getLogger(f"ray._private.{name}").addFilter(_is_news)
        try:
            if address:
                _check_reachable(address)
                ray.init(address=address, **QUIET)
            elif launcher is None or not _join(ray, launcher):
                with private_token(), on_loopback():
                    ray.init("local", include_dashboard=False, num_cpus=machine.cpus(), **QUIET)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"--address: no Ray cluster answers at {address!r}: {last_line(error)}") from None
        _restore_excepthook()
        if faststart is not None and faststart.enabled():
            faststart.mute_errors()
    return ray


def _restore_excepthook() -> None:
    """Replace Ray's hook for uncaught errors by the one before it.

    It reports to Ray before it prints, and Ray ends the process without a traceback if it is stopping at that moment,
    for example after an error.
    """
    worker = sys.modules.get("ray._private.worker")
    if sys.excepthook is getattr(worker, "custom_excepthook", None):
        sys.excepthook = getattr(worker, "normal_excepthook", sys.__excepthook__)


def _check_space(folder: str) -> None:
    """Raise RunError if the folder of Ray's session has too little space, in which Ray would not start."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:  # Ray chooses another folder
        return
    if free < MIN_FREE_BYTES:
        raise RunError(
            f"{folder}: {free / 1e6:.1f} MB are free, Ray needs {MIN_FREE_BYTES / 1e6:g} MB to start; free space,"
            " set TMPDIR to another folder, or use --backend inline"
        )


def _check_reachable(address: str | None) -> None:
    """Raise ConfigError if no process listens at the address; Ray itself would retry for minutes."""
    scheme, _, rest = (address or "").rpartition("://")
    host, _, port = rest.rpartition(":") if ":" in rest else (rest, "", CLIENT_PORT if scheme else "")
    if port.isdecimal() and int(port) < 1 << 16:  # otherwise it is `auto`, or an address that Ray refuses at once
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_TIMEOUT).close()
        except OSError as error:
            raise ConfigError(f"--address: no Ray cluster answers at {address!r}: {error.strerror or error}") from None


def _join(ray: RayModule, launcher: faststart.RayLauncher) -> bool:
    """Join the Ray of the launcher; return False and log the cause if it did not start."""
    try:
        with on_loopback():
            ray.init(launcher.address(), **QUIET)
        return True
    except Exception as error:
        if launcher.killed:
            raise
        log.warning(
            "fast start of Ray failed (%s); Ray starts in the usual way, as it does with SIMFL_PLAIN_RAY=1", error
        )
        ray.shutdown()
        launcher.close(wait=False)
        return False


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for two messages that Ray logs at every start: about SIGTERM in threads and about tokens."""
    return not record.getMessage().startswith(("SIGTERM handler is not set", "Token authentication is enabled"))
