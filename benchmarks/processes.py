"""Memory and processor time of a process and its descendants, from /proc of Linux."""

from __future__ import annotations

import os
from pathlib import Path

PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """Return a process and its living descendants."""
    children: list[str] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():  # any thread may have started a child
            children += (thread / "children").read_text().split()
    except OSError:
        return []
    return [pid, *(descendant for child in children for descendant in family(int(child)))]


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants; shared pages count for each."""
    return sum(int(fields[1]) for process in family(pid) if (fields := _read(process, "statm"))) * PAGE


def cpu_seconds(pid: int) -> float:
    """Return the processor time so far of a process and its living descendants."""
    stats = [_read(process, "stat") for process in family(pid)]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats if fields) / TICKS


def _read(pid: int, name: str) -> list[str]:
    """Return the fields that follow the program name in a file of /proc/PID; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text().rpartition(")")[2].split()
    except OSError:
        return []
