"""What a worker makes of its machine: memory, and how much of the time its GPU computes, as NVML knows it."""

from __future__ import annotations

import importlib.util
import platform
import resource
import time
from typing import Any

import torch

MEMORY = 1.0  # seconds that NVML's figure covers at most
LOOK = 0.25  # seconds between two looks: NVML's own figure covers the last sixth of a second to a second


class GpuMonitor:
    """One GPU, looked at when a piece of work ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpu = _gpu(str(torch.cuda.get_device_properties(device).uuid)) if device.type == "cuda" else None
        self._looked = 0.0
        self._use: float | None = None
        self._remembered, self._memory = 0.0, 0

    def memory(self) -> int:
        """`most_memory`, on a GPU as it was a moment ago: torch takes its time to tell, in which the GPU waits."""
        now = time.monotonic()
        if self._device.type != "cuda" or now - self._remembered >= LOOK:
            self._remembered, self._memory = now, most_memory(self._device)
        return self._memory

    def others(self) -> float | None:
        """Share of a second in which the GPU ran anything while this process had nothing for it; None: not known."""
        if self._gpu is None:
            return None
        torch.cuda.synchronize(self._device)
        time.sleep(MEMORY)
        return _use(self._gpu)

    def use(self) -> float | None:
        """Share of the last moments in which the GPU ran anything, whoever's: 0 to 1; None where it is not known."""
        now = time.monotonic()
        if self._gpu is not None and now - self._looked >= LOOK:
            self._looked, self._use = now, _use(self._gpu)
        return self._use


def most_memory(device: torch.device) -> int:
    """Bytes at their highest so far: what torch had on the GPU, or, without one, what the process held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def processor(device: torch.device) -> str:
    """The kind of a worker's processor, as far as it decides how sums are rounded."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} with {torch.backends.cpu.get_cpu_capability()}"


def _gpu(uuid: str) -> Any:
    """NVML's name for a GPU; None without the package, a driver, or where NVML does not know such a GPU.

    By UUID, since torch counts only the GPUs that a process was given.
    """
    if importlib.util.find_spec("pynvml") is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None


def _use(gpu: Any) -> float | None:
    """Read it; a slice of a shared GPU has no such figure."""
    import pynvml

    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu) / 100
    except pynvml.NVMLError:
        return None
