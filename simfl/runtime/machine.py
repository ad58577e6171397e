"""What this process may use of its machine: what affinity, control groups and Slurm leave of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUPS, MEMBERSHIP, MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")
UNLIMITED = 1 << 60  # bytes; control groups of version 1 say "no limit" by a number above this


@dataclass(frozen=True)
class Cgroup:
    """The control groups this process is in: each limit is the tightest on the way up; None where there is none."""

    cpus: float | None
    memory: int | None  # bytes
    used: int | None  # bytes of the group that has the tightest memory limit, what could be dropped left out


def cpus() -> int:
    """CPUs to work with, at least 1."""
    return max(1, math.floor(min(cpu_limits().values())))


def cpu_limits() -> dict[str, float]:
    """Everything that says how many CPUs there are, by who says it."""
    found: dict[str, float] = {"machine": float(os.cpu_count() or 1)}
    if hasattr(os, "sched_getaffinity"):
        found["affinity"] = float(len(os.sched_getaffinity(0)))
    quota = cgroup().cpus
    if quota is not None:
        found["control group"] = quota
    granted = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if granted.isdecimal() and int(granted) > 0:
        found["Slurm"] = float(granted)
    return found


def memory() -> tuple[int, int]:
    """Bytes free for use, and bytes in all, of the machine or the control group, whichever is tighter."""
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
    free, total = (int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    group = cgroup()
    if group.memory is None or group.memory >= total:
        return free, total
    return min(free, max(0, group.memory - (group.used or 0))), group.memory


def cgroup(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Cgroup:
    """The limits of this process's control groups, of version 1 or 2."""
    quotas: list[float] = []
    memories: list[tuple[int, int]] = []
    for folder in _folders(root, membership):
        quotas += _quota(folder)
        memories += _memory(folder)
    limit, used = min(memories, default=(None, None), key=lambda pair: pair[0] or 0)
    return Cgroup(min(quotas, default=None), limit, used)


def _folders(root: Path, membership: Path) -> Iterator[Path]:
    """Every folder that holds limits for this process, those of the parents too.

    In a container the path may be the host's and not be there; the roots then hold the container's own limits.
    """
    lines = membership.read_text().splitlines() if membership.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top = root / controllers if controllers else root
        folder = top / path.lstrip("/")
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def _quota(folder: Path) -> list[float]:
    text = _read(folder / "cpu.max")
    if text and not text.startswith("max"):
        quota, period = text.split()
        return [int(quota) / int(period)]
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return [int(quota) / int(period)] if quota and period and int(quota) > 0 else []


def _memory(folder: Path) -> list[tuple[int, int]]:
    names = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}
    for limit_name, used_name in names.items():
        limit, used = _read(folder / limit_name), _read(folder / used_name)
        if limit and limit != "max" and int(limit) < UNLIMITED:
            return [(int(limit), max(0, int(used or 0) - _droppable(folder)))]
    return []


def _droppable(folder: Path) -> int:
    """Bytes of files that are cached and would be dropped."""
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
