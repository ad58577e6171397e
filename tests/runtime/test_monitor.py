"""A Ray that ends or freezes during a run: it is found within seconds, and ends the run with one line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes import experiment, run, traces
from nodes import OWN_SESSION, SlowScaffold

from simfl import config
from simfl.errors import ClusterError
from simfl.runtime.ray import monitor
from simfl.runtime.ray.monitor import GREETING, RayMonitor, Server

TESTS = Path(__file__).parents[1]


@contextmanager
def server(answer: bytes | None = b"settings", **settings: float) -> Iterator[Server]:
    """Serve one port that answers a greeting, or with None accepts connections and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    if answer is None:
                        connection.recv(1 << 10), connection.recv(1)
                    elif connection.recv(len(GREETING)) == GREETING:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Server("Ray's GCS", "127.0.0.1", listener.getsockname()[1], **settings)
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_server_that_answers_is_alive() -> None:
    with server() as alive:
        assert alive.problem() == ""
        assert alive.problem(patient=False) == ""


def test_closed_port_is_the_end_after_a_while_and_at_once_if_an_error_is_to_be_explained() -> None:
    with server(closed_seconds=0.2) as ended:
        pass
    assert ended.problem() == ""
    assert ended.problem(patient=False).endswith("has ended")
    time.sleep(0.2)
    assert ended.problem() == f"Ray's GCS at 127.0.0.1:{ended.port} has ended"


def test_server_that_closes_without_an_answer_has_not_answered() -> None:
    with server(b"", closed_seconds=0.0) as broken:
        assert broken.problem().endswith("has ended")


def test_server_that_accepts_and_is_silent_is_frozen() -> None:
    with server(None, frozen_seconds=0.1) as frozen:
        assert frozen.problem() == f"Ray's GCS at 127.0.0.1:{frozen.port} has not answered for 0.1 s"


def test_monitor_calls_once_when_a_server_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "INTERVAL", 0.01)
    calls, called = list[int](), threading.Event()

    def lost() -> None:
        calls.append(1)
        called.set()

    with server() as alive, server(closed_seconds=0.05) as ending:
        watching = RayMonitor([alive, ending], lost)
        time.sleep(0.05)
        assert calls == []
        watching.raise_if_lost()
    assert called.wait(5)
    time.sleep(0.1)  # it would call again, ten times
    watching.close()
    watching._thread.join(5)
    assert calls == [1]
    with pytest.raises(ClusterError, match=r"Ray is lost: Ray's GCS at 127.0.0.1:\d+ has ended; .* --resume"):
        watching.raise_if_lost()


def test_closed_monitor_calls_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "INTERVAL", 0.01)
    with server(closed_seconds=0.0) as ending:
        watching = RayMonitor([ending], lambda: pytest.fail("the monitor was closed"))
        watching.close()
    watching._thread.join(5)


CASE = experiment(SlowScaffold(seconds=0.05), rounds=40, watchdog_seconds=15.0)
FAULTS = {
    "raylet killed": ("raylet/raylet", signal.SIGKILL),
    "raylet frozen": ("raylet/raylet", signal.SIGSTOP),
    "GCS killed": ("gcs_server", signal.SIGKILL),
    "GCS frozen": ("gcs_server", signal.SIGSTOP),
    "launcher killed": ("launcher.main", signal.SIGKILL),
}


def session_of(process: int) -> dict[int, str]:
    """Return the living processes of a session with their command lines, without the first."""
    rows = subprocess.run(["ps", "-wweo", "pid,sid,stat,args"], capture_output=True, text=True, check=True).stdout
    split = [row.split(None, 3) for row in rows.splitlines()[1:]]
    return {int(p): a for p, s, stat, a in split if int(s) == process != int(p) and not stat.startswith("Z")}


def wait_for(what: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "too slow"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    run(CASE, folder)
    return traces(folder)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_run_whose_ray_is_lost_ends_with_one_line_and_is_resumed_bit_identically(
    fault: str, whole: dict[str, str], tmp_path: Path
) -> None:
    file, out, (pattern, number) = tmp_path / "e.yaml", tmp_path / "run", FAULTS[fault]
    file.write_text(config.dump(CASE))
    words = [sys.executable, "-m", "simfl", "run", str(file), "--out", str(out), "--workers", "2"]
    environment = {**os.environ, **OWN_SESSION, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(
        words, cwd=TESTS, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        log = out / "log.jsonl"
        wait_for(lambda: process.poll() is not None or (log.exists() and log.read_text().count('"event": "round"') > 2))
        assert process.poll() is None, process.communicate()[0]
        victim = next((pid for pid, words in session_of(process.pid).items() if pattern in words), 0)
        assert victim, session_of(process.pid)
        os.kill(victim, number)
        began = time.monotonic()
        output, _ = process.communicate(timeout=60)
        assert time.monotonic() - began < 15 + 10, output
        assert process.returncode == 3, output
        assert output.count("\nsimfl: ") == 1, output
        assert "--resume" in output.splitlines()[-1]
        assert "Traceback" not in output
        time.sleep(2)
        assert session_of(process.pid) == {}
    finally:
        for pid in session_of(process.pid):
            os.kill(pid, signal.SIGKILL)
    subprocess.run([*words, "--resume"], cwd=TESTS, env=environment, check=True, capture_output=True, timeout=240)
    assert traces(out) == whole


STUCK_COMMAND = """
import ctypes, sys
from simfl.commands.supervisor import supervised
from simfl.runtime.ray.monitor import RayMonitor, Server

def command():
    lost = Server("Ray's GCS", "127.0.0.1", 1, closed_seconds=0.1, frozen_seconds=0.2)
    RayMonitor([lost], lambda: None)
    return ctypes.CDLL(None).sleep(50)

sys.exit(supervised(command))
"""


def test_a_driver_that_is_stuck_in_a_call_of_a_lost_ray_is_ended_and_reported_by_its_parent() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK_COMMAND], capture_output=True, text=True, timeout=40)
    assert ended.returncode == monitor.LOST
    assert len(ended.stderr.splitlines()) == 1
    assert "waited in a call to a Ray that is lost" in ended.stderr
    assert "--resume" in ended.stderr


def test_a_process_without_a_parent_to_report_it_is_never_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(monitor.SUPERVISED, raising=False)
    monkeypatch.setattr(monitor, "INTERVAL", 0.01)
    lost = threading.Event()
    watching = RayMonitor([Server("Ray's GCS", "127.0.0.1", 1, closed_seconds=0, frozen_seconds=0.01)], lost.set)
    assert lost.wait(10)
    watching._thread.join(10)
    assert not watching._thread.is_alive()
