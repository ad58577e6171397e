"""What a process and all its descendants use, from Linux's /proc."""

from __future__ import annotations

import os
from pathlib import Path

PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and its living descendants."""
    children: list[str] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():  # whichever started them
            children += (thread / "children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in family(int(child)))]


def resident_bytes(pid: int) -> int:
    """Resident memory of the family; pages that several share count for each."""
    return sum(int(fields[1]) for member in family(pid) if (fields := _read(member, "statm"))) * PAGE


def cpu_seconds(pid: int) -> float:
    """Processor time of the family so far, of those that live."""
    stats = [_read(member, "stat") for member in family(pid)]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats if fields) / TICKS


def _read(pid: int, name: str) -> list[str]:
    """The fields of a file in the process's folder, after its name in brackets; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text().rpartition(")")[2].split()
    except OSError:
        return []
