"""CPU and memory limits: control groups of both versions, affinity, Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simfl.runtime import machine
from simfl.runtime.machine import Cgroup, cgroup


def group(root: Path, member: str, files: dict[str, str]) -> Cgroup:
    """Write control groups as files, and return the limits of a process in them."""
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (root / "member").write_text(member + "\n")
    return cgroup(root / "cgroup", root / "member")


def test_version_2_uses_the_tightest_limit_of_the_group_and_its_parents(tmp_path: Path) -> None:
    files = {
        "slurm/job/cpu.max": "max 100000",
        "slurm/cpu.max": "250000 100000",
        "slurm/job/memory.max": str(8 << 30),
        "slurm/job/memory.current": str(3 << 30),
        "slurm/job/memory.stat": f"anon 1\ninactive_file {1 << 30}\n",
        "slurm/memory.max": "max",
    }
    assert group(tmp_path, "0::/slurm/job", files) == Cgroup(2.5, 8 << 30, 2 << 30)


def test_version_1_has_one_tree_per_controller(tmp_path: Path) -> None:
    files = {
        "cpu/docker/x/cpu.cfs_quota_us": "150000",
        "cpu/docker/x/cpu.cfs_period_us": "100000",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/docker/x/memory.limit_in_bytes": str(1 << 30),
        "memory/docker/x/memory.usage_in_bytes": str(1 << 29),
        "memory/memory.limit_in_bytes": "9223372036854771712",
    }
    assert group(tmp_path, "3:cpu:/docker/x\n2:memory:/docker/x", files) == Cgroup(1.5, 1 << 30, 1 << 29)


def test_in_a_container_the_limits_are_in_the_root_folder(tmp_path: Path) -> None:
    assert group(tmp_path, "0::/host/path/of/x", {"cpu.max": "50000 100000"}) == Cgroup(0.5, None, None)


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroup(tmp_path, tmp_path / "none") == Cgroup(None, None, None)


@pytest.mark.parametrize(
    ("quota", "slurm", "expected"),
    [(None, "", 8), (2.5, "", 2), (0.5, "", 1), (None, "3", 3), (2.0, "1", 1), (None, "x", 8)],
)
def test_number_of_cpus_is_the_tightest_limit(
    quota: float | None, slurm: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(machine, "cgroup", lambda: Cgroup(quota, None, None))
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", slurm)
    assert machine.cpus() == expected


def test_memory_limit_is_that_of_the_control_group_if_tighter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:  600 kB\n")
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "cgroup", lambda: Cgroup(None, None, None))
    assert machine.memory() == (600 * 1024, 1000 * 1024)
    monkeypatch.setattr(machine, "cgroup", lambda: Cgroup(None, 500 * 1024, 400 * 1024))
    assert machine.memory() == (100 * 1024, 500 * 1024)
