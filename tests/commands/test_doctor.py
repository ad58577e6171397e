"""`simfl doctor` finds problems, grades them and suggests fixes."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections import namedtuple
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from simfl.cli import main
from simfl.commands import doctor, machine
from simfl.commands.machine import OK, PROBLEM, WARNING, MachineFinding
from simfl.runtime import machine as limits

Usage = namedtuple("Usage", "total used free")
GB = 10**9


def by_name(findings: Iterable[MachineFinding]) -> dict[str, MachineFinding]:
    return {finding.item: finding for finding in findings}


def graded(finding: MachineFinding, grade: str, fix: str) -> bool:
    return finding.grade == grade and fix in finding.fix


def test_doctor_finds_no_problem_on_a_healthy_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-ray", "--out", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("no problem found\n")
    for item in ("python", "torch", "CPUs", "memory", "open files", "write speed", "W&B"):
        assert f"  {item} " in shown
    assert not (tmp_path / "runs").exists()


def test_doctor_starts_ray_and_compares_a_worker(ray_session: None) -> None:
    found = by_name(doctor.ray_view(None))
    assert found["CPUs"].found == "3"
    assert found["worker versions"].found == "equal to those of this process"
    assert {finding.grade for finding in found.values()} == {OK}


@pytest.mark.parametrize(
    ("own", "of_ray", "of_worker", "grades", "fix"),
    [
        (4, 4, 1, [OK] * 5, ""),
        (0, 0, 0, [OK], ""),
        (0, 8, 1, [OK] * 9, ""),  # the cluster has GPUs, this machine none
        (4, 1, 1, [WARNING, OK], "torch sees 4 GPUs and Ray 1"),
        (4, 0, 0, [PROBLEM], "torch sees GPUs and Ray none"),
        (4, 4, 0, [OK, *[PROBLEM] * 4], "install torch with CUDA"),
    ],
)
def test_gpus_that_ray_or_a_worker_lacks_are_found(
    own: int, of_ray: int, of_worker: int, grades: list[str], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = doctor.torch_view()
    resources = {"CPU": 8.0, "GPU": float(of_ray), "object_store_memory": 1e9}
    monkeypatch.setattr(
        doctor, "survey", lambda address, look: (resources, [{**view, "gpus": of_worker}] * max(1, of_ray))
    )
    monkeypatch.setattr(doctor, "torch_view", lambda: {**view, "gpus": own})
    found = [finding for finding in doctor.ray_view(None) if finding.item.startswith("GPUs")]
    assert [finding.grade for finding in found] == grades
    assert fix in " ".join(finding.fix for finding in found)


def test_a_problem_has_exit_code_1_and_its_fix_is_printed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1 << 20))
    assert main(["doctor", "--no-ray", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert "  X open files" in "\n".join(shown)
    assert shown[-3:] == [
        "problem: open files: 256 (at most 1048576)",
        "  ulimit -n 65536",
        "1 problem would stop a run",
    ]
    assert main(["doctor", "--no-ray", "--json", "--out", str(tmp_path)]) == 1
    rows = json.loads(capsys.readouterr().out)["findings"]
    assert [row["item"] for row in rows if row["grade"] == "problem"] == ["open files"]


@pytest.mark.parametrize(
    ("files", "grade", "fix"),
    [
        ((1 << 20, 1 << 20), OK, ""),
        ((1024, 1 << 20), WARNING, "ulimit -n 65536"),
        ((1024, 8192), WARNING, "ulimit -n 8192"),
        ((256, 1024), PROBLEM, "needs the hard limit of 1024 raised first"),
    ],
)
def test_a_low_limit_on_open_files_is_found(
    files: tuple[int, int], grade: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: files)
    (finding,) = machine.open_files()
    assert graded(finding, grade, fix)


def test_cpus_are_shown_with_the_source_of_each_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(limits, "cgroup", lambda: limits.Cgroup(6.5, None, None))
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    found = by_name(machine.cpus())
    assert found["CPUs"].found == "6 usable (machine 64, affinity 16, control group 6.5, Slurm 8)"
    assert found["Slurm"].found == "SLURM_CPUS_ON_NODE 8, SLURM_JOB_ID 77"


def test_too_little_memory_for_one_worker_per_cpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "cpus", lambda: 8)
    monkeypatch.setattr(limits, "memory", lambda: (3 * GB, 16 * GB))
    assert graded(by_name(machine.memory())["memory"], WARNING, "run with --workers 3")


def test_little_shared_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(64 * 10**6, 0, 64 * 10**6))
    assert graded(by_name(machine.memory())["shared memory"], WARNING, "--shm-size")


@pytest.mark.parametrize(
    ("built_for", "visible", "grade", "fix"),
    [
        (None, None, WARNING, "install torch's build for CUDA"),
        ("13.0", None, WARNING, "the driver may be too old for torch's CUDA 13.0"),
        ("13.0", "", OK, ""),  # hidden on purpose
    ],
)
def test_a_gpu_that_torch_cannot_use_is_found(
    built_for: str | None, visible: str | None, grade: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_driver", lambda: "535.104")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = by_name(machine.gpus())
    assert found["driver"].found == "535.104"
    assert graded(found["torch"], grade, fix)


def test_partly_used_and_broken_gpus_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(*size: int, device: str) -> None:
        if device == "cuda:1":
            raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")
    monkeypatch.setattr(torch, "zeros", zeros)
    found = by_name(machine.gpus())
    assert found["GPU 0"].found == "H100, 20.00 GB free of 80.00 GB"
    assert graded(found["GPU 0"], WARNING, "other processes use it")
    assert found["GPU 1"].found == "CUDA error: all CUDA-capable devices are busy or unavailable"
    assert graded(found["GPU 1"], PROBLEM, "another process may use it")


@pytest.mark.gpu
def test_a_real_gpu_is_shown_with_its_memory() -> None:
    assert "GB free of" in by_name(machine.gpus())["GPU 0"].found


def test_a_folder_that_is_not_writable_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = by_name(machine.disks(tmp_path / "runs"))
    assert found["runs"].found == f"{tmp_path} is not writable"
    assert graded(found["runs"], PROBLEM, "give another --out")
    assert graded(found["cache"], PROBLEM, "set SIMFL_CACHE")
    assert "write speed" not in found


@pytest.mark.parametrize(("free", "grade"), [(50 * GB, OK), (GB // 2, WARNING), (GB // 128, PROBLEM)])
def test_a_full_disk_is_found(free: int, grade: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GB, 100 * GB - free, free))
    found = by_name(machine.disks(tmp_path))
    assert found["runs"].grade == grade
    ray = found["Ray's folder"]
    assert graded(ray, *((PROBLEM, "95 % full") if free < 5 * GB else (OK, "")))


def test_a_slow_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_write_speed", lambda _: (0.5, 5e6))
    finding = by_name(machine.disks(tmp_path))["write speed"]
    assert finding.found == "5.0 MB/s, 0.5 s for a small file"
    assert graded(finding, WARNING, "checkpoint: {rounds: 10, seconds: 300}")


def test_a_disk_that_fills_up_during_the_check_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine, "_write_speed", full)
    assert by_name(machine.disks(tmp_path))["write speed"].grade == PROBLEM


def test_a_too_long_path_of_the_ray_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", f"/tmp/{'x' * 80}")
    assert graded(by_name(machine.disks(tmp_path))["Ray's folder"], PROBLEM, "export RAY_TMPDIR=/tmp")


def surveyed(monkeypatch: pytest.MonkeyPatch, resources: dict[str, float], **seen: Any) -> dict[str, MachineFinding]:
    monkeypatch.setattr(doctor, "survey", lambda address, look: (resources, [{**look(), **seen}]))
    return by_name(doctor.ray_view(None))


def test_a_cluster_without_cpus_or_with_other_versions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = surveyed(monkeypatch, {"object_store_memory": 1e9}, torch="1.0")
    assert graded(found["CPUs"], PROBLEM, "--num-cpus")
    assert found["worker versions"].found == f"torch {torch.__version__} here, 1.0 on a worker"
    assert graded(found["worker versions"], PROBLEM, "the same versions")


def test_gpus_that_ray_does_not_see_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert graded(surveyed(monkeypatch, {"CPU": 4.0})["GPUs"], PROBLEM, "--num-gpus")
    assert surveyed(monkeypatch, {"CPU": 4.0, "GPU": 1.0})["GPUs"].grade == OK


def test_a_failed_start_of_ray_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*_: Any) -> Any:
        raise TimeoutError("first line\nno answer")

    monkeypatch.setattr(doctor, "survey", dead)
    (finding,) = doctor.ray_view(None)
    assert finding.found == "TimeoutError: no answer"
    assert graded(finding, PROBLEM, "--backend inline")


def test_a_missing_library_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LIBRARIES", ("torch", "no-such-library"))
    assert graded(by_name(doctor.versions())["no-such-library"], PROBLEM, "pip install no-such-library")


def test_accounts_are_shown_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = by_name(doctor.accounts())
    assert found["W&B"].found == "WANDB_MODE offline; API key found"
    assert found["Hugging Face"].found == "offline (HF_HUB_OFFLINE)"
