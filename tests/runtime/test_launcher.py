"""Ray in a process of its own: it comes up, can be joined, and ends with whoever asked for it, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BEGIN = """
import json, os, signal, sys, time
from simfl.runtime.ray.faststart.launcher import RayLauncher

head = RayLauncher()
"""


def run_in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def in_time(true) -> bool:
    """Whether something becomes true within ten seconds."""
    until = time.monotonic() + 10
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return bool(true())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.ray
def test_a_ray_that_is_joined_has_this_machine_and_ends_with_its_head():
    code = """
address = head.address()
import ray
ray.init(address=address, log_to_driver=False, configure_logging=False)
print(ray.cluster_resources()["CPU"], os.path.exists(head.folder))
ray.shutdown()
head.close()
head.close()
print(os.path.exists(head.folder), head._process.returncode)
"""
    done = run_in_a_process(code)
    from simfl.runtime import machine as limits

    assert done.stdout == f"{limits.cpus():.1f} True\nFalse 0\n", done.stderr
    assert done.stderr == ""


@pytest.mark.ray
def test_nothing_of_it_stays_where_its_driver_was_killed():
    code = """
head.address()
print(head.folder, head._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    folder, pid = run_in_a_process(code).stdout.split()
    assert in_time(lambda: not os.path.exists(folder))
    assert in_time(lambda: not alive(int(pid)))


def test_a_head_that_nobody_waits_for_ends_by_itself():
    done = run_in_a_process("head.close(wait=False)\nprint(head.folder, head._process.pid)")
    folder, pid = done.stdout.split()
    assert done.stderr == ""
    assert in_time(lambda: not os.path.exists(folder))
    assert in_time(lambda: not alive(int(pid)))


def test_a_head_that_cannot_start_says_why():
    code = """
from simfl.runtime.ray.faststart.launcher import PIPE, Popen
head.close()
failing = "import sys; sys.path[:] = sys.argv[2:]; from simfl.engine import head; head._start = None; head.main('/x/y')"
head._process = Popen([sys.executable, "-c", failing, "", *sys.path], stdin=PIPE, stdout=PIPE, text=True)
try:
    head.address()
except ConnectionError as error:
    print(error)
head.close()
head._process = Popen([sys.executable, "-c", ""], stdin=PIPE, stdout=PIPE, text=True)
try:
    head.address()
except ConnectionError as error:
    print(error)
head.close()
"""
    done = run_in_a_process(code)
    assert done.stdout == "TypeError: 'NoneType' object is not callable\nthe process that starts it has ended\n"
