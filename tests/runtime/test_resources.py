"""Resource leaks: memory, threads, files, processes, shared memory; and two runs on one machine."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from fakes import experiment, run, traces

from simfl import config

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what Linux shows in /proc")


def resident() -> int:
    """Return the bytes of resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def children() -> set[int]:
    """Return the living descendants of this process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if state != "Z":
            parents[int(path.parent.name)] = int(parent)
    found: set[int] = set()
    while new := {pid for pid, parent in parents.items() if parent in {os.getpid(), *found}} - found:
        found |= new
    return found


def targets_of_files() -> list[str]:
    """Return the targets of this process's open files."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that lists the folder
            found.append(os.readlink(path))
    return found


def held() -> dict[str, int]:
    """Count the resources that this process holds."""
    targets = targets_of_files()
    sockets = [target for target in targets if target.startswith("socket:")]
    shared = [path for path in Path("/dev/shm").glob("*") if path.stat().st_uid == os.getuid()]
    return {
        "threads": threading.active_count(),
        "files": len(targets) - len(sockets),
        "sockets": len(sockets),
        "processes": len(children()),
        "shared memory": sum(path.stat().st_size for path in shared),
    }


def settle(most: dict[str, int]) -> dict[str, int]:
    """Return what is held as soon as it is at most this, or after a minute."""
    deadline = time.monotonic() + 60
    while any(held()[name] > count for name, count in most.items()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return held()


@pytest.mark.slow
def test_inline_runs_leak_nothing(tmp_path):
    for number in range(4):
        run(experiment(rounds=1), tmp_path / f"warm{number}")
    before, memory = held(), resident()
    for number in range(20):
        run(experiment(rounds=1), tmp_path / str(number))
    gc.collect()
    assert all(
        count <= before[name] for name, count in settle(before).items()
    )  # fewer, if an earlier test released some late
    assert resident() - memory < 20 * 2**20


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_twenty_starts_of_ray_leak_nothing(tmp_path):
    """Runs in a process of its own, where Ray starts and stops each time.

    Ray leaks two or three of its own sockets per start; it does so with a bare actor too.
    """
    code = (
        "import sys, gc; from pathlib import Path; from fakes import experiment, run\n"
        "from test_resources import held, resident, settle\n"
        "def pool(n): run(experiment(rounds=1), Path(sys.argv[1]) / str(n), workers=1)\n"
        "none = held()\n"
        "for n in range(3): pool(n)\n"
        "gc.collect(); first = settle({'processes': none['processes']}), resident()\n"
        "for n in range(3, 23): pool(n)\n"
        "gc.collect(); last = settle(first[0]), resident()\n"
        "import json; print(json.dumps([none, *first, *last]))"
    )
    here = Path(__file__).parent
    paths = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}  # of this file and of `fakes`
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=here.parent, env=paths, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    none, first, resident_first, last, resident_last = json.loads(ended.stdout.splitlines()[-1])
    assert last["processes"] == none["processes"]
    for name in ("threads", "files"):
        assert last[name] <= first[name] + 2, name
    assert last["sockets"] <= first["sockets"] + 3 * 20
    assert last["shared memory"] <= first["shared memory"]
    assert resident_last - resident_first < 40 * 2**20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_runs_share_a_machine(tmp_path):
    """Two simultaneous runs, each with a Ray of its own, give the results of a run alone."""
    case = experiment("scaffold", rounds=4)
    (tmp_path / "experiment.yaml").write_text(config.dump(case))
    words = [sys.executable, "-m", "simfl", "run", str(tmp_path / "experiment.yaml"), "--workers", "2", "--out"]
    both = [
        subprocess.Popen(
            [*words, str(tmp_path / name)], cwd=Path(__file__).parents[1], stderr=subprocess.PIPE, text=True
        )
        for name in ("a", "b")
    ]
    for process in both:
        _, errors = process.communicate(timeout=800)
        assert process.returncode == 0, errors
    run(case, tmp_path / "alone")
    assert traces(tmp_path / "a") == traces(tmp_path / "b") == traces(tmp_path / "alone")
