"""Processes below a process: found at every depth, adopted when their parent ends, and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from simfl.runtime.descendants import descendants

# A process with a child and a grandchild, both of which ignore SIGTERM, whose pids it prints before the child ends.
LEAVES_AN_ORPHAN = """
import os, signal, sys, time
from simfl.runtime.descendants import adopt_orphans, descendants, end_descendants

adopt_orphans()
reading, writing = os.pipe()
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.write(writing, f"{os.getpid()}".encode())
        time.sleep({lasts})
        os._exit(0)
    os._exit(0)
orphan = int(os.read(reading, 20))
os.wait()
print(orphan, descendants(os.getpid()) == [orphan], flush=True)
began = time.monotonic()
end_descendants({seconds})
print(time.monotonic() - began, os.path.exists(f"/proc/{orphan}"))
"""


def run(lasts: float, seconds: float) -> tuple[bool, float, bool]:
    """Return whether the orphan was adopted, the seconds until the end of descendants, and whether it is left."""
    program = LEAVES_AN_ORPHAN.replace("{lasts}", str(lasts)).replace("{seconds}", str(seconds))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    _, adopted, taken, left = done.stdout.split()
    return adopted == "True", float(taken), left == "True"


def test_orphan_is_adopted_and_killed_after_the_time_that_it_has() -> None:
    adopted, taken, left = run(lasts=600, seconds=0.2)
    assert (adopted, left) == (True, False)
    assert taken >= 0.2


def test_orphan_that_ends_is_waited_for_and_not_killed() -> None:
    adopted, taken, left = run(lasts=0.3, seconds=30)
    assert (adopted, left) == (True, False)
    assert taken < 15


def test_descendants_are_found_at_every_depth_and_without_the_process_itself() -> None:
    command = "sleep 600 & (sleep 601 & wait) & wait"
    with subprocess.Popen(["bash", "-c", command], start_new_session=True) as shell:
        end = time.monotonic() + 20
        while len(found := descendants(shell.pid)) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        os.killpg(shell.pid, 9)
    assert len(found) == 3
    assert shell.pid not in found
    assert descendants(shell.pid) == []
