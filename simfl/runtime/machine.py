"""CPU and memory limits of this process: affinity, control groups and Slurm."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUPS, MEMBERSHIP, MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")
UNLIMITED = 1 << 60  # bytes; control groups of version 1 mean "no limit" by a number above this


@dataclass(frozen=True)
class Cgroup:
    """Limits of this process's control groups: the tightest of the group and its parents, or None without a limit."""

    cpus: float | None
    memory: int | None  # bytes
    used: int | None  # bytes in use by the group with the tightest memory limit, without caches that can be dropped


def cpus() -> int:
    """Return the number of usable CPUs, at least 1."""
    return max(1, math.floor(min(cpu_limits().values())))


def cpu_limits() -> dict[str, float]:
    """Return every known limit on the number of CPUs, by its source."""
    limits: dict[str, float] = {"machine": float(os.cpu_count() or 1)}
    if hasattr(os, "sched_getaffinity"):
        limits["affinity"] = float(len(os.sched_getaffinity(0)))
    quota = cgroup().cpus
    if quota is not None:
        limits["control group"] = quota
    granted = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if granted.isdecimal() and int(granted) > 0:
        limits["Slurm"] = float(granted)
    return limits


def memory() -> tuple[int, int]:
    """Return free and total bytes of the machine or of the control group, whichever is tighter."""
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
    free, total = (int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    group = cgroup()
    if group.memory is None or group.memory >= total:
        return free, total
    return min(free, max(0, group.memory - (group.used or 0))), group.memory


def cgroup(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Cgroup:
    """Return the limits of this process's control groups, of version 1 or 2."""
    quotas: list[float] = []
    memories: list[tuple[int, int]] = []
    for folder in _folders(root, membership):
        quotas += _quota(folder)
        memories += _memory(folder)
    limit, used = min(memories, default=(None, None), key=lambda pair: pair[0] or 0)
    return Cgroup(min(quotas, default=None), limit, used)


def _folders(root: Path, membership: Path) -> Iterator[Path]:
    """Yield every folder with limits of this process, the parents' folders included.

    In a container the path may be the host's and not exist; the root folders then hold the container's own limits.
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
            return [(int(limit), max(0, int(used or 0) - _cached(folder)))]
    return []


def _cached(folder: Path) -> int:
    """Return the bytes of cached files, which the kernel drops when memory is short."""
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
