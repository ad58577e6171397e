"""The report's best setting of each method, predictions on pages, and figures as files."""

from __future__ import annotations

import importlib
import io
import re
import webbrowser
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import experiment, run
from fakes_documents import Pages
from PIL import Image

from simfl.cli import main
from simfl.errors import ConfigError
from simfl.reports import best
from simfl.reports.chart import LineSeries, heat_map, line_chart
from simfl.reports.export import standalone_figures, write_figures
from simfl.reports.page import figure
from simfl.reports.pages import find_span, predictions_on_pages
from simfl.reports.results import RunResult
from simfl.reports.statistical_tests import Difference
from simfl.reports.table import Comparison, compare


@dataclass(frozen=True)
class Scored(RunResult):
    """A result with given scores."""

    given: float = 0.0

    @property
    def scores(self) -> dict[str, float]:  # a property instead of a cached one
        return {"anls": self.given}


def grid(rows: Sequence[tuple[str, float, float]]) -> Comparison:
    """Return a comparison of methods, learning rates and scores."""
    results = [
        Scored(str(i), {"variant": method, "local.learning_rate": rate, "seed": 1}, Path(), "completed", given=score)
        for i, (method, rate, score) in enumerate(rows)
    ]
    return compare(results, ["anls"])


GRID = (("fedavg", 0.1, 0.5), ("fedavg", 0.2, 0.6), ("fedprox", 0.1, 0.7), ("fedprox", 0.2, 0.4), ("moon", 0.1, 0.2))


def test_the_best_setting_of_each_method_is_compared_with_that_of_the_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comparison = grid(GRID)
    found = {
        one.method: (one.row.varied["local.learning_rate"], one.settings) for one in best.best_of_methods(comparison)
    }
    assert found == {"fedavg": (0.2, 2), "fedprox": (0.1, 2), "moon": (0.1, 1)}
    monkeypatch.setattr(best, "paired_test", lambda row, reference, metric: Difference(0.1, 0.01, 0.02, 1, 9))
    text, notes = best.best_table(comparison)
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", line) for line in re.findall(r"<tr>(.*?)</tr>", text)][1:]
    assert [line[0] for line in cells] == ["fedavg", "fedprox", "moon"]
    assert [line[-1] for line in cells] == ["baseline", "+0.1 *", "−0.4 *"]
    assert "corrected for the number of methods" in notes[1]


def test_without_several_settings_of_a_method_there_is_no_such_table() -> None:
    assert best.best_table(grid([("a", 0.1, 0.5), ("b", 0.1, 0.6)])) == ("", ())
    assert best.best_table(grid([("a", 0.1, 0.5), ("a", 0.2, 0.6)])) == ("", ())


CHARTS = figure("A & b", line_chart([LineSeries("x", [(0, 1), (1, 2)]), LineSeries("y", [(0, 2), (1, 1)])], "r", "s"))


def test_figures_stand_alone(tmp_path: Path) -> None:
    heat = figure("A & b", heat_map(["p"], ["q", "r"], np.array([[1, 4]]), "counts"))
    found = standalone_figures(f"<main>{CHARTS}{heat}</main>")
    assert list(found) == ["a_b", "a_b_2"]
    for svg in found.values():
        ET.fromstring(svg)
        assert not re.search(r"var\(|calc\(", svg)
    assert found["a_b"].count('class="label"') == 2  # the legend
    for mark in (
        ".line.c0{fill:none;stroke:#0072b2",
        ".mark.c1{fill:#d55e00",
        ".cell{fill:#0072b2",
        "text{fill:#57606a",
    ):
        assert mark in found["a_b"]
    assert re.findall(r'fill-opacity="([\d.]+)"', found["a_b_2"]) == ["0.520", "1.000"]
    paths = write_figures(CHARTS, tmp_path, ("svg",))
    assert [path.name for path in paths] == ["a_b.svg"]
    with pytest.raises(ConfigError, match="the report has no figures yet"):
        write_figures("<main></main>", tmp_path, ("svg",))


def test_figures_become_png_and_pdf(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    write_figures(CHARTS, tmp_path, ("png", "pdf"))
    image = Image.open(io.BytesIO((tmp_path / "a_b.png").read_bytes()))
    assert image.width > 1000
    colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert (0, 114, 178) in colours  # the first series
    assert (0, 0, 0) not in colours  # of a path without a style
    assert (tmp_path / "a_b.pdf").read_bytes().startswith(b"%PDF")


def test_a_missing_converter_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ConfigError, match=r"pip install 'simfl\[figures\]'"):
        write_figures(CHARTS, tmp_path, ("pdf",))


@pytest.mark.parametrize(
    ("text", "span"), [("12.50 EUR", range(1, 3)), ("total", range(1)), ("50", range(0)), ("", range(0))]
)
def test_words_of_an_answer_are_found(text: str, span: range) -> None:
    assert find_span(["Total", "12.50", "EUR"], text) == span


def test_predictions_are_drawn_on_their_pages() -> None:
    split = Pages().load(Path()).splits["valid"]
    rows = [
        {"step": 1, "split": "valid", "row": row, "question": "what number?", "predicted_answer": "absent",
         "answers": split.examples["answers"][row].as_py()}
        for row in range(2)
    ]  # fmt: skip
    samples = SimpleNamespace(to_pylist=lambda: rows)
    context = SimpleNamespace(split=lambda name: split)
    result: Any = SimpleNamespace(
        run=SimpleNamespace(samples=lambda: samples), whole_run=SimpleNamespace(context=context)
    )
    text = predictions_on_pages(result)
    assert text.count("<figure>") == 2
    assert text.count('href="data:image/jpeg;base64,') == 2
    assert text.count('class="line c0"') == 2  # the answer is one word, and the prediction is not on the page
    assert text.count("prediction not found on the page") == 2


def test_a_report_is_opened_and_its_figures_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(experiment(rounds=1), tmp_path / "r")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not opened.append(address))
    assert main(["report", str(tmp_path / "r"), "--open", "--figures", str(tmp_path / "figures")]) == 0
    assert opened == [(tmp_path / "r" / "report.html").as_uri()]
    assert list((tmp_path / "figures").glob("*.svg"))
    assert main(["report", str(tmp_path / "r"), "--form", "pdf"]) == 2
    assert "--form: has no effect without --figures FOLDER" in capsys.readouterr().err
