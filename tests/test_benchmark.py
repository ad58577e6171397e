"""What `make bench` compares is the same work."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import bare, bench, engine, handover, overlap, report
from benchmarks.result import distance, read_result
from benchmarks.systems import SYSTEMS


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_the_bare_loop_and_the_engine_end_at_the_same_weights(mode, tmp_path):
    file, alone, engines = tmp_path / "work.npz", tmp_path / "bare.npz", tmp_path / "engine.npz"
    handover.write("w2", file)
    bare.main(str(file), str(alone), 1)
    engine.main("w2", str(engines), "inline", 1, mode)
    assert distance(read_result(engines), read_result(alone)) < 1e-5


def test_a_row_has_the_fields_that_are_promised_and_other_work_is_told_from_the_same():
    """Rounds of 2 and 4 s beside the bare loop's 1 and 1: ratios 2 and 4, median 3; weights half a way off."""
    same = bench.Timed(50, [bench.Sample(_result([1.0, 1.0], 1.0), 3.0, 9.0, 7)])
    other = bench.Timed(50, [bench.Sample(_result([2.0, 4.0], 1.5), 4.0, 12.0, 8)])
    first, second = bench.rows("W1", {bench.REFERENCE: same, "other": other})
    assert first["same_work"]
    assert second == {
        "work": "W1", "system": "other", "seconds_per_round": 3.0, "clients_per_second": 50 / 3.0,
        "ratio_to_bare_loop": 3.0, "startup_seconds": 4.0, "total_seconds": 12.0, "peak_rss_bytes": 8,
        "same_work": False,
    }  # fmt: skip


def _result(seconds, end):
    return bench.Result(np.array(seconds), 1.0, np.array([end]), np.array([0.0]))


def test_the_results_page_has_a_row_for_each_row_measured(tmp_path, monkeypatch):
    row = {
        "work": "W3", "system": "simfl, inline loop", "seconds_per_round": 2.0, "clients_per_second": 1.0,
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
    assert "| W3 | **simfl, inline loop** | 2.000 | 0.50 | 1.0 | 4.0 | 12.0 | 8 | yes |" in text
    assert text.startswith("before\n<!-- cpu -->\n`make bench`")
    assert text.endswith("<!-- /cpu -->\nafter\n")
    assert "old" not in text
    assert f"Not measured: {min(set(SYSTEMS) - {'simfl, inline loop'})}" in text


def test_the_gpu_table_names_card_and_program(tmp_path, monkeypatch):
    row = {
        "work": "cifar", "program": "graph", "deterministic": False, "rounds_per_second": 50.0,
        "clients_per_second": 2500.0, "examples_per_second": 125_000.0, "start_seconds": 2.0,
        "peak_bytes": 3 * 2**30, "gpu": "Card", "torch": "2.11",
    }  # fmt: skip
    monkeypatch.setattr(report.gpu, "LATEST", tmp_path)
    text = report.gpu_table([row], "")
    assert "Card, torch 2.11" in text
    assert text.endswith("| cifar | graph | fast | 50.0 | 2500 | 125000 | 2.0 | 3.0 |")


def test_overlap_is_the_median_of_the_ratios_of_turns():
    """Medians of 2, 4, 4, 8 and of 1, 3, 2, 4: 4 and 2.5; of the turns 3 and 2, 6 and 3: ratios of 2/3 and 1/2."""

    def half(seconds, result="a"):
        return {"seconds": seconds, "waited": 1.0, "busy": 0.5, "result": [result]}

    turns = [[half([2.0, 4.0]), half([1.0, 3.0])], [half([4.0, 8.0]), half([2.0, 4.0])]]
    row = overlap.row_of("few", turns)
    assert (row["seconds"], row["each"], row["same"]) == ([4.0, 2.5], [2.0 / 3.0, 0.5], True)
    assert row["ratio"] == pytest.approx(7.0 / 12.0)
    assert not overlap.row_of("few", [[half([2.0]), half([2.0], "b")]])["same"]
