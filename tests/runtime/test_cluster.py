"""Connection to Ray: start in the background, errors, addresses, and the usual start without the fast start."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import simfl
from simfl.errors import ClusterError, ConfigError, RunError
from simfl.runtime.ray import cluster, faststart

TESTS = Path(__file__).parents[1]


def test_failed_start_is_raised_by_connect_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, launcher: None) -> None:
        raise ConfigError(f"no cluster answers at {address}")

    monkeypatch.setattr(cluster, "_connect", refuse)
    with pytest.raises(ConfigError, match="no cluster answers"), cluster.started("1.2.3.4"):
        cluster.connect("1.2.3.4")
    assert "ray" not in {thread.name for thread in threading.enumerate()}


def test_start_that_takes_too_long_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A raylet that is killed while it starts leaves Ray waiting for it."""
    ended = threading.Event()
    monkeypatch.setattr(cluster, "START_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "_connect", lambda address, launcher: ended.wait(30))
    monkeypatch.setattr(cluster, "_uses_faststart", lambda address: False)
    startup = cluster.RayStartup(None)
    try:
        with pytest.raises(ClusterError, match=r"^Ray has not started after 0.05 s; .*--resume$"):
            startup.wait()
        assert startup.ended
    finally:
        startup.error = RuntimeError("the test is over")  # so that the thread ends
        ended.set()
    assert startup._thread is not None
    startup._thread.join(30)


def test_a_ray_that_cannot_be_left_is_abandoned_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A completed run does not wait for a frozen GCS."""
    frozen = threading.Event()

    class Ray:
        @staticmethod
        def shutdown() -> None:
            frozen.wait(30)

    monkeypatch.setattr(cluster, "STOP_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "_connect", lambda address, launcher: None)
    monkeypatch.setattr(cluster, "_uses_faststart", lambda address: False)
    monkeypatch.setitem(sys.modules, "ray", Ray)
    startup = cluster.RayStartup(None)
    startup.wait()
    startup.close(wait=True)
    assert startup.abandoned
    frozen.set()
    assert startup._thread is not None
    startup._thread.join(30)


def test_error_in_the_block_does_not_wait_for_ray_and_the_next_start_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first start is abandoned while it is under way; the second one begins when the first has ended."""
    log, may_start = list[str](), threading.Event()

    class Ray:
        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def shutdown() -> None:
            log.append("down")

    def connect(address: str, launcher: None) -> type[Ray]:
        assert may_start.wait(60)
        log.append("up")
        return Ray

    monkeypatch.setitem(sys.modules, "ray", Ray)
    monkeypatch.setattr(cluster, "_connect", connect)
    with pytest.raises(ZeroDivisionError), cluster.started("1.2.3.4"):
        1 / 0  # noqa: B018
    assert log == []  # the block has ended and Ray is not up: nothing has waited for it
    may_start.set()
    with cluster.started("1.2.3.4"), cluster.started("1.2.3.4"):  # the inner block uses the Ray of the outer one
        assert cluster._current is not None
        cluster._current.wait()
        assert log == ["up", "down", "up"]
    assert log == ["up", "down", "up", "down"]


def test_problems_of_an_experiment_are_reported_in_one_line_each_while_ray_is_starting(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("nonsense: 1\n")
    command = [sys.executable, "-m", "simfl", "run", str(tmp_path / "wrong.yaml"), "--backend", "ray"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith("simfl: nonsense: unknown key")
    assert all(line.startswith("simfl: ") for line in lines)  # one for each problem
    assert done.stdout == ""


class FakeModule:
    """Stands for the module `ray` and notes how it is started."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def is_initialized(self) -> bool:
        """Return False."""
        return False

    def init(self, address: str, **settings: Any) -> None:
        """Note a start."""
        self.calls.append(address)

    def shutdown(self) -> None:
        """Note a shutdown."""
        self.calls.append("shutdown")


class FailingLauncher:
    """Stands for a launcher that cannot start Ray."""

    killed = False
    closed = False

    def address(self) -> str:
        """Fail."""
        raise ConnectionError("no such port")

    def close(self, wait: bool = True) -> None:
        """Note that it was closed."""
        self.closed = True


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeModule:
    """The module `ray`, faked; its constants are real, which a start on loopback changes."""
    importlib.import_module("ray._private.ray_constants")
    module = FakeModule()
    monkeypatch.setitem(sys.modules, "ray", module)
    return module


def test_ray_starts_in_the_usual_way_if_the_fast_start_fails(ray: FakeModule, caplog: Any) -> None:
    launcher: Any = FailingLauncher()
    assert cluster._connect(None, launcher) is ray
    assert ray.calls == ["shutdown", "local"]
    assert launcher.closed
    assert "no such port" in caplog.text


def test_environment_variable_turns_the_fast_start_off(ray: FakeModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faststart.PLAIN, "1")
    starts_in_the_usual_way(ray)


def test_untested_version_of_ray_starts_in_the_usual_way_and_is_logged_once(
    ray: FakeModule, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faststart, "TESTED_VERSIONS", frozenset({"0.0.0"}))
    monkeypatch.delenv(faststart.PLAIN, raising=False)
    with caplog.at_level(logging.WARNING):
        starts_in_the_usual_way(ray)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "not tested with Ray" in line and "usual way" in line] == lines
    assert len(lines) == 1


def test_ray_starts_in_the_usual_way_without_the_package(ray: FakeModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "faststart", None)
    starts_in_the_usual_way(ray)


def test_hook_of_ray_for_uncaught_errors_is_removed(ray: FakeModule, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = importlib.import_module("ray._private.worker")
    monkeypatch.setattr(sys, "excepthook", worker.custom_excepthook)
    cluster.connect(None)
    assert sys.excepthook is worker.normal_excepthook

    def own(*error: object) -> None: ...

    monkeypatch.setattr(sys, "excepthook", own)
    cluster.connect(None)
    assert sys.excepthook is own


@pytest.mark.slow
def test_script_shows_the_error_that_ends_it_while_ray_is_stopped() -> None:
    """Three times: with Ray's own hook, most of such scripts ended without a message."""
    code = (
        "from simfl.errors import ConfigError\nfrom simfl.runtime.ray import cluster\n"
        "with cluster.started(None):\n    cluster.connect(None)\n    raise ConfigError('the cause')"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 1
        assert done.stderr.endswith("ConfigError: the cause\n"), done.stderr


def starts_in_the_usual_way(ray: FakeModule) -> None:
    """Assert that `ray.init` starts Ray in this process, and only when it is needed."""
    with cluster.start_early("ray", None):
        assert cluster.running() is False
    with cluster.started(None):
        assert cluster.fork_address() is None
        assert cluster.connect(None) is ray
    assert ray.calls == ["local", "local", "shutdown"]  # twice, as the fake never reports that it is initialized


@pytest.mark.ray
@pytest.mark.slow
def test_run_on_ray_works_without_the_package(tmp_path: Path) -> None:
    """A copy of simfl from which the folder was deleted; weights are those of a run in one process."""
    copy = tmp_path / "source" / "simfl"
    shutil.copytree(Path(simfl.__file__).parent, copy, ignore=shutil.ignore_patterns("faststart", "__pycache__"))
    code = (
        "import sys; from pathlib import Path; import simfl; from fakes import experiment, run\n"
        "assert simfl.__file__.startswith(sys.argv[1]), simfl.__file__\n"
        "found = [run(experiment(rounds=1), Path(sys.argv[1]) / name, **given)['weights_sha256']\n"
        "         for name, given in {'inline': {}, 'ray': {'workers': 1}}.items()]\n"
        "print(len(set(found)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": f"{copy.parent}{os.pathsep}{TESTS}"},
    )  # fmt: skip
    assert done.stdout.split()[-1:] == ["1"], done.stderr


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("ray://127.0.0.1:1", "Connection refused"),
        ("ray://no-such-host.invalid", ""),
        ("x", "Invalid address format: x"),
    ],
)
def test_address_without_a_cluster_is_one_line(address: str, cause: str) -> None:
    """Runs in a separate process, where no other test's Ray is up; Ray alone takes a minute or more and many lines."""
    command = [sys.executable, "-c", CONNECT, address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.startswith(f"--address: no Ray cluster answers at {address!r}: ")
    assert cause in done.stdout
    assert done.stdout.count("\n") == 1


CONNECT = """
import sys
from simfl.errors import ConfigError, RunError
from simfl.runtime.ray import cluster
try:
    cluster.connect(sys.argv[1])
except ConfigError as error:
    print(error)
"""


OUT_OF_MEMORY = [
    """1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.7, ID: df0d) was \
3.13GB used / 23.54GB limit (0.133027)
OOM kill reason: Memory usage 3349725184B exceeded threshold of 505530208B
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/""",
    """Task was killed due to the node running low on memory.
Memory on the node (IP: 10.0.0.7, ID: df0d) where the task (actor ID: 1, name=A.f, pid=7, memory used=0.12GB) was \
running was 22.5GB / 23.5GB (0.957), which exceeds the memory usage threshold of 0.95. Ray killed this worker
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/""",
]


@pytest.mark.parametrize(
    ("text", "amounts"),
    list(zip(OUT_OF_MEMORY, ["3.13GB used / 23.54GB limit (0.133027)", "22.5GB / 23.5GB (0.957)"], strict=True)),
)
def test_cause_of_short_memory_is_its_amounts_and_no_advice_on_settings_of_ray(text: str, amounts: str) -> None:
    assert cluster.last_line(MemoryError(text)) == f"memory of node 10.0.0.7: {amounts}"


def test_more_workers_than_processors_are_refused() -> None:
    assert cluster.count_workers("CPU", 3.0, "auto") == 3
    assert cluster.count_workers("GPU", 0.0, "auto") == 1
    assert cluster.count_workers("CPU", 3.0, 2) == 2
    with pytest.raises(ConfigError, match=r"^--workers: requested 9 workers, but Ray has 3 CPUs$"):
        cluster.count_workers("CPU", 3.0, 9)


def test_full_folder_of_ray_is_one_line_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", "")
    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setattr(cluster, "running", lambda: False)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: usage._replace(free=1_000_000 if folder == str(tmp_path) else 0)
    )
    with pytest.raises(RunError, match=r"1\.0 MB are free, Ray needs 20 MB to start; free space, set TMPDIR"):
        cluster._begin(None)
