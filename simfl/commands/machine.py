"""Checks of the machine: CPUs, memory, open files, GPUs and disks, each with a fix."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from simfl import files
from simfl.formatting import format_bytes, format_duration
from simfl.runtime import machine as limits
from simfl.runtime.gpus import GpuState, driver_view

OK, WARNING, PROBLEM = "ok", "warning", "problem"
SLURM = "SLURM_(JOB_ID|JOB_NUM_NODES|NNODES|CPUS_ON_NODE|CPUS_PER_TASK|MEM_PER_NODE|MEM_PER_CPU|GPUS_ON_NODE|NTASKS)"
MEMORY_PER_WORKER = 10**9  # bytes; torch and Ray use about half of it before a model is loaded
MIN_SHARED_MEMORY = 256 * 10**6  # bytes; with less, Ray keeps objects in ordinary files
GOOD_OPEN_FILES = 4096  # each process of Ray uses some hundred, and more with more workers
MIN_OPEN_FILES = 512  # with fewer, Ray does not start
MIN_DISK = 10**9  # bytes of free disk for a run
FULL = 0.95  # used fraction of a disk above which Ray stores no objects
MAX_SESSION_PATH = 60  # characters of Ray's folder; paths of sockets below it are limited to 107
SLOW_SYNC, SLOW_WRITE = 0.2, 20e6  # seconds of a small synced write, bytes per second of a large one


@dataclass(frozen=True)
class MachineFinding:
    """Result of one check; `fix` is empty if nothing is wrong."""

    topic: str
    item: str
    found: str
    grade: str = OK
    fix: str = ""


def cpus() -> Iterator[MachineFinding]:
    """Check the number of usable CPUs and the source of each limit."""
    known = limits.cpu_limits()
    text = ", ".join(f"{source} {number:g}" for source, number in known.items())
    yield MachineFinding("machine", "CPUs", f"{limits.cpus()} usable ({text})")
    threads = os.environ.get("OMP_NUM_THREADS")
    yield MachineFinding(
        "machine", "threads", f"OMP_NUM_THREADS {threads or 'not set'}; a run sets execution.threads itself"
    )
    job = {name: os.environ[name] for name in sorted(os.environ) if re.fullmatch(SLURM, name)}
    if job:
        yield MachineFinding("machine", "Slurm", ", ".join(f"{name} {value}" for name, value in job.items()))


def memory() -> Iterator[MachineFinding]:
    """Check the memory of workers, and shared memory for objects that they receive."""
    free, total = limits.memory()
    text, wanted = f"{format_bytes(free)} free of {format_bytes(total)}", limits.cpus() * MEMORY_PER_WORKER
    few = max(1, free // MEMORY_PER_WORKER)
    fix = "" if free >= wanted else f"run with --workers {few}: a worker uses about {format_bytes(MEMORY_PER_WORKER)}"
    yield MachineFinding("machine", "memory", text, WARNING if fix else OK, fix)
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return
    use = shutil.disk_usage(shared)
    fix = (
        ""
        if use.free >= MIN_SHARED_MEMORY
        else "docker run --shm-size=4g, or free some; else Ray keeps objects in files"
    )
    yield MachineFinding(
        "machine", "shared memory", f"{format_bytes(use.free)} free in {shared}", WARNING if fix else OK, fix
    )


def gpus() -> Iterator[MachineFinding]:
    """Check the GPUs: those of the driver with the processes on them, and those that torch sees and can use."""
    visible, driver = os.environ.get("CUDA_VISIBLE_DEVICES"), _driver()
    if visible is not None:
        yield MachineFinding("GPUs", "CUDA_VISIBLE_DEVICES", repr(visible))
    if driver:
        yield MachineFinding("GPUs", "driver", driver)
    states = driver_view()
    yield from map(_of_driver, states)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        yield _no_gpu(driver, visible, [str(warning.message).splitlines()[0] for warning in caught])
    for index in range(count):
        yield _gpu(index)
    if states and count and visible is None and count != len(states):
        fix = (
            "the driver and torch count differently: restart after a change of the driver, or check MIG and containers"
        )
        yield MachineFinding("GPUs", "torch", f"{count} GPUs; the driver has {len(states)}", WARNING, fix)


def _of_driver(state: GpuState) -> MachineFinding:
    """Describe a GPU as the driver sees it; busy ones are skipped by runs where others are free."""
    who = ", ".join(f"process {pid}" for pid, _ in state.processes)
    text = f"{state.name}, {state.memory}{f', used by {who}' if who else ''}, {state.uuid}"
    fix = f"a run skips it if another GPU is free: {state.busy}" if state.busy else ""
    return MachineFinding("GPUs", f"driver's GPU {state.index}", text, WARNING if fix else OK, fix)


def _driver() -> str:
    """Return the version of the NVIDIA driver, or an empty string."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\S+)", path.read_text()) if path.exists() else None
    return found.group(1) if found else ""


def _no_gpu(driver: str, visible: str | None, messages: list[str]) -> MachineFinding:
    if not driver or visible == "":
        return MachineFinding("GPUs", "torch", "no GPU; clients train on the CPU")
    if torch.version.cuda is None:
        fix = "install torch's build for CUDA: https://pytorch.org/get-started"
        return MachineFinding("GPUs", "torch", f"{torch.__version__} is built without CUDA", WARNING, fix)
    fix = (
        f"the driver may be too old for torch's CUDA {torch.version.cuda}: update the driver, or install an older torch"
    )
    return MachineFinding(
        "GPUs", "torch", "; ".join(messages) or "sees no GPU, though a driver is loaded", WARNING, fix
    )


def _gpu(index: int) -> MachineFinding:
    item = f"GPU {index}"
    try:
        free, total = torch.cuda.mem_get_info(index)
        torch.zeros(1, device=f"cuda:{index}")
    except RuntimeError as error:
        fix = "another process may use it exclusively; choose other GPUs with CUDA_VISIBLE_DEVICES"
        return MachineFinding("GPUs", item, str(error).splitlines()[0], PROBLEM, fix)
    text = f"{torch.cuda.get_device_name(index)}, {format_bytes(free)} free of {format_bytes(total)}"
    fix = "" if free > total / 2 else "other processes use it; choose another GPU with CUDA_VISIBLE_DEVICES"
    return MachineFinding("GPUs", item, text, WARNING if fix else OK, fix)


def open_files() -> Iterator[MachineFinding]:
    """Check the limit on open files; each worker and each connection uses some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    grade = OK if soft >= GOOD_OPEN_FILES else WARNING if soft >= MIN_OPEN_FILES else PROBLEM
    fix = f"ulimit -n {min(hard, 65536) if hard >= GOOD_OPEN_FILES else 65536}" if grade != OK else ""
    if fix and hard < GOOD_OPEN_FILES:
        fix += f" needs the hard limit of {hard} raised first (limits.conf, LimitNOFILE, docker --ulimit)"
    yield MachineFinding("machine", "open files", f"{soft} (at most {hard})", grade, fix)


def disks(out: Path) -> Iterator[MachineFinding]:
    """Check the folder of runs and its write speed, the cache, and the folder of Ray."""
    yield from _run_folder(out)
    yield _folder("cache", files.cache_folder(), "set SIMFL_CACHE to a writable folder")
    session = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or tempfile.gettempdir())
    use = shutil.disk_usage(_existing(session))
    fix = ""
    if len(str(session)) > MAX_SESSION_PATH:
        fix = f"export RAY_TMPDIR=/tmp: a path of {len(str(session))} characters is too long for sockets below it"
    elif use.used / use.total > FULL:
        fix = "free some space, or set RAY_TMPDIR to another disk: Ray stores nothing on a disk that is 95 % full"
    yield MachineFinding(
        "disks", "Ray's folder", f"{session}, {format_bytes(use.free)} free", PROBLEM if fix else OK, fix
    )


def _run_folder(out: Path) -> Iterator[MachineFinding]:
    finding = _folder("runs", out, "give another --out")
    yield finding
    if finding.grade == PROBLEM:
        return
    try:
        with tempfile.TemporaryDirectory(dir=_existing(out), prefix=files.TEMP) as scratch:
            sync, speed = _write_speed(Path(scratch))
    except OSError as error:
        yield MachineFinding("disks", "write speed", str(error), PROBLEM, "free some space, or give another --out")
        return
    slow = sync > SLOW_SYNC or speed < SLOW_WRITE
    fix = (
        "save fewer checkpoints (checkpoint: {rounds: 10, seconds: 300}), or give an --out on a faster disk"
        if slow
        else ""
    )
    small = f", {format_duration(sync)} for a small file" if sync >= 0.05 else ""
    text = f"{format_bytes(speed)}/s{small}"
    yield MachineFinding("disks", "write speed", text, WARNING if slow else OK, fix)


def _write_speed(folder: Path, total: int = 64 << 20) -> tuple[float, float]:
    """Return the seconds of a small synced write (median of five), and the bytes per second of a large one."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        files.write_synced(folder / "small", lambda file: file.write(b"x" * 4096))
        times.append(time.perf_counter() - start)
    block, start = os.urandom(1 << 20), time.perf_counter()
    files.write_synced(folder / "large", lambda file: [file.write(block) for _ in range(total >> 20)])
    return sorted(times)[2], total / (time.perf_counter() - start)


def _folder(item: str, path: Path, fix: str) -> MachineFinding:
    """Check that a folder, or its nearest existing parent, is writable and has free space."""
    existing = _existing(path)
    if not os.access(existing, os.W_OK | os.X_OK):
        return MachineFinding("disks", item, f"{existing} is not writable", PROBLEM, fix)
    use = shutil.disk_usage(existing)
    text = f"{path}, {format_bytes(use.free)} free"
    if use.free < MIN_DISK:
        return MachineFinding(
            "disks", item, text, PROBLEM if use.free < MIN_DISK >> 6 else WARNING, f"free some space, or {fix}"
        )
    return MachineFinding("disks", item, text)


def _existing(path: Path) -> Path:
    path = path.expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())
