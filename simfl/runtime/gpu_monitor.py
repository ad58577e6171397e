"""Memory use of a worker and utilization of its GPU, read from NVML."""

from __future__ import annotations

import importlib.util
import platform
import resource
import time
from typing import Any

import torch

WINDOW = 1.0  # longest time in seconds that NVML's figure covers
INTERVAL = 0.25  # seconds between two readings: NVML's own figure covers the last sixth of a second to a second

GpuHandle = Any  # NVML's handle of a GPU


class GpuMonitor:
    """Readings of one GPU, taken at the end of a task. On a CPU only memory is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpu = _gpu(str(torch.cuda.get_device_properties(device).uuid)) if device.type == "cuda" else None
        self._use_read_at = 0.0
        self._use: float | None = None
        self._memory_read_at, self._memory = 0.0, 0

    def memory(self) -> int:
        """Return `peak_memory`; on a GPU the last reading if it is recent, since the GPU waits while torch counts."""
        now = time.monotonic()
        if self._device.type != "cuda" or now - self._memory_read_at >= INTERVAL:
            self._memory_read_at, self._memory = now, peak_memory(self._device)
        return self._memory

    def others(self) -> float | None:
        """Return the share of time (0 to 1) that other processes use the GPU, or None if it is not known.

        Takes one second, in which this process leaves the GPU idle.
        """
        if self._gpu is None:
            return None
        torch.cuda.synchronize(self._device)
        time.sleep(WINDOW)
        return _utilization(self._gpu)

    def use(self) -> float | None:
        """Return the recent utilization of the GPU by all processes, 0 to 1, or None if it is not known."""
        now = time.monotonic()
        if self._gpu is not None and now - self._use_read_at >= INTERVAL:
            self._use_read_at, self._use = now, _utilization(self._gpu)
        return self._use


def peak_memory(device: torch.device) -> int:
    """Return the peak in bytes so far: torch's allocations on a GPU, the resident memory of the process on a CPU.

    Of several GPUs, over which a model is divided, that of the fullest.
    """
    if device.type == "cuda":
        return max(torch.cuda.max_memory_allocated(index) for index in range(torch.cuda.device_count()))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def processor(device: torch.device) -> str:
    """Return the name of the worker's processor, as far as it decides how sums are rounded."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} with {torch.backends.cpu.get_cpu_capability()}"


def _gpu(uuid: str) -> GpuHandle | None:
    """Return NVML's handle of a GPU; None without pynvml or a driver, or if NVML does not know the GPU.

    The UUID identifies it, since torch numbers only the GPUs that are visible to the process.
    """
    if importlib.util.find_spec("pynvml") is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None


def _utilization(gpu: GpuHandle) -> float | None:
    """Read the utilization; slices of a shared GPU (MIG) have none."""
    import pynvml

    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu) / 100
    except pynvml.NVMLError:
        return None
