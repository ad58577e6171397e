"""Ray as one run on one machine needs it: up in a second, where its own start takes four.

Left alone, the start waits for the server of a dashboard that nobody asked for, for two agents until they have imported
what they may need, for as many workers as there are CPUs, and looks for its own node only every other second. What is
replaced here are private parts of Ray, while it starts; where they are not as they are known, Ray starts as it does.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from simfl.runtime.ray.faststart.forked_worker import NURSERY

PLAIN = "SIMFL_PLAIN_RAY"  # environment variable: set to anything, Ray starts as it does everywhere else
NEWBORN = Path(__file__).with_name("newborn.py")
AGENTS = ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN", "RUNTIME_ENV_AGENT")
PYTHON = "_build_python_executable_command_memory_profileable"  # the interpreter of the agents
DEPENDENCIES = "get_dashboard_dependency_error"  # which of them are missing
PORTS = range(20_000, 32_000)  # below those that the kernel gives to whoever asks for any
STEP = 0.01  # seconds between two looks for the node
UNASKED = {  # environment variables of Ray's processes
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",  # of metrics that nobody reads
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",  # the agent's looks at every process took 3 % of two busy cores
}


@contextmanager
def lean(nursery: str | None = None) -> Iterator[None]:
    """Inside the block `ray.init` starts no more than is used; where there is a nursery, workers ask it to be born."""
    import ray._raylet
    from ray._private import parameter, services, utils

    inner: Any = ray._raylet
    names = [f"{agent}_PORT_NAME" for agent in AGENTS]
    settings = {"include_log_monitor", "no_monitor", "worker_path", *(f"{agent.lower()}_port" for agent in AGENTS)}
    known = (
        settings <= inspect.signature(parameter.RayParams).parameters.keys()
        and all(hasattr(inner, name) for name in (*names, "persist_port", "GcsClient"))
        and all(hasattr(services, name) for name in ("start_api_server", "start_raylet", "get_node", PYTHON))
        and hasattr(utils, DEPENDENCIES)
    )
    if not known:
        yield
        return
    with ExitStack() as stack:
        given: dict[str, Any] = {"include_log_monitor": False, "no_monitor": True, **_free_ports()}
        for name, value in UNASKED.items():
            stack.enter_context(_environment(name, value))
        if nursery is not None:
            given["worker_path"] = str(NEWBORN)
            stack.enter_context(_environment(NURSERY, nursery))
        stack.enter_context(_replaced(parameter.RayParams, "__init__", _with(given)))
        stack.enter_context(_replaced(services, "start_api_server", lambda usual: lambda *_, **__: ("", None)))
        stack.enter_context(_replaced(services, "start_raylet", _not_waiting_for_agents))
        stack.enter_context(_replaced(services, "get_node", _as_soon_as_it_is_there))
        stack.enter_context(_replaced(services, PYTHON, _after_all_others))
        stack.enter_context(_replaced(utils, DEPENDENCIES, _not_looked_for))
        yield


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """What Ray's processes find in their environment."""
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
def _replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    usual = getattr(owner, name)
    setattr(owner, name, by(usual))
    try:
        yield
    finally:
        setattr(owner, name, usual)


def _with(settings: dict[str, Any]) -> Any:
    def by(usual: Any) -> Any:
        def made(self: Any, *args: Any, **given: Any) -> None:
            usual(self, *args, **given)
            for name, value in settings.items():
                setattr(self, name, value)

        return made

    return by


def _free_ports() -> dict[str, int]:
    """A port for each agent. Others may take it before the agent does, but hardly from this range."""
    found: dict[str, int] = {}
    draws = random.SystemRandom()
    while len(found) < len(AGENTS):
        port = draws.choice(PORTS)
        with socket.socket() as attempt:
            if port not in found.values() and attempt.connect_ex(("127.0.0.1", port)) != 0:
                found[f"{AGENTS[len(found)].lower()}_port"] = port
    return found


def _not_waiting_for_agents(usual: Any) -> Any:
    """The raylet waits for files that say where its agents listen, which is known beforehand."""

    def start_raylet(*args: Any, **given: Any) -> Any:
        import ray._raylet

        inner: Any = ray._raylet
        told = inspect.signature(usual).bind(*args, **given).arguments
        for agent in AGENTS:
            name, port = getattr(inner, f"{agent}_PORT_NAME"), told[f"{agent.lower()}_port"]
            inner.persist_port(told["session_dir"], told["node_id"], name, port)
        return usual(*args, **given)

    return start_raylet


def _as_soon_as_it_is_there(usual: Any) -> Any:
    """Ray asks for its node once a second."""

    def get_node(gcs_address: str, node_id: str) -> Any:
        import ray._raylet

        inner: Any = ray._raylet
        client, deadline = inner.GcsClient(address=gcs_address), time.monotonic() + 30.0
        while not client.get_all_node_info() and time.monotonic() < deadline:
            time.sleep(STEP)
        return usual(gcs_address, node_id)

    return get_node


def _after_all_others(usual: Any) -> Any:
    """Agents have time."""

    def command(*args: Any, **given: Any) -> list[str]:
        nice = shutil.which("nice")
        found: list[str] = usual(*args, **given)
        return [nice, "-n", "19", *found] if nice else found

    return command


def _not_looked_for(usual: Any) -> Any:
    """What a dashboard imports: half a second in this process, and more in its agent, which does with less without."""
    return lambda: ImportError("no dashboard was asked for")


def worth_saying(record: logging.LogRecord) -> bool:
    """All but what every start would print: that a thread cannot take SIGTERM, and that the cluster is guarded."""
    return not record.getMessage().startswith(("SIGTERM handler is not set", "Token authentication is enabled"))
