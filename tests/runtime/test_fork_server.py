"""Fork server: workers forked from one process, equivalent to those that Ray starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simfl.runtime.ray import faststart

TESTS = Path(__file__).parents[1]
START = """
import json, os, signal, socket, sys, time
from pathlib import Path
from fakes import experiment
from simfl.runtime.ray.faststart.fork_server import FIRST_JOB, ForkServer, can_fork
from simfl.run_context import RunContext

folder = Path(sys.argv[1])
assert can_fork(1) and not can_fork(2)
context, address = RunContext(experiment(), folder), str(folder / "fork-server")
context.module
server = ForkServer(context, address)

def ask(code, environment=FIRST_JOB):
    program = folder / "program.py"
    program.write_text(code)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    body = json.dumps([[str(program), "word"], dict(environment), str(folder)]).encode()
    socket.send_fds(connection, [len(body).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(body)
    return connection
"""


def process(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, since a process with threads cannot be forked."""
    path = os.pathsep.join(filter(None, [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-c", START + code, str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": path},
    )


def run_in_a_process(code: str, folder: Path) -> str:
    """Return what a script prints that ends well."""
    done = process(code, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fork_has_the_model_and_the_command_line_and_folder_of_its_request(tmp_path: Path) -> None:
    code = """
connection = ask("import sys, os; from simfl.runtime.ray.actor import inherited;"
                 "print(sys.argv[1], os.getcwd() == sys.argv[0].rpartition('/')[0], 'ray' in sys.modules,"
                 " 'module' in vars(inherited[0]), os.environ['RAY_JOB_ID'], flush=True); sys.exit(3)")
assert connection.recv(1) == b"!"
print(connection.recv(1), connection.recv(1))
server.close()
"""
    assert run_in_a_process(code, tmp_path).split("\n") == ["word True True True 01000000", "b'\\x03' b''", ""]


@pytest.mark.slow
def test_fork_ends_with_the_program_that_asked_and_with_the_server(tmp_path: Path) -> None:
    code = """
def pid_of(connection):
    assert connection.recv(1) == b"!"
    while not (folder / "pid").exists() or not (folder / "pid").read_text():
        time.sleep(0.02)
    return int((folder / "pid").read_text()), (folder / "pid").unlink()

def ended(pid):
    for _ in range(3000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False

sleeper = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(1000)"
first, _ = pid_of(connection := ask(sleeper))
connection.close()
print(ended(first))
second, _ = pid_of(connection := ask(sleeper))
server.close()
print(connection.recv(1), ended(second))
"""
    assert run_in_a_process(code, tmp_path) == "True\nb'' True\n"


def test_server_ends_when_its_driver_is_killed(tmp_path: Path) -> None:
    code = """
assert ask("import time; time.sleep(1000)").recv(1) == b"!"
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    pid, deadline = int(process(code, tmp_path).stdout), time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.slow
def test_worker_of_another_job_is_not_forked(tmp_path: Path) -> None:
    code = """
print(ask("print('forked')", {"RAY_JOB_ID": "02000000"}).recv(1))
server.close()
"""
    assert run_in_a_process(code, tmp_path) == "b''\n"


@pytest.mark.slow
def test_closing_does_not_wait_for_a_server_that_still_imports(tmp_path: Path) -> None:
    """The import of a fake ray never ends, so `close` returns only because it kills the server."""
    (tmp_path / "ray.py").write_text("import time; time.sleep(100_000)")
    code = """
server.close()
os.unlink(address)
sys.path.insert(0, str(folder))
server = ForkServer(context, address)
server.close()
print("closed")
"""
    assert run_in_a_process(code, tmp_path) == "closed\n"


def test_worker_starts_in_the_usual_way_without_a_server(tmp_path: Path) -> None:
    program = Path(faststart.__file__).with_name("forked_worker.py")
    done = subprocess.run(
        [sys.executable, str(program), "--help"],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "SIMFL_FORK_SERVER": str(tmp_path / "nobody")},
    )
    assert done.returncode == 0
    assert "usage: default_worker.py" in done.stdout


@pytest.mark.ray
@pytest.mark.slow
def test_run_on_forked_workers_is_bit_identical_to_an_inline_run(tmp_path: Path) -> None:
    """The address of the server is in the environment of Ray, and not in that of this process.

    After Ray was shut down in a process, it cannot be forked: a second run's workers start in the usual way.
    """
    code = """
server.close()
from fakes import run
modes = {"inline": ("inline", {}), "forked": ("ray", {"workers": 2}), "started": ("ray", {"workers": 1})}
found, before = [], []
for mode, (backend, given) in modes.items():
    before.append(can_fork(1))
    found.append(run(experiment(rounds=2), folder / mode, backend=backend, **given)["weights_sha256"])
print(len(set(found)), before, "SIMFL_FORK_SERVER" in os.environ)
"""
    assert run_in_a_process(code, tmp_path) == "1 [True, True, False] False\n"
