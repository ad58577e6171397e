"""How much a GPU computes: asked of NVML by the GPU's own name, shown wherever a run is, and absent without NVML."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from fakes import experiment, run

from simfl.cli import main
from simfl.runtime import gpu_monitor as gauge
from simfl.runtime.gpu_monitor import GpuMonitor
from simfl.tracking.watch import Log

CUDA = torch.device("cuda", 1)


class Nvml(ModuleType):
    """A stand-in for pynvml: one GPU, at so many per cent."""

    class NVMLError(Exception):
        """Whatever NVML refuses."""

    def __init__(self, uuid: str, percent: int | None) -> None:
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self.uuid, self.percent, self.looks = uuid, percent, 0

    def nvmlInit(self) -> None:
        """Nothing to load."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self.uuid:
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, gpu: str) -> SimpleNamespace:
        assert gpu == self.uuid
        self.looks += 1
        if self.percent is None:
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=self.percent)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """torch sees a GPU whose name is 11-22."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="11-22"))
    return monkeypatch


def test_it_asks_for_the_gpu_by_its_name_and_not_more_often_than_it_is_told_anew(card: pytest.MonkeyPatch) -> None:
    nvml = Nvml("GPU-11-22", 87)
    card.setitem(sys.modules, "pynvml", nvml)
    one = GpuMonitor(CUDA)
    assert [one.use(), one.use()] == [0.87, 0.87]
    assert nvml.looks == 1
    card.setattr(gauge, "LOOK", 0.0)
    nvml.percent = 12
    assert one.use() == 0.12


def test_what_the_gpu_does_for_others_is_asked_when_this_process_has_nothing_for_it(card: pytest.MonkeyPatch) -> None:
    nvml, done = Nvml("GPU-11-22", 40), list[object]()
    card.setitem(sys.modules, "pynvml", nvml)
    card.setattr(torch.cuda, "synchronize", done.append)
    card.setattr(gauge.time, "sleep", done.append)
    assert GpuMonitor(CUDA).others() == 0.4
    assert done == [CUDA, gauge.MEMORY]
    assert GpuMonitor(torch.device("cpu")).others() is None


@pytest.mark.parametrize("nvml", [Nvml("GPU-33", 87), Nvml("GPU-11-22", None)], ids=["unknown", "no figure"])
def test_what_nvml_does_not_know_is_not_told(nvml: Nvml, card: pytest.MonkeyPatch) -> None:
    card.setitem(sys.modules, "pynvml", nvml)
    assert GpuMonitor(CUDA).use() is None


def test_without_the_package_or_without_a_gpu_there_is_nothing(card: pytest.MonkeyPatch) -> None:
    assert GpuMonitor(torch.device("cpu")).use() is None
    card.setattr("importlib.util.find_spec", lambda name: None)
    assert GpuMonitor(CUDA).use() is None


def test_a_run_tells_it_in_its_log_its_report_and_to_who_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(experiment(rounds=2), tmp_path / "plain")
    monkeypatch.setattr(GpuMonitor, "use", lambda self: 0.43)
    run(experiment(rounds=2), tmp_path / "seen")
    plain, seen = ([row for row in Log(tmp_path / f / "log.jsonl").lines() if row["event"] == "round"] for f in FOLDERS)
    assert all("use" not in row for row in plain)
    assert [row["use"] for row in seen] == [[pytest.approx(0.43)]] * 2
    for folder, shown in zip(FOLDERS, (False, True), strict=True):
        assert main(["report", str(tmp_path / folder)]) == 0
        assert ("Use of each worker&#x27;s GPU" in (tmp_path / folder / "report.html").read_text()) == shown
        assert main(["watch", "--once", str(tmp_path / folder)]) == 0
        assert ("GPUs computed 43% of the time" in capsys.readouterr().out) == shown


FOLDERS = ("plain", "seen")
