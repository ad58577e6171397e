"""The parent of a run: it passes signals and exit codes on, and reports an end that the run could not report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simfl.commands.supervisor import is_supervised

PROGRAM = """
import os, signal, sys, time
from simfl.commands import supervisor

def command():
    {body}

supervisor.ORPHAN_SECONDS = 0.1
sys.exit(supervisor.supervised(command))
"""


def start(body: str) -> subprocess.Popen[str]:
    """Run a command under a parent."""
    program = [sys.executable, "-c", PROGRAM.format(body=body)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and what was printed to standard error."""
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_exit_code_of_the_command_is_passed_on(code: int) -> None:
    assert end(start(f"return {code}")) == (code, "")


def test_traceback_is_the_last_word() -> None:
    code, errors = end(start("raise ZeroDivisionError"))
    assert (code, errors.splitlines()[-1]) == (1, "ZeroDivisionError")


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed (SIGKILL, as the system does when memory is short)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
        ("os._exit(3)", "waited in a call to a Ray that is lost, and was ended"),
        ("os._exit(1)", "was ended with exit code 1, as Ray does when its raylet or its GCS ends"),
        ("os.fork() and os._exit(1); time.sleep(1); os._exit(0)", "was ended with exit code 1"),
    ],
    ids=["SIGKILL", "SIGSEGV", "stuck", "exit", "exit with a fork left"],
)
def test_end_without_a_word_is_reported_in_one_line(body: str, cause: str) -> None:
    code, errors = end(start(body))
    assert (code, errors.count("\n")) == (3, 1), errors
    assert errors.startswith(f"simfl: the process of the run {cause}")
    assert errors.endswith("resume it with the same command and --resume\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_before_the_run_handles_it_is_an_interruption(number: signal.Signals) -> None:
    process = start("print('up', flush=True); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    code, errors = end(process)
    assert (code, errors.count("\n")) == (130, 1)
    assert errors.startswith(f"simfl: interrupted by {number.name}; what its last checkpoint holds is saved")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(number: signal.Signals) -> None:
    body = f"got = []; signal.signal({int(number)}, lambda *_: got.append(os.write(2, b'ended')))"
    process = start(f"{body}; print('up', flush=True)\n    while not got: time.sleep(0.01)\n    return 130")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert end(process) == (130, "ended")


def test_command_is_killed_with_its_parent() -> None:
    process = start("print(os.getpid(), flush=True); time.sleep(600)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    deadline = time.monotonic() + 10
    state = Path(f"/proc/{child}/stat")
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the command is still running"
        time.sleep(0.01)
    process.communicate()


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_during_the_imports_ends_a_command_with_a_line(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    """A stand-in for a library takes long to be imported."""
    (tmp_path / "click.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    process = start_simfl(tmp_path, command)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    code, errors = end(process)
    assert (code, errors.count("\n")) == (130, 1)
    assert errors.startswith(f"simfl: interrupted by {number.name}")


@pytest.mark.parametrize("command", ["run", "plan"])
def test_signal_before_a_command_has_its_parent_or_handler_is_held(tmp_path: Path, command: str) -> None:
    """A stand-in for the first module that is imported after the first line."""
    (tmp_path / "ctypes.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nCDLL = print\n")
    code, errors = end(start_simfl(tmp_path, command))
    assert (code, errors.count("\n")) == (130, 1), errors
    assert errors.startswith("simfl: interrupted by SIGTERM")


def test_nothing_is_imported_before_signals_are_held() -> None:
    program = "import sys; from simfl import __main__; print(*[name for name in sys.modules if 'simfl.' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["simfl.__main__"]


def start_simfl(folder: Path, command: str) -> subprocess.Popen[str]:
    """Run a command of simfl with the modules of a folder before all others."""
    return subprocess.Popen(
        [sys.executable, "-m", "simfl", command, "x.yaml"], env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_processes_that_the_run_leaves_are_ended() -> None:
    """An orphan that ignores signals, as an agent of Ray that is still importing."""
    body = """orphan = os.fork()
    if orphan == 0:
        os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)
    print(orphan, flush=True)
    return 3"""
    process = start(body)
    assert process.stdout is not None
    orphan = int(process.stdout.readline())
    assert end(process)[0] == 3
    assert not Path(f"/proc/{orphan}").exists()


def test_run_and_sweep_alone_have_a_parent() -> None:
    assert is_supervised(["run", "x.yaml"]) is is_supervised(["sweep", "x"]) is (sys.gettrace() is None)
    assert not is_supervised(["plan", "run"])
    assert not is_supervised([])
