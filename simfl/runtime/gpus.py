"""GPUs of this machine as the driver sees them (NVML), and the choice of those that other processes leave free.

A GPU is busy if other processes hold more than half of its memory, or if its compute mode gives it to one process. A
run on one machine leaves out busy GPUs where others are free, by CUDA_VISIBLE_DEVICES, which its workers inherit.
Imports nothing heavy, because the command line chooses GPUs before it imports torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from simfl.errors import RunError
from simfl.formatting import format_bytes

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"  # environment variables
BUSY_SHARE = 0.5  # of the memory of a GPU, in use by others, above which it is busy
MIN_FREE = 10**9  # bytes with which a run can start; torch takes half of it before a model is loaded
MAX_SHOWN = 3  # processes that are named
EXCLUSIVE, PROHIBITED = 3, 2  # compute modes of NVML
NOT_INITIALIZED = 3  # error of the driver's functions before a process has started CUDA


@dataclass(frozen=True)
class GpuState:
    """A GPU at one moment; memory in bytes."""

    index: int  # NVML's number, in the order of the bus
    uuid: str  # begins with GPU- or MIG-
    name: str
    free: int
    total: int
    processes: tuple[tuple[int, int | None], ...] = ()  # number and memory of each process; None: not known
    mode: int = 0  # compute mode

    @property
    def unusable(self) -> str:
        """Return why no process can start on the GPU, or an empty string."""
        if self.mode == PROHIBITED:
            return "its compute mode forbids all processes"
        if self.mode == EXCLUSIVE and self.processes:
            return f"its compute mode gives it to one process{_who(self.processes)}"
        if self.free < MIN_FREE:
            return f"{self.memory}{_who(self.processes)}"
        return ""

    @property
    def busy(self) -> str:
        """Return why the GPU is left out where others are free, or an empty string."""
        if not self.unusable and self.free >= (1 - BUSY_SHARE) * self.total:
            return ""
        return self.unusable or f"{self.memory}{_who(self.processes)}"

    @property
    def memory(self) -> str:
        """Return the free memory as text."""
        return f"{format_bytes(self.free)} of {format_bytes(self.total)} are free"

    @property
    def label(self) -> str:
        """Return the number and the name of the GPU."""
        return f"GPU {self.index} ({self.name})"


def driver_view() -> list[GpuState]:
    """Return all GPUs of this machine, in the driver's order; an empty list without pynvml or a driver."""
    if importlib.util.find_spec("pynvml") is None:
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [_state(pynvml, index, handle) for index, handle in enumerate(handles)]
    except pynvml.NVMLError:
        return []


def visible_view() -> list[GpuState] | None:
    """Return the GPUs that this process may use, in its order; None if they cannot be matched with the driver's.

    Numbers in CUDA_VISIBLE_DEVICES follow the speed of the GPUs unless CUDA_DEVICE_ORDER says otherwise, so they can
    be matched only where all GPUs are alike. Slices of a GPU (MIG) are given by a scheduler, and not chosen here.
    """
    states = driver_view()
    given = os.environ.get(VISIBLE)
    if given is None:
        return states
    by_order = os.environ.get(ORDER) == "PCI_BUS_ID" or len({state.name for state in states}) <= 1
    found = []
    for word in filter(None, (part.strip() for part in given.split(","))):
        if word == "-1":
            break
        matches = [state for state in states if _is_named(state, word, by_order)]
        if len(matches) != 1:
            return None
        found += matches
    return found


def use_free_gpus() -> tuple[str, ...]:
    """Leave out busy GPUs for this process and those that it starts; return a message for each that is left out.

    If all are busy, those with the most free memory come first, and a message says so. Without NVML nothing changes.

    Raises:
        RunError: No GPU can be used.
    """
    states = visible_view()
    busy = [state for state in states or () if state.busy]
    if not states or not busy:
        return ()
    if cuda_has_started():  # the process keeps the GPUs that it has seen
        return tuple(f"{one.label} is shared with others: {one.busy}; choose others with {VISIBLE}" for one in busy)
    free = [state for state in states if not state.busy]
    usable = free or sorted((one for one in states if not one.unusable), key=lambda one: -one.free)
    if not usable:
        reasons = "; ".join(f"{one.label}: {one.busy}" for one in busy)
        raise RunError(f"no GPU is free: {reasons}; wait, or train on the CPU with {VISIBLE}= before the command")
    os.environ[VISIBLE] = ",".join(state.uuid for state in usable)
    if free:
        return tuple(f"{one.label} is skipped: {one.busy}" for one in busy)
    skipped = [f"{one.label} is skipped: {one.busy}" for one in states if one.unusable]
    shared = [f"{one.label} is shared with others, as none is free: {one.busy}" for one in usable]
    return (*skipped, *shared)


def shared_with_others() -> str:
    """Return a note on the GPUs of this process that others use, or an empty string; call it before CUDA starts."""
    return "; ".join(f"{state.label}: {state.busy}" for state in visible_view() or () if state.busy)


def cuda_has_started() -> bool:
    """Return whether this process has started CUDA, after which CUDA_VISIBLE_DEVICES has no effect on it."""
    if "torch" not in sys.modules:
        return False
    with suppress(OSError, AttributeError):
        return ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())) != NOT_INITIALIZED
    return False


def _state(nvml: Any, index: int, handle: Any) -> GpuState:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    uuid, name = (_text(read(handle)) for read in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetName))
    processes: tuple[tuple[int, int | None], ...] = ()
    mode = 0
    with suppress(nvml.NVMLError):  # a container or a slice of a GPU may not be allowed to see these
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        processes = tuple((int(one.pid), one.usedGpuMemory) for one in running if one.pid != os.getpid())
    with suppress(nvml.NVMLError):
        mode = int(nvml.nvmlDeviceGetComputeMode(handle))
    return GpuState(index, uuid, name, int(memory.free), int(memory.total), processes, mode)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _is_named(state: GpuState, word: str, by_order: bool) -> bool:
    return state.uuid.startswith(word) if not word.isdecimal() else by_order and state.index == int(word)


def _who(processes: Sequence[tuple[int, int | None]]) -> str:
    """Describe the processes on a GPU, those with the most memory first."""
    return "".join(_described(sorted(processes, key=lambda one: -(one[1] or 0))))


def _described(processes: Sequence[tuple[int, int | None]]) -> Iterator[str]:
    shown = [f"process {pid}" + (f" has {format_bytes(size)}" if size else "") for pid, size in processes[:MAX_SHOWN]]
    more = len(processes) - MAX_SHOWN
    if shown:
        yield f" ({', '.join(shown)}{f' and {more} more' if more > 0 else ''})"
