"""`make bench`: all systems do the same work, and RESULTS.md gets the tables that its headings announce."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import backbones, bare, bench, clients, engine, gpu, handover, memory, overlap, report, scaling
from benchmarks.result import Result, distance, read_result
from benchmarks.systems import SYSTEMS


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_the_bare_loop_and_simfl_reach_the_same_weights(mode: str, tmp_path: Path) -> None:
    work, of_loop, of_simfl = tmp_path / "work.npz", tmp_path / "bare.npz", tmp_path / "engine.npz"
    handover.write("w2", work)
    bare.main(str(work), str(of_loop), 1)
    engine.main("w2", str(of_simfl), "inline", 1, mode)
    assert distance(read_result(of_simfl), read_result(of_loop)) < 1e-5


def test_a_row_compares_a_system_with_the_bare_loop() -> None:
    """Rounds of 2 and 4 s against 1 and 1 s give ratios of 2 and 4, median 3; other weights are reported."""
    loop = bench.Timed(50, [bench.Sample(_result([1.0, 1.0], 1.0), 3.0, 9.0, 7)])
    other = bench.Timed(50, [bench.Sample(_result([2.0, 4.0], 1.5), 4.0, 12.0, 8)])
    first, second = bench.rows("W1", {bench.REFERENCE: loop, "other": other})
    assert first["same_work"]
    assert second == {
        "work": "W1", "system": "other", "seconds_per_round": 3.0, "clients_per_second": 50 / 3.0,
        "ratio_to_bare_loop": 3.0, "startup_seconds": 4.0, "total_seconds": 12.0, "peak_rss_bytes": 8,
        "same_work": False,
    }  # fmt: skip


def _result(seconds: list[float], end: float) -> Result:
    return Result(np.array(seconds), 1.0, np.array([end]), np.array([0.0]))


def test_results_get_a_row_for_each_measured_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = "simfl, inline sequential"
    row = {
        "work": "W3", "system": system, "seconds_per_round": 2.0, "clients_per_second": 1.0,
        "ratio_to_bare_loop": 0.5, "startup_seconds": 4.0, "total_seconds": 12.0, "peak_rss_bytes": 8_000_000,
        "same_work": True,
    }  # fmt: skip
    latest, page = tmp_path / "latest.json", tmp_path / "RESULTS.md"
    latest.write_text(json.dumps([row]))
    page.write_text("before\n<!-- cpu -->\nold\n<!-- /cpu -->\nafter\n")
    monkeypatch.setattr(report, "LATEST", latest)
    monkeypatch.setattr(report, "RESULTS", page)
    monkeypatch.setattr(report, "TABLES", (("cpu", latest, report.cpu_table),))
    monkeypatch.setattr(report, "versions", lambda: "Versions: none.")
    report.main([])
    text = page.read_text()
    assert f"| W3 | **{system}** | 2.000 | 0.50 | 1.0 | 4.0 | 12.0 | 8 | yes |" in text
    assert text.startswith("before\n<!-- cpu -->\n`make bench`")
    assert text.endswith("<!-- /cpu -->\nafter\n")
    assert "old" not in text
    assert f"Not measured: {min(set(SYSTEMS) - {system})}" in text


@pytest.mark.parametrize("mark", [mark for mark, _, _ in report.TABLES])
def test_a_table_has_the_columns_of_the_results_page(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (backbones, clients, gpu, memory, overlap, report, scaling):
        monkeypatch.setattr(module, "LATEST", tmp_path)
    monkeypatch.setattr(report, "versions", lambda: "Versions: none.")
    (table,) = (table for name, _, table in report.TABLES if name == mark)
    published = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", report.RESULTS.read_text(), flags=re.DOTALL)
    no_rows: Any = {} if mark in ("clients", "overlap") else []
    assert _columns(table(no_rows, "")) == _columns(published[0])


def _columns(table: str) -> list[str]:
    lines = table.splitlines()
    return lines[2:4]  # after the line of the command and an empty one


def test_the_gpu_table_names_gpu_and_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row: dict[str, Any] = {
        "work": "cifar", "program": "graph", "deterministic": False, "rounds_per_second": 50.0,
        "clients_per_second": 2500.0, "examples_per_second": 125_000.0, "start_seconds": 2.0,
        "peak_bytes": 3 * 2**30, "gpu": "Card", "torch": "2.11", "mfu": 0.25,
    }  # fmt: skip
    plain = {
        "work": "plain_t5", "program": "compiled", "batch": 8, "examples_per_second": 250.0, "mfu": None,
        "start_seconds": 30.0, "peak_bytes": 2**30,
    }  # fmt: skip
    vt5 = row | {"work": "vt5_full", "examples_per_second": 125.0}
    gpu.add_ratios([vt5], [plain])
    monkeypatch.setattr(gpu, "LATEST", tmp_path)
    text = report.gpu_table([row, row | {"program": "pfl-research × 1", "deterministic": None}, vt5, plain], "")
    assert "Card, torch 2.11" in text
    assert "| cifar | graph | false | 50.0 | 2500 | 125000 | 25.0 % | – | 2.0 | 3.0 |" in text
    assert "| vt5_full | graph | false | 50.0 | 2500 | 125 | 25.0 % | 0.50 | 2.0 | 3.0 |" in text
    assert "| plain T5, batch 8 | compiled | – | – | – | 250 | – | – | 30.0 | 1.0 |" in text
    assert "| cifar | pfl-research × 1 | – | 50.0 |" in text


def test_overlap_is_the_median_of_the_ratios_of_turns() -> None:
    """Medians of 2, 4, 4, 8 and of 1, 3, 2, 4: 4 and 2.5; of the turns 3 and 2, 6 and 3: ratios of 2/3 and 1/2."""

    def run(seconds: list[float], result: str = "a") -> dict[str, Any]:
        return {"seconds": seconds, "waited": 1.0, "busy": 0.5, "result": [result]}

    turns = [[run([2.0, 4.0]), run([1.0, 3.0])], [run([4.0, 8.0]), run([2.0, 4.0])]]
    row = overlap.row_of("few", turns)
    assert (row["seconds"], row["each"], row["same"]) == ([4.0, 2.5], [2.0 / 3.0, 0.5], True)
    assert row["ratio"] == pytest.approx(7.0 / 12.0)
    assert not overlap.row_of("few", [[run([2.0]), run([2.0], "b")]])["same"]
