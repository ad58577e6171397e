"""GPU utilization: read from NVML by the UUID of the GPU, shown in logs and reports, and absent without NVML."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from fakes import experiment, run

from simfl.cli import main
from simfl.json_files import JsonLines
from simfl.runtime import gpu_monitor
from simfl.runtime.gpu_monitor import GpuMonitor

CUDA = torch.device("cuda", 1)


class Nvml(ModuleType):
    """A fake of pynvml with one GPU at a fixed utilization in percent."""

    class NVMLError(Exception):
        """NVML's error."""

    def __init__(self, uuid: str, percent: int | None) -> None:
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self.uuid, self.percent, self.num_reads = uuid, percent, 0

    def nvmlInit(self) -> None:
        """Do nothing."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        """Return the UUID as the handle."""
        if uuid != self.uuid:
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, gpu: str) -> SimpleNamespace:
        """Return the utilization and count the readings."""
        assert gpu == self.uuid
        self.num_reads += 1
        if self.percent is None:
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=self.percent)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have torch report a GPU with UUID 11-22."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="11-22"))
    return monkeypatch


def test_gpu_is_found_by_its_uuid_and_not_read_again_within_the_interval(card: pytest.MonkeyPatch) -> None:
    nvml = Nvml("GPU-11-22", 87)
    card.setitem(sys.modules, "pynvml", nvml)
    monitor = GpuMonitor(CUDA)
    assert [monitor.use(), monitor.use()] == [0.87, 0.87]
    assert nvml.num_reads == 1
    card.setattr(gpu_monitor, "INTERVAL", 0.0)
    nvml.percent = 12
    assert monitor.use() == 0.12


def test_use_by_other_processes_is_read_while_this_process_leaves_the_gpu_idle(card: pytest.MonkeyPatch) -> None:
    nvml, done = Nvml("GPU-11-22", 40), list[object]()
    card.setitem(sys.modules, "pynvml", nvml)
    card.setattr(torch.cuda, "synchronize", done.append)
    card.setattr(gpu_monitor.time, "sleep", done.append)
    assert GpuMonitor(CUDA).others() == 0.4
    assert done == [CUDA, gpu_monitor.WINDOW]
    assert GpuMonitor(torch.device("cpu")).others() is None


@pytest.mark.parametrize("nvml", [Nvml("GPU-33", 87), Nvml("GPU-11-22", None)], ids=["unknown", "no figure"])
def test_use_is_none_if_nvml_does_not_know_it(nvml: Nvml, card: pytest.MonkeyPatch) -> None:
    card.setitem(sys.modules, "pynvml", nvml)
    assert GpuMonitor(CUDA).use() is None


def test_use_is_none_without_pynvml_or_a_gpu(card: pytest.MonkeyPatch) -> None:
    assert GpuMonitor(torch.device("cpu")).use() is None
    card.setattr("importlib.util.find_spec", lambda name: None)
    assert GpuMonitor(CUDA).use() is None


def test_use_is_shown_in_the_log_the_report_and_simfl_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(experiment(rounds=2), tmp_path / "plain")
    monkeypatch.setattr(GpuMonitor, "use", lambda self: 0.43)
    run(experiment(rounds=2), tmp_path / "seen")
    plain, seen = (
        [row for row in JsonLines(tmp_path / f / "log.jsonl").lines() if row["event"] == "round"] for f in FOLDERS
    )
    assert all("use" not in row for row in plain)
    assert [row["use"] for row in seen] == [[pytest.approx(0.43)]] * 2
    for folder, shown in zip(FOLDERS, (False, True), strict=True):
        assert main(["report", str(tmp_path / folder)]) == 0
        assert ("Utilization of each worker&#x27;s GPU" in (tmp_path / folder / "report.html").read_text()) == shown
        assert main(["watch", "--once", str(tmp_path / folder)]) == 0
        assert ("GPUs computed 43% of the time" in capsys.readouterr().out) == shown


FOLDERS = ("plain", "seen")
