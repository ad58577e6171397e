"""Overrides of private parts of Ray while it starts, for one run on one machine: one second instead of four.

In its usual start, Ray waits for the server of a dashboard, for two agents until they have imported their
dependencies, and for as many workers as there are CPUs; and it looks for its own node only once a second.
"""

from __future__ import annotations

import inspect
import os
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from simfl.runtime.ray.faststart.forked_worker import FORK_SERVER

FORKED_WORKER = Path(__file__).with_name("forked_worker.py")
AGENTS = ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN", "RUNTIME_ENV_AGENT")
AGENT_COMMAND = "_build_python_executable_command_memory_profileable"  # builds the command lines of the agents
DEPENDENCIES = "get_dashboard_dependency_error"  # imports the dashboard's dependencies
PORTS = range(20_000, 32_000)  # below the range from which the kernel assigns ports
POLL_INTERVAL = 0.01  # seconds between two looks for the node
ENVIRONMENT = {  # of Ray's processes
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",  # the agent's reports on processes took 3 % of two busy cores
}
Function = Callable[..., Any]
Wrapper = Callable[[Function], Function]


@contextmanager
def patched(fork_address: str | None = None) -> Iterator[None]:
    """Start only what a run uses if Ray starts within the block; with an address, workers ask there to be forked."""
    from ray._private import parameter, services, utils

    settings: dict[str, Any] = {"include_log_monitor": False, "no_monitor": True, **_free_ports()}
    environment = dict(ENVIRONMENT)
    if fork_address is not None:
        settings["worker_path"] = str(FORKED_WORKER)
        environment[FORK_SERVER] = fork_address
    with ExitStack() as stack:
        for name, value in environment.items():
            stack.enter_context(_environment(name, value))
        stack.enter_context(_replaced(parameter.RayParams, "__init__", _with_settings(settings)))
        stack.enter_context(_replaced(services, "start_api_server", _without_dashboard))
        stack.enter_context(_replaced(services, "start_raylet", _without_waiting_for_agents))
        stack.enter_context(_replaced(services, "get_node", _polling_often))
        stack.enter_context(_replaced(services, AGENT_COMMAND, _at_low_priority))
        stack.enter_context(_replaced(utils, DEPENDENCIES, _without_dashboard_imports))
        yield


def mute_errors() -> None:
    """Keep Ray from printing errors of its servers, such as 20 lines of a log when one dies; simfl does."""
    from ray._private import worker

    vars(worker)["print_to_stdstream"] = lambda *args, **kwargs: None


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, which Ray's processes inherit, for a block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _replaced(owner: Any, name: str, wrapper: Wrapper) -> Iterator[None]:
    """Replace a function of a module or class by its wrapped form for a block."""
    original = getattr(owner, name)
    setattr(owner, name, wrapper(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _with_settings(settings: dict[str, Any]) -> Wrapper:
    """Return a wrapper of `RayParams.__init__` that also sets these attributes."""

    def wrapper(original: Function) -> Function:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            for name, value in settings.items():
                setattr(self, name, value)

        return init

    return wrapper


def _free_ports() -> dict[str, int]:
    """Return a free port for each agent; another process could take one first, but hardly from this range."""
    ports: dict[str, int] = {}
    generator = random.SystemRandom()
    while len(ports) < len(AGENTS):
        port = generator.choice(PORTS)
        with socket.socket() as attempt:
            if port not in ports.values() and attempt.connect_ex(("127.0.0.1", port)) != 0:
                ports[f"{AGENTS[len(ports)].lower()}_port"] = port
    return ports


def _without_dashboard(original: Function) -> Function:
    """Start no dashboard server."""
    return lambda *args, **kwargs: ("", None)


def _without_waiting_for_agents(original: Function) -> Function:
    """Write the files with the agents' ports beforehand: the raylet waits for them."""

    def start_raylet(*args: Any, **kwargs: Any) -> Any:
        import ray._raylet

        raylet: Any = ray._raylet
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        for agent in AGENTS:
            name, port = getattr(raylet, f"{agent}_PORT_NAME"), given[f"{agent.lower()}_port"]
            raylet.persist_port(given["session_dir"], given["node_id"], name, port)
        return original(*args, **kwargs)

    return start_raylet


def _polling_often(original: Function) -> Function:
    """Look for the node every 10 ms; Ray looks once a second."""

    def get_node(gcs_address: str, node_id: str) -> Any:
        import ray._raylet

        raylet: Any = ray._raylet
        client, deadline = raylet.GcsClient(address=gcs_address), time.monotonic() + 30.0
        while not client.get_all_node_info() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)
        return original(gcs_address, node_id)

    return get_node


def _at_low_priority(original: Function) -> Function:
    """Start the agents, which nothing waits for, at the lowest priority."""

    def command(*args: Any, **kwargs: Any) -> list[str]:
        nice = shutil.which("nice")
        words: list[str] = original(*args, **kwargs)
        return [nice, "-n", "19", *words] if nice else words

    return command


def _without_dashboard_imports(original: Function) -> Function:
    """Do not import the dashboard's dependencies: half a second in this process, and more in the agent."""
    return lambda: ImportError("the dashboard is not used")
