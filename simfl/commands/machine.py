"""This machine as a run would find it: CPUs, memory, files, GPUs, disks; what is wrong, and the mend."""

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

from simfl import cache, files
from simfl.runtime import machine as limits
from simfl.tracking.progress import duration, size

OK, WARNING, PROBLEM = "ok", "warning", "problem"
SLURM = "SLURM_(JOB_ID|JOB_NUM_NODES|NNODES|CPUS_ON_NODE|CPUS_PER_TASK|MEM_PER_NODE|MEM_PER_CPU|GPUS_ON_NODE|NTASKS)"
MEMORY_PER_WORKER = 1 << 30  # bytes: torch and Ray take about half of that before any model
SHARED = 256 << 20  # bytes of shared memory, below which Ray keeps objects in ordinary files
OPEN_FILES = 4096  # wanted; Ray's processes take some hundred each, and more with the number of workers
FEWEST_FILES = 512  # below, Ray does not start
DISK = 1 << 30  # bytes of free disk for a run
FULL = 0.95  # of a disk; Ray refuses to store objects on a fuller one
SOCKET = 60  # characters of Ray's folder: paths of sockets below it may have 107 in all
SLOW_SYNC, SLOW_WRITE = 0.2, 20e6  # seconds of a small synced write, bytes a second of a large one


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `mend` is empty where all is well."""

    topic: str
    what: str
    found: str
    grade: str = OK
    mend: str = ""


def cpus() -> Iterator[Finding]:
    """How many CPUs there are for us, and who says so."""
    known = limits.cpu_limits()
    text = ", ".join(f"{who} {number:g}" for who, number in known.items())
    yield Finding("machine", "CPUs", f"{limits.cpus()} to work with ({text})")
    threads = os.environ.get("OMP_NUM_THREADS")
    yield Finding("machine", "threads", f"OMP_NUM_THREADS {threads or 'not set'}; a run sets execution.threads itself")
    job = {name: os.environ[name] for name in sorted(os.environ) if re.fullmatch(SLURM, name)}
    if job:
        yield Finding("machine", "Slurm", ", ".join(f"{name} {value}" for name, value in job.items()))


def memory() -> Iterator[Finding]:
    """Memory for workers, and shared memory for what they are sent."""
    free, total = limits.memory()
    text, wanted = f"{size(free)} free of {size(total)}", limits.cpus() * MEMORY_PER_WORKER
    few = max(1, free // MEMORY_PER_WORKER)
    mend = "" if free >= wanted else f"run with --workers {few}: a worker takes about {size(MEMORY_PER_WORKER)}"
    yield Finding("machine", "memory", text, WARNING if mend else OK, mend)
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return
    use = shutil.disk_usage(shared)
    mend = "" if use.free >= SHARED else "docker run --shm-size=4g, or free it; else Ray keeps objects in files"
    yield Finding("machine", "shared memory", f"{size(use.free)} free in {shared}", WARNING if mend else OK, mend)


def gpus() -> Iterator[Finding]:
    """What torch sees of the GPUs, and whether it can use them."""
    visible, driver = os.environ.get("CUDA_VISIBLE_DEVICES"), _driver()
    if visible is not None:
        yield Finding("GPUs", "CUDA_VISIBLE_DEVICES", repr(visible))
    if driver:
        yield Finding("GPUs", "driver", driver)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        yield _no_gpu(driver, visible, [str(warning.message).splitlines()[0] for warning in said])
    for index in range(count):
        yield _gpu(index)


def _driver() -> str:
    """The version of NVIDIA's driver, or empty."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\S+)", path.read_text()) if path.exists() else None
    return found.group(1) if found else ""


def _no_gpu(driver: str, visible: str | None, said: list[str]) -> Finding:
    if not driver or visible == "":
        return Finding("GPUs", "torch", "no GPU; training is on the CPU")
    if torch.version.cuda is None:
        mend = "install torch's build for CUDA: https://pytorch.org/get-started"
        return Finding("GPUs", "torch", f"{torch.__version__} is built without CUDA", WARNING, mend)
    mend = f"the driver may be too old for torch's CUDA {torch.version.cuda}: update it, or install an older torch"
    return Finding("GPUs", "torch", "; ".join(said) or "sees no GPU, though a driver is loaded", WARNING, mend)


def _gpu(index: int) -> Finding:
    what = f"GPU {index}"
    try:
        free, total = torch.cuda.mem_get_info(index)
        torch.zeros(1, device=f"cuda:{index}")
    except RuntimeError as error:
        mend = "another process may hold it for itself; choose others with CUDA_VISIBLE_DEVICES"
        return Finding("GPUs", what, str(error).splitlines()[0], PROBLEM, mend)
    text = f"{torch.cuda.get_device_name(index)}, {size(free)} free of {size(total)}"
    mend = "" if free > total / 2 else "others use it: what is free must do, or choose with CUDA_VISIBLE_DEVICES"
    return Finding("GPUs", what, text, WARNING if mend else OK, mend)


def open_files() -> Iterator[Finding]:
    """How many files a process may open: each worker, and each connection between them, takes some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    grade = OK if soft >= OPEN_FILES else WARNING if soft >= FEWEST_FILES else PROBLEM
    mend = f"ulimit -n {min(hard, 65536) if hard >= OPEN_FILES else 65536}" if grade != OK else ""
    if mend and hard < OPEN_FILES:
        mend += f" needs the hard limit of {hard} raised first (limits.conf, LimitNOFILE, docker --ulimit)"
    yield Finding("machine", "open files", f"{soft} (at most {hard})", grade, mend)


def disks(out: Path) -> Iterator[Finding]:
    """The folder of runs: whether it can be written, how fast; the cache; Ray's own folder."""
    yield from _run_folder(out)
    yield _folder("cache", cache.folder(), "set SIMFL_CACHE to a folder that can be written")
    session = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or tempfile.gettempdir())
    use = shutil.disk_usage(_existing(session))
    mend = ""
    if len(str(session)) > SOCKET:
        mend = f"export RAY_TMPDIR=/tmp: paths of sockets below a name of {len(str(session))} characters are too long"
    elif use.used / use.total > FULL:
        mend = "free some of it, or set RAY_TMPDIR to another disk: Ray stores nothing on a disk that is 95 % full"
    yield Finding("disks", "Ray's folder", f"{session}, {size(use.free)} free", PROBLEM if mend else OK, mend)


def _run_folder(out: Path) -> Iterator[Finding]:
    finding = _folder("runs", out, "give another --out")
    yield finding
    if finding.grade == PROBLEM:
        return
    try:
        with tempfile.TemporaryDirectory(dir=_existing(out), prefix=files.TEMP) as scratch:
            sync, speed = _write_speed(Path(scratch))
    except OSError as error:
        yield Finding("disks", "write speed", str(error), PROBLEM, "free some of the disk, or give another --out")
        return
    slow = sync > SLOW_SYNC or speed < SLOW_WRITE
    mend = (
        "commit less often (checkpoint: {rounds: 10, seconds: 300}), or give an --out on a faster disk" if slow else ""
    )
    text = f"{size(speed)}/s, {duration(sync)} for a small file" if sync >= 0.05 else f"{size(speed)}/s"
    yield Finding("disks", "write speed", text, WARNING if slow else OK, mend)


def _write_speed(folder: Path, total: int = 64 << 20) -> tuple[float, float]:
    """Seconds of a small synced write (the median of five), and bytes a second of a large one."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        files.write_synced(folder / "small", lambda file: file.write(b"x" * 4096))
        times.append(time.perf_counter() - start)
    block, start = os.urandom(1 << 20), time.perf_counter()
    files.write_synced(folder / "large", lambda file: [file.write(block) for _ in range(total >> 20)])
    return sorted(times)[2], total / (time.perf_counter() - start)


def _folder(what: str, path: Path, mend: str) -> Finding:
    """Whether a folder, or the nearest one above it, can be written and has room."""
    there = _existing(path)
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("disks", what, f"{there} cannot be written", PROBLEM, mend)
    use = shutil.disk_usage(there)
    text = f"{path}, {size(use.free)} free"
    if use.free < DISK:
        return Finding("disks", what, text, PROBLEM if use.free < DISK >> 6 else WARNING, f"free some of it, or {mend}")
    return Finding("disks", what, text)


def _existing(path: Path) -> Path:
    path = path.expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())
