"""Choice of the backend: `inline` runs everything in this process, `ray` on worker processes.

`auto` chooses Ray if it can use several GPUs or, without a GPU, at least four CPUs, and if workers or the address of a
cluster are given. Otherwise the start of Ray costs more than its workers save, and `auto` chooses inline. Results are
bit-identical either way. Imports nothing heavy, because the command line chooses before it imports torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from simfl.errors import ConfigError, nearest
from simfl.runtime import machine
from simfl.runtime.gpus import use_free_gpus

BACKENDS = ("auto", "inline", "ray")
RULE = "auto uses Ray from 2 GPUs, or from 4 CPUs without a GPU"
MIN_GPUS, MIN_CPUS = 2, 4


@dataclass(frozen=True)
class BackendChoice:
    """A backend, and a line that says why `auto` chose it; the line is empty if the backend was given."""

    name: str  # inline or ray
    message: str = ""
    gpus: tuple[str, ...] = ()  # a line for each GPU that others use


def choose_backend(backend: str, workers: int | str | None = None, address: str | None = None) -> BackendChoice:
    """Resolve `auto` and check that the options fit the backend.

    On one machine, GPUs that other processes use are left out where others are free (`simfl.runtime.gpus`).

    Raises:
        ConfigError: The backend is unknown, or `workers` or `address` are given with inline.
        RunError: This machine has GPUs, and none can be used.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend: unknown {backend!r}; {nearest(backend, BACKENDS)}")
    if backend == "inline" and (workers or address):
        raise ConfigError(f"{'workers' if workers else 'address'}: has no effect with backend inline")
    joins = bool(address or os.environ.get("RAY_ADDRESS"))
    notes = () if joins and backend != "inline" else use_free_gpus()
    if backend != "auto":
        return BackendChoice(backend, gpus=notes)
    if workers or joins:
        return BackendChoice("ray", "backend ray: workers or the address of a cluster are given", notes)
    gpus, cpus = count_gpus(), machine.cpus()
    found = f"{cpus} CPU{'s' * (cpus > 1)}, {gpus or 'no'} GPU{'s' * (gpus > 1)}"
    name = "ray" if gpus >= MIN_GPUS or (gpus == 0 and cpus >= MIN_CPUS) else "inline"
    return BackendChoice(name, f"backend {name}: {found} ({RULE})", notes)


def count_gpus() -> int:
    """Return the number of visible NVIDIA GPUs, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
