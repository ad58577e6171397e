"""The HTML report: one file without downloads, with the results of the runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from fakes import Toy, experiment, run

from simfl.algorithms.fedavg import FedAvg
from simfl.cli import main
from simfl.data.base import Dataset
from simfl.errors import DataError, RunError
from simfl.experiment import Evaluate, Experiment
from simfl.json_files import JsonLines
from simfl.protocol import AggregatedUpdates, Server
from simfl.reports.chart import Bar, LineSeries, Scale, bar_chart, dot_strips, format_number, heat_map, line_chart
from simfl.reports.curves import run_curves, split_into_charts
from simfl.reports.final_scores import axis_figures, search_figures
from simfl.reports.page import DARK, LIGHT
from simfl.reports.report import report
from simfl.reports.results import RunResult, results_of
from simfl.reports.table import Comparison, ComparisonRow, compare
from simfl.reports.time import time_section
from simfl.runs.folder import HETEROGENEITY, write_json
from simfl.runs.results import Run
from simfl.sweeps import sweep
from simfl.sweeps.file import Point, Sweep
from simfl.sweeps.pool import SweepPlacement

VOID = {"meta", "br", "hr"}


class PageParser(HTMLParser):
    """A parser that checks that every element is closed; it collects the text and all links to other files."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.text, self.fetched = list[str](), "", list[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [f"{tag} {key}" for key, value in attributes if key in ("src", "srcset") or tag == "link"]
        self.fetched += [value for key, value in attributes if key == "href" and value and not value.startswith("#")]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Ignore an element that closes itself."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "s"
    base = experiment(rounds=2, evaluate=Evaluate(models=("global", "local"), samples=3))
    points = [
        Point(
            f"{rate}-{seed}",
            {"rate": name, "seed": seed},
            _named(base, rate, seed),
        )
        for rate, name in ((0.1, "<fast>"), (0.01, "slow"))
        for seed in (1, 2)
    ]
    sweep.run(Sweep("s", tuple(points)), folder, SweepPlacement("inline"))
    return folder


def _named(base: Experiment, rate: float, seed: int) -> Experiment:
    phase = base.phases[0]
    phases = (replace(phase, local=replace(phase.local, learning_rate=rate)),)
    return replace(base, name=f"{rate}-{seed}", seed=seed, phases=phases)


def test_the_report_is_one_file_without_downloads(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(swept), "--title", "Rates & co"]) == 0
    assert capsys.readouterr().out == f"{swept / 'report.html'} written\n"
    text = (swept / "report.html").read_text()
    page = PageParser()
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert "<script" not in text
    assert "url(" not in text
    assert "Rates & co" in page.text
    for title in ("Comparison", "Learning", "Bytes", "Clients", "Partition", "Time", "Predictions", "Commands"):
        assert f"<h2>{title}</h2>" in text
    assert "<h2>Privacy</h2>" not in text  # no epsilon was spent
    assert "<fast>" in page.text  # escaped in the source
    assert f"simfl run {swept}/runs/0.1-1/experiment.yaml" in page.text


def test_a_single_run_can_be_reported(swept: Path, tmp_path: Path) -> None:
    assert main(["report", str(swept / "runs" / "0.1-1"), "--out", str(tmp_path / "one.html")]) == 0
    text = (tmp_path / "one.html").read_text()
    assert "<h2>Learning</h2>" in text
    assert "Busy share of each round" in text
    assert "GB over rounds" in text  # each worker's memory


def test_the_figure_of_the_partition_needs_no_data(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of an older simfl has no stored counts: they are made from its data, if these are on the machine."""
    folder = shutil.copytree(swept / "runs" / "0.1-1", tmp_path / "r")
    stored = _section("Partition", folder)
    assert "examples by client and label" in stored
    assert len(json.loads((folder / HETEROGENEITY).read_text())["value_counts"]["heat"]) == len(Toy().sizes)
    (folder / HETEROGENEITY).unlink()
    assert _section("Partition", folder) == stored
    monkeypatch.setattr(Toy, "load", _refuse)
    assert "values of the data are not known here" in _section("Partition", folder)
    write_json(folder / HETEROGENEITY, {"value_counts": None})
    assert "values of the data are not known here" in _section("Partition", folder)
    (folder / HETEROGENEITY).write_text("{}")
    with pytest.raises(RunError, match=r"heterogeneity\.json"):
        _section("Partition", folder)


def _refuse(self: Toy, cache: Path) -> Dataset:
    raise DataError("these data are not here")


def _section(title: str, folder: Path) -> str:
    """Return the HTML of a section of the report on a run."""
    text = report(results_of([folder]), "r")
    return text[text.index(f"<h2>{title}</h2>") :].partition("<h2>Time</h2>")[0]


def test_the_report_shows_busy_and_idle_time_of_each_worker(tmp_path: Path) -> None:
    """Two rounds of 10 s: worker 0 is busy for 9 s and 7 s, worker 1 joins in the second and is busy for 4 s."""
    began = {"time": 100.0, "event": "started"}
    rounds = [
        {"time": 110.0, "event": "round", "step": 1, "seconds": 10.0, "busy": [9.0], "memory": [1]},
        {"time": 125.0, "event": "round", "step": 2, "seconds": 10.0, "busy": [7.0, 4.0], "memory": [1, 1]},
    ]
    rounds[1]["ended"] = 120.0  # its scores were awaited longer
    JsonLines(tmp_path / "log.jsonl").append(began, *rounds)
    text = time_section([RunResult("one", {}, tmp_path, "completed")])
    rows = re.findall(r"<tr><td>(\d)</td>(.*?)</tr>", text)
    cells = {name: re.findall(r">([^<]+)</td>", row) for name, row in rows}
    assert cells == {"0": ["2", "16.0 s", "4.0 s", "80%"], "1": ["1", "4.0 s", "6.0 s", "40%"]}
    assert "round 2: 4.0 s busy" in text
    assert "<figcaption>Workers in all rounds</figcaption>" in text
    both = time_section([RunResult(name, {}, tmp_path, "completed") for name in ("one", "two")])
    assert "<figcaption>Workers in all rounds: two</figcaption>" in both  # with several runs, charts name theirs


@pytest.mark.parametrize(("seconds", "ticks"), [
    (170.0, ["0", "1 min", "2 min"]),  # not every 50 or 100 seconds
    (50.0, ["0", "15 s", "30 s", "45 s"]),
    (0.4, ["0", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]),
    (9000.0, ["0", "30 min", "1 h", "1 h 30 min", "2 h", "2 h 30 min"]),
])  # fmt: skip
def test_a_time_axis_has_ticks_at_round_durations(seconds: float, ticks: list[str]) -> None:
    text = bar_chart([Bar("worker 0", 0.0, seconds, "all of it")], "time")
    shown = [tick for tick in re.findall(r">([^<>]+)</text>", text) if tick not in ("worker 0", "time")]
    if max(map(len, ticks)) > 7:  # long labels need more distance
        assert set(shown) < set(ticks)
    else:
        assert shown == ticks


def test_the_curves_match_the_tables(swept: Path) -> None:
    result = RunResult("0.1-1", {}, swept / "runs" / "0.1-1", "completed")
    found, there = run_curves(result), Run(result.folder)
    assert found.bytes == {
        0: 0,
        1: there.rounds()["total_bytes"][0].as_py(),
        2: sum(there.rounds()["total_bytes"].to_pylist()),
    }
    assert found.scores["accuracy"][2] == there.summary["final"]["accuracy"]
    assert found.scores["local.accuracy"][0] == there.summary["initial"]["local.accuracy"]


@dataclass(frozen=True)
class Reporting(FedAvg):
    """FedAvg that reports the number of client updates of each round."""

    def metrics(self, server: Server, aggregated: AggregatedUpdates) -> dict[str, float]:
        return {"updates": float(aggregated.num_sampled)}


def test_metrics_that_an_algorithm_reports_are_drawn_by_round(tmp_path: Path) -> None:
    run(experiment(Reporting(), rounds=2), tmp_path / "r")
    found = run_curves(RunResult("r", {}, tmp_path / "r", "completed"))
    assert found.metrics == {"updates": {1: 7.0, 2: 7.0}}
    assert main(["report", str(tmp_path / "r")]) == 0
    assert "<figcaption>updates</figcaption>" in (tmp_path / "r" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser_nothing_overflows_and_the_background_follows_the_system(
    swept: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium on the path")
    assert main(["report", str(swept), "--out", str(tmp_path / "r.html")]) == 0
    told = "parent.document.body.dataset.told=document.documentElement.scrollWidth+' '+innerWidth+' '"
    told += "+getComputedStyle(document.body).backgroundColor"
    inner = (tmp_path / "r.html").read_text().replace("default-src 'none';", "") + f"<script>{told}</script>"
    page = tmp_path / "told.html"  # a window is never as narrow as a phone; a frame in it is
    page.write_text(f'<body><iframe width="{width}" height="900" srcdoc="{escape(inner)}"></iframe></body>')
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    shown = subprocess.run([browser, *flags, scheme, page.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'data-told="(\d+) (\d+) (.*?)"', shown.stdout)
    assert found is not None
    assert int(found[1]) <= int(found[2]) <= width
    assert found[3] == ("rgb(18, 21, 26)" if dark else "rgb(255, 255, 255)")


def test_ticks_are_round_and_inside_the_scale() -> None:
    assert Scale(0.0, 1.0, 0, 100).ticks() == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Scale(0.03, 0.37, 0, 100).ticks() == pytest.approx([0.1, 0.2, 0.3])
    assert Scale.over([5.0, 5.0], 0, 100)(5.0) == pytest.approx(50.0)
    assert format_number(0.0) == "0"


def test_series_differ_in_colour_dash_and_marker() -> None:
    text = line_chart([LineSeries(str(i), [(0.0, i), (1.0, i + 1.0)]) for i in range(8)], "x", "y")
    drawn = re.findall(r'<path d="M[\d. L-]+" class="line (c\d)" (.*?)/>', text)
    assert len({colour for colour, _ in drawn}) == 8
    assert len({dash for _, dash in drawn}) == 2  # with four markers each


def test_charts_without_data_are_empty_and_names_are_escaped() -> None:
    assert line_chart([], "x", "y") == ""
    assert "a&lt;b" in dot_strips([("a<b", [0.1, 0.2])], "score")
    assert "&lt;i&gt;" in heat_map(["<i>"], ["v"], np.array([[3]]), "examples")


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_colour_has_enough_contrast_with_the_background() -> None:
    """WCAG 2 requires 3 to 1 for graphics."""
    assert min(contrast(colour, "#ffffff") for colour in LIGHT) >= 3
    assert min(contrast(colour, "#12151a") for colour in DARK) >= 3


def test_many_rows_are_divided_among_charts() -> None:
    made = [ComparisonRow({"k": k, "c": c, "t": t}, (), {}) for k in range(3) for c in range(3) for t in range(3)]
    found = list(split_into_charts(("k", "c", "t"), made))
    assert [len(group) for _, group, _ in found] == [3] * 9
    assert found[0][0] == ["k 0", "c 0"]
    assert found[0][2] == ("t",)


def test_rows_are_tested_against_the_reference_of_the_sweep_file(swept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    shutil.copytree(swept, folder)
    said = json.loads((folder / "sweep.json").read_text())
    write_json(folder / "sweep.json", {"runs": said["runs"], "table": {"metrics": [], "against": "slow"}})
    for place, line in ((swept, "differs from rate &lt;fast&gt;"), (folder, "differs from rate slow")):
        assert main(["report", str(place)]) == 0
        assert line in (place / "report.html").read_text()


def test_final_scores_are_drawn_over_each_setting_with_the_clients_that_are_scored(swept: Path) -> None:
    assert main(["report", str(swept)]) == 0
    text = (swept / "report.html").read_text()
    assert "<figcaption>accuracy over rate</figcaption>" in text
    assert "<small>10 of 10 clients</small>" in text  # of the clients' own models
    assert "<figcaption>10 clients by group</figcaption>" in text
    assert '<p class="note">rate, seed</p>' in text  # runs are named by what differs
    bars = text.split("<figcaption>Where time went</figcaption>")[1].split("</figure>")[0]
    for name in ("&lt;fast&gt;, 1", "&lt;fast&gt;, 2", "slow, 1", "slow, 2"):
        assert f">{name}</text>" in bars


def rows_of(values: Sequence[object], scores: Sequence[float]) -> Comparison:
    """Return a comparison of runs with these values of a setting."""
    results = [
        FakeScored(str(i), {"v": v}, Path(str(i)), "completed", given=s)
        for i, (v, s) in enumerate(zip(values, scores, strict=True))
    ]
    return compare(results, ["anls"])


@dataclass(frozen=True)
class FakeScored(RunResult):
    """A result with one score."""

    given: float = 0.0

    @property
    def scores(self) -> dict[str, float]:  # a property instead of a cached one
        return {"anls": self.given}


def test_a_setting_over_several_decades_has_a_logarithmic_axis() -> None:
    text = axis_figures(rows_of([0.001, 0.01, 0.1], [0.1, 0.3, 0.2]))
    assert re.findall(r"<text [^>]*>(0\.\d+1)</text>", text) == ["0.001", "0.01"]
    path = re.search(r'<path d="M([\d. L]+)" class="line c0"', text)
    assert path is not None
    places = [float(pair.split()[0]) for pair in path[1].split("L")]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)
    assert "<circle" in axis_figures(rows_of(["a", "b", "a"], [0.1, 0.3, 0.2]))  # strips of dots
    assert axis_figures(rows_of([1, 1], [0.1, 0.2])) == ""


def test_a_search_is_drawn_with_the_best_score_so_far() -> None:
    scores = [0.2, 0.5, 0.4, 0.9]
    results = [
        FakeScored(
            f"trial-{i}",
            {"trial": f"trial-{i}", "rate": i},
            Path(str(i)),
            "stopped" if i == 3 else "completed",
            given=s,
        )
        for i, s in enumerate(scores)
    ]
    search = {"metric": "anls", "direction": "maximize", "best": "trial-1", "importance": {"rate": 0.75, "size": 0.25}}
    text = search_figures(results, search)
    assert "Best: trial-1, anls 0.5, with rate 1." in text
    assert text.count("hollow c0") == 1
    line = re.search(r'<path d="M([\d. L]+)" class="line c1"', text)
    assert line is not None
    heights = [float(pair.split()[1]) for pair in line[1].split("L")]
    assert len(heights) == 3
    assert heights[0] > heights[1] == heights[2]  # the line stays at the best of the completed trials
    assert "<td>rate</td><td class=n>75%</td>" in text


def test_runs_of_several_sweeps_keep_apart(swept: Path, tmp_path: Path) -> None:
    shutil.copytree(swept, tmp_path / "other")
    found = results_of([swept, tmp_path / "other"])
    assert len({run.label for run in found}) == len(found) == 8
    assert {run.varied["sweep"] for run in found} == {"s", "other"}
