"""Busy GPUs are skipped where others are free, and named; views of driver, torch, Ray and workers in `simfl doctor`."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from fakes import experiment, run

from simfl.commands import doctor, machine
from simfl.commands.machine import OK, WARNING
from simfl.errors import RunError
from simfl.json_files import JsonLines
from simfl.runtime import gpus
from simfl.runtime.backend import choose_backend

GB = 10**9


class Nvml(ModuleType):
    """A fake of pynvml: a machine with GPUs of 80 GB."""

    class NVMLError(Exception):
        """NVML's error."""

    def __init__(self, *free: int, names: tuple[str, ...] = (), modes: tuple[int, ...] = ()) -> None:
        """Take the free memory of each GPU in bytes."""
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self.free, self.names, self.modes = free, names or ("H100",) * len(free), modes or (0,) * len(free)

    def nvmlInit(self) -> None:
        """Do nothing."""

    def nvmlDeviceGetCount(self) -> int:
        """Return the number of GPUs."""
        return len(self.free)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        """Return the number as the handle."""
        return index

    def nvmlDeviceGetUUID(self, gpu: int) -> bytes:
        """Return the UUID, as bytes like older versions."""
        return f"GPU-{'abcd'[gpu]}0".encode()

    def nvmlDeviceGetName(self, gpu: int) -> str:
        """Return the name."""
        return self.names[gpu]

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        """Return free and total memory."""
        return SimpleNamespace(free=self.free[gpu], total=80 * GB)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[SimpleNamespace]:
        """Return a process on each GPU that is not free."""
        used = 80 * GB - self.free[gpu]
        return [SimpleNamespace(pid=4711 + gpu, usedGpuMemory=used)] if used else []

    def nvmlDeviceGetComputeMode(self, gpu: int) -> int:
        """Return the compute mode; GPU 3 does not support it."""
        if gpu == 3:
            raise self.NVMLError("not supported")
        return self.modes[gpu]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes this machine one with GPUs, and hides some from the process."""

    def give(nvml: Nvml, visible: str | None = None) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(gpus, "cuda_has_started", lambda: False)
        monkeypatch.delenv(gpus.VISIBLE, raising=False)
        monkeypatch.setenv(gpus.ORDER, "")
        if visible is not None:
            monkeypatch.setenv(gpus.VISIBLE, visible)

    monkeypatch.setenv(gpus.VISIBLE, "")  # restored at the end, whatever a test sets
    return give


BUSY = "8.00 GB of 80.00 GB are free (process 4711 has 72.00 GB)"


@pytest.mark.parametrize(
    ("free", "visible", "used", "messages"),
    [
        ((80, 80), None, None, ()),
        ((8, 80), None, "GPU-b0", (f"GPU 0 (H100) is skipped: {BUSY}",)),
        ((8, 80, 80, 80), "1,0,3", "GPU-b0,GPU-d0", (f"GPU 0 (H100) is skipped: {BUSY}",)),
        ((8, 80), "GPU-a0,GPU-b", "GPU-b0", (f"GPU 0 (H100) is skipped: {BUSY}",)),
        ((8, 80), "1", "1", ()),
        ((8, 80), "0", "GPU-a0", (f"GPU 0 (H100) is shared with others, as none is free: {BUSY}",)),
        ((8, 80), "0,-1,1", "GPU-a0", (f"GPU 0 (H100) is shared with others, as none is free: {BUSY}",)),
        ((8, 80), "", "", ()),
        ((8, 80), "MIG-77", "MIG-77", ()),
    ],
)
def test_busy_gpus_are_skipped_where_others_are_free(given, free, visible, used, messages) -> None:
    given(Nvml(*(number * GB for number in free)), visible)
    assert gpus.use_free_gpus() == messages
    assert os.environ.get(gpus.VISIBLE) == used


def test_gpu_with_the_most_free_memory_comes_first_where_none_is_free(given) -> None:
    given(Nvml(8 * GB, 30 * GB, GB // 2))
    messages = gpus.use_free_gpus()
    assert os.environ[gpus.VISIBLE] == "GPU-b0,GPU-a0"
    assert [text.partition(":")[0] for text in messages] == [
        "GPU 2 (H100) is skipped",
        "GPU 1 (H100) is shared with others, as none is free",
        "GPU 0 (H100) is shared with others, as none is free",
    ]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (gpus.PROHIBITED, "its compute mode forbids all processes"),
        (gpus.EXCLUSIVE, "its compute mode gives it to one process (process 4711 has 1.00 GB)"),
    ],
)
def test_gpu_whose_mode_admits_no_process_is_skipped(given, mode: int, reason: str) -> None:
    given(Nvml(79 * GB, 80 * GB, modes=(mode, 0)))
    assert gpus.use_free_gpus() == (f"GPU 0 (H100) is skipped: {reason}",)
    assert os.environ[gpus.VISIBLE] == "GPU-b0"


def test_numbers_of_unlike_gpus_are_matched_only_by_the_order_of_the_bus(given, monkeypatch) -> None:
    given(Nvml(8 * GB, 80 * GB, names=("T4", "H100")), "0,1")
    assert gpus.use_free_gpus() == ()  # CUDA may count the H100 first
    monkeypatch.setenv(gpus.ORDER, "PCI_BUS_ID")
    assert gpus.use_free_gpus() == (f"GPU 0 (T4) is skipped: {BUSY}",)


def test_a_run_is_refused_in_one_line_where_no_gpu_can_be_used(given) -> None:
    given(Nvml(GB // 2, GB // 4))
    with pytest.raises(RunError) as caught:
        choose_backend("inline")
    assert str(caught.value).startswith("no GPU is free: GPU 0 (H100): 500.0 MB of 80.00 GB are free (process 4711")
    assert "\n" not in str(caught.value)


def test_process_that_has_started_cuda_keeps_its_gpus(given, monkeypatch: pytest.MonkeyPatch) -> None:
    given(Nvml(8 * GB, 80 * GB))
    monkeypatch.setattr(gpus, "cuda_has_started", lambda: True)
    assert gpus.use_free_gpus() == (
        f"GPU 0 (H100) is shared with others: {BUSY}; choose others with CUDA_VISIBLE_DEVICES",
    )
    assert gpus.VISIBLE not in os.environ


def test_without_nvml_nothing_changes(given) -> None:
    broken = Nvml(8 * GB, 80 * GB)
    broken.nvmlInit = lambda: (_ for _ in ()).throw(broken.NVMLError("no driver"))  # type: ignore[method-assign]
    given(broken)
    assert gpus.use_free_gpus() == ()
    assert gpus.VISIBLE not in os.environ


def test_backend_counts_free_gpus_and_says_which_are_skipped(given, monkeypatch: pytest.MonkeyPatch) -> None:
    given(Nvml(8 * GB, 80 * GB, 80 * GB))
    choice = choose_backend("auto")
    assert choice.name == "ray"
    assert " 2 GPUs " in choice.message
    assert choice.gpus == (f"GPU 0 (H100) is skipped: {BUSY}",)
    given(Nvml(8 * GB, 80 * GB))
    assert choose_backend("auto", address="127.0.0.1:1").gpus == ()  # a cluster chooses for itself
    assert gpus.VISIBLE not in os.environ


def test_skipped_gpus_are_in_the_log_of_the_run(tmp_path: Path) -> None:
    run(experiment(rounds=1), tmp_path, notes=("GPU 0 is skipped: busy",))
    texts = [line.get("text") for line in JsonLines(tmp_path / "log.jsonl").lines()]
    assert "GPU 0 is skipped: busy" in texts


def test_doctor_shows_the_views_of_driver_and_workers(given, monkeypatch: pytest.MonkeyPatch) -> None:
    given(Nvml(8 * GB, 80 * GB))
    monkeypatch.setattr(machine, "_driver", lambda: "580.1")
    found = {finding.item: finding for finding in machine.gpus()}
    assert found["driver's GPU 0"].found == "H100, 8.00 GB of 80.00 GB are free, used by process 4711, GPU-a0"
    assert found["driver's GPU 0"].grade == WARNING
    assert "a run skips it if another GPU is free" in found["driver's GPU 0"].fix
    assert found["driver's GPU 1"].grade == OK
    views = [
        {**doctor.torch_view(), "gpus": 1, "machine": "node1", "driver": "GPU 1 (H100)", "shared": text}
        for text in ("", BUSY)
    ]
    monkeypatch.setattr(doctor, "survey", lambda address, look: ({"CPU": 4.0, "GPU": 3.0}, views))
    seen = {finding.item: finding for finding in doctor.ray_view(None)}
    assert seen["GPUs of worker 0"].found == "torch sees 1 on node1; driver: GPU 1 (H100)"
    assert (seen["GPUs of worker 0"].grade, seen["GPUs of worker 1"].grade) == (OK, WARNING)
    assert seen["workers"].found == "2 of 3 workers with a GPU answered"
