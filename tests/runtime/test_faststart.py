"""Fast start of Ray: the launcher process, which ends with the driver however that ends, and the patches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from simfl.runtime import machine
from simfl.runtime.descendants import descendants
from simfl.runtime.ray import faststart
from simfl.runtime.ray.faststart import launcher
from simfl.runtime.ray.faststart.patches import AGENTS, PORTS, patched

REPOSITORY = Path(__file__).parents[2]
START = """
import json, os, signal, sys, time
from simfl.runtime.ray.faststart.launcher import RayLauncher

launcher = RayLauncher()
"""


def run_in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    """Run a script that starts with a launcher."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-c", START + code],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": path},
    )


def in_time(condition: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within a minute."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def alive(pid: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_installed_version_of_ray_is_in_the_table() -> None:
    """Add the version to the table when the tests of this file and of the fork server pass with it."""
    assert metadata.version("ray") in faststart.TESTED_VERSIONS


@pytest.mark.ray
def test_started_ray_can_be_joined_and_ends_with_its_launcher() -> None:
    code = """
address = launcher.address()
import ray
from simfl.runtime.ray.access import on_loopback
with on_loopback():
    ray.init(address=address, log_to_driver=False, configure_logging=False)
print(ray.cluster_resources()["CPU"], os.path.exists(launcher.folder))
ray.shutdown()
launcher.close()
launcher.close()
print(os.path.exists(launcher.folder), launcher._process.returncode)
"""
    done = run_in_a_process(code)
    assert done.stdout == f"{machine.cpus():.1f} True\nFalse 0\n", done.stderr
    assert done.stderr == ""


@pytest.mark.ray
def test_launcher_ends_when_its_driver_is_killed() -> None:
    code = """
launcher.address()
print(launcher.folder, launcher._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    folder, pid = run_in_a_process(code).stdout.split()
    assert in_time(lambda: not os.path.exists(folder))
    assert in_time(lambda: not alive(int(pid)))


def test_launcher_that_is_closed_without_waiting_ends_on_its_own() -> None:
    done = run_in_a_process("launcher.close(wait=False)\nprint(launcher.folder, launcher._process.pid)")
    folder, pid = done.stdout.split()
    assert done.stderr == ""
    assert in_time(lambda: not os.path.exists(folder))
    assert in_time(lambda: not alive(int(pid)))


def test_launcher_ends_a_ray_that_is_still_starting_when_its_driver_ends(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    start = "launcher._start = lambda address: launcher.Popen(['sleep', '600']).wait()"
    program = launcher.MAIN.replace("launcher.main(", f"{start}; launcher.main(")
    words = [sys.executable, "-c", program, str(folder / "fork-server"), *sys.path]
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    assert process.stdin is not None
    until = time.monotonic() + 20
    while not (started := descendants(process.pid)):
        assert time.monotonic() < until, "nothing was started"
        time.sleep(0.01)
    process.stdin.close()
    assert process.wait(20) == 0
    assert not any(Path(f"/proc/{one}").exists() for one in started)
    assert not folder.exists()


def test_frozen_launcher_is_killed_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MAIN", "import time; time.sleep(600)")
    monkeypatch.setattr(launcher, "STOP_TIMEOUT", 0.05)
    monkeypatch.setattr(launcher, "KILL_TIMEOUT", 0.05)
    frozen = launcher.RayLauncher()
    os.kill(frozen._process.pid, signal.SIGSTOP)
    frozen.close()
    assert frozen._process.returncode == -signal.SIGKILL
    assert not Path(frozen.folder).exists()


def test_launcher_that_cannot_start_ray_reports_the_cause() -> None:
    code = """
from simfl.runtime.ray.faststart.launcher import MAIN, PIPE, Popen
launcher.close()
failing = MAIN.replace("launcher.main(sys.argv[1])", "launcher._start = None; launcher.main('/x/y')")
assert failing != MAIN
launcher._process = Popen([sys.executable, "-c", failing, "", *sys.path], stdin=PIPE, stdout=PIPE, text=True)
try:
    launcher.address()
except ConnectionError as error:
    print(error)
launcher.close()
launcher._process = Popen([sys.executable, "-c", ""], stdin=PIPE, stdout=PIPE, text=True)
try:
    launcher.address()
except ConnectionError as error:
    print(error)
launcher.close()
"""
    done = run_in_a_process(code)
    assert done.stdout == "TypeError: 'NoneType' object is not callable\nthe launcher process has ended\n", done.stderr


parameter = pytest.importorskip("ray._private.parameter")
services = pytest.importorskip("ray._private.services")
utils = pytest.importorskip("ray._private.utils")


def patched_functions() -> list[object]:
    """Return the functions of Ray that are replaced during the start."""
    started = [services.start_api_server, services.start_raylet, services.get_node]
    return [parameter.RayParams.__init__, *started, utils.get_dashboard_dependency_error]


def test_patches_are_undone_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMFL_FORK_SERVER", raising=False)
    before = patched_functions()
    with patched("/somewhere"):
        assert not set(map(id, patched_functions())) & set(map(id, before))
        assert os.environ["SIMFL_FORK_SERVER"] == "/somewhere"
    assert patched_functions() == before
    assert "SIMFL_FORK_SERVER" not in os.environ


def test_patched_start_has_no_monitors_and_fixed_ports_for_agents() -> None:
    with patched():
        settings = parameter.RayParams()
        assert (settings.include_log_monitor, settings.no_monitor) == (False, True)
        ports = [getattr(settings, f"{agent.lower()}_port") for agent in AGENTS]
        assert len(set(ports)) == len(AGENTS)
        assert all(port in PORTS for port in ports)
        assert settings.worker_path is None  # Ray's own
    with patched("/somewhere"):
        assert parameter.RayParams().worker_path.endswith("simfl/runtime/ray/faststart/forked_worker.py")
