"""Workers of a Ray that a run starts are forks of one process, as good as those that Ray starts itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
ASK = """
import json, os, signal, socket, sys, time
from pathlib import Path
from fakes import experiment
from simfl.runtime.ray.faststart.fork_server import FIRST, ForkServer, possible
from simfl.run_context import RunContext

folder = Path(sys.argv[1])
assert possible(1) and not possible(2)
setting, address = RunContext(experiment(), folder), str(folder / "nursery")
setting.module
nursery = ForkServer(setting, address)

def ask(code, environment=FIRST):
    program = folder / "program.py"
    program.write_text(code)
    line = socket.socket(socket.AF_UNIX)
    line.connect(address)
    body = json.dumps([[str(program), "word"], dict(environment), str(folder)]).encode()
    socket.send_fds(line, [len(body).to_bytes(8, "big")], [0, 1, 2])
    line.sendall(body)
    return line
"""


def process(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script's end; a process of its own, since one with threads has no nursery."""
    return subprocess.run(
        [sys.executable, "-c", ASK + code, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"},
    )


def run_in_a_process(code: str, folder: Path) -> str:
    """What a script prints that ends well."""
    done = process(code, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_who_is_born_has_the_model_the_words_and_the_place_of_who_asked(tmp_path):
    code = """
line = ask("import sys, os; from simfl.runtime.ray.faststart.fork_server import inherited;"
           "print(sys.argv[1], os.getcwd() == sys.argv[0].rpartition('/')[0], 'ray' in sys.modules,"
           " 'module' in vars(inherited[0]), os.environ['RAY_JOB_ID'], flush=True); sys.exit(3)")
assert line.recv(1) == b"!"
print(line.recv(1), line.recv(1))
nursery.close()
"""
    assert run_in_a_process(code, tmp_path).split("\n") == ["word True True True 01000000", "b'\\x03' b''", ""]


def test_who_is_born_ends_with_who_asked_and_with_the_nursery(tmp_path):
    code = """
def pid_of(line):
    assert line.recv(1) == b"!"
    while not (folder / "pid").exists() or not (folder / "pid").read_text():
        time.sleep(0.02)
    return int((folder / "pid").read_text()), (folder / "pid").unlink()

def ended(pid):
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False

sleeper = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(100)"
first, _ = pid_of(line := ask(sleeper))
line.close()
print(ended(first))
second, _ = pid_of(line := ask(sleeper))
nursery.close()
print(line.recv(1), ended(second))
"""
    assert run_in_a_process(code, tmp_path) == "True\nb'' True\n"


def test_nothing_of_it_stays_where_its_driver_was_killed(tmp_path):
    code = """
assert ask("import time; time.sleep(100)").recv(1) == b"!"
print(nursery.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    pid, until = int(process(code, tmp_path).stdout), time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")


def test_a_worker_of_another_job_is_not_born_here(tmp_path):
    code = """
print(ask("print('born')", {"RAY_JOB_ID": "02000000"}).recv(1))
nursery.close()
"""
    assert run_in_a_process(code, tmp_path) == "b''\n"


def test_a_nursery_that_still_imports_is_not_waited_for(tmp_path):
    (tmp_path / "ray.py").write_text("import time; time.sleep(90)")
    code = """
nursery.close()
os.unlink(address)
sys.path.insert(0, str(folder))
nursery = ForkServer(setting, address)
began = time.monotonic()
nursery.close()
print(time.monotonic() - began < 45)
"""
    assert run_in_a_process(code, tmp_path) == "True\n"


def test_without_a_nursery_a_worker_starts_as_ray_starts_it(tmp_path):
    newborn = HERE.parent / "simfl" / "engine" / "newborn.py"
    done = subprocess.run(
        [sys.executable, str(newborn), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SIMFL_NURSERY": str(tmp_path / "nobody")},
    )
    assert done.returncode == 0
    assert "usage: default_worker.py" in done.stdout


@pytest.mark.ray
def test_a_run_whose_workers_were_born_is_bit_equal_to_one_in_this_process(tmp_path):
    """The line that newborns ask on is in Ray's environment, and no longer in this process's.

    Once Ray was shut down in a process none can be born of it: a second run's workers start as Ray starts them.
    """
    code = """
nursery.close()
from fakes import run
modes = {"inline": ("inline", {}), "born": ("ray", {"workers": 2}), "started": ("ray", {"workers": 1})}
found, before = [], []
for mode, (backend, given) in modes.items():
    before.append(possible(1))
    found.append(run(experiment(rounds=2), folder / mode, backend=backend, **given)["weights_sha256"])
print(len(set(found)), before, "SIMFL_NURSERY" in os.environ)
"""
    assert run_in_a_process(code, tmp_path) == "1 [True, True, False] False\n"
