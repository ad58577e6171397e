"""Metrics for Prometheus, read from the endpoint of a run and from the agent of a Ray cluster."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Stopping, experiment, run
from nodes import OWN_SESSION, cluster

from simfl import config
from simfl.cli import main
from simfl.errors import ConfigError
from simfl.experiment import Privacy, Prometheus, Tracking
from simfl.runs import tables
from simfl.session.callbacks import NullDisplay
from simfl.tracking.events import PoolLoad, TrackingEvent
from simfl.tracking.grafana import PANELS, dashboard, scrape_settings
from simfl.tracking.prometheus import SPECS, MetricSample, RunMetrics, check

ENDPOINT = Prometheus(port=0, through="endpoint")  # not auto: other tests may have joined a cluster
TRACKED = Tracking(prometheus=ENDPOINT)
SAMPLE = re.compile(r"^(?:ray_)?(simfl_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
Samples = dict[tuple[str, str], float]  # (name, the labels besides those of the run) -> value


def parsed(text: str) -> Samples:
    """Return the samples of a page of metrics."""
    own = ("experiment", "run", "score", "view", "activity", "worker")
    found = {}
    for name, labels, value in SAMPLE.findall(text):
        known = [f"{key}={content}" for key, content in LABEL.findall(labels) if key in own[2:]]
        found[name, ",".join(known)] = float(value)
    return found


def scraped(url: str) -> Samples:
    """Read the metrics at a URL."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return parsed(answer.read().decode())


@dataclass
class Scraping(NullDisplay):
    """A display that reads the endpoint after each round, as Prometheus would."""

    url: str = ""
    messages: list[str] = field(default_factory=list)
    pages: list[Samples] = field(default_factory=list)
    labels: set[tuple[str, str]] = field(default_factory=set)

    def message(self, text: str) -> None:
        self.messages.append(text)
        if found := re.search(r"metrics for Prometheus: (\S+)", text):
            self.url = found[1]

    def round_done(self, row: Any) -> None:
        self.pages.append(scraped(self.url))


def test_endpoint_shows_the_numbers_of_the_tables(tmp_path: Path) -> None:
    display = Scraping()
    run(experiment(rounds=3, tracking=TRACKED), tmp_path / "r", display=display)
    rows, last = list(tables.rows(tmp_path / "r" / "rounds.parquet")), display.pages[-1]
    assert [page["simfl_rounds_done", ""] for page in display.pages] == [1, 2, 3]
    for metric, column in (
        ("simfl_clients_total", "sampled"),
        ("simfl_clients_skipped_total", "skipped"),
        ("simfl_download_bytes_total", "download_bytes"),
        ("simfl_upload_bytes_total", "upload_bytes"),
        ("simfl_run_bytes", "total_bytes"),
    ):
        assert last[metric, ""] == sum(row[column] for row in rows), metric
    assert last["simfl_rounds_planned", ""] == 3
    assert last["simfl_loss", ""] == rows[-1]["loss"]
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert last["simfl_score", "score=accuracy"] == summary["final"]["accuracy"]
    assert last["simfl_clients_per_second", ""] > 0
    assert last["simfl_workers_ready", ""] == 1
    assert not [name for name, _ in last if name == "simfl_epsilon"]
    with pytest.raises(OSError, match="refused"):
        scraped(display.url)  # the endpoint ends with the run


def test_endpoint_listens_on_loopback_and_names_the_run(tmp_path: Path) -> None:
    display = Scraping()
    pages: list[str] = []
    display.round_done = lambda row: pages.append(urllib.request.urlopen(display.url).read().decode())  # type: ignore[method-assign]
    run(experiment(rounds=1, tracking=TRACKED), tmp_path / "my-run", display=display)
    assert display.url.startswith("http://127.0.0.1:")
    assert 'simfl_rounds_done{experiment="toy",run="my-run"} 1.0' in pages[0]


def test_next_free_port_is_used_and_reported(tmp_path: Path) -> None:
    display = Scraping()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run(experiment(rounds=1, tracking=Tracking(prometheus=replace(ENDPOINT, port=port))), tmp_path, display=display)
    assert f"(port {port} is in use)" in next(text for text in display.messages if "Prometheus" in text)


def test_results_do_not_depend_on_it(tmp_path: Path) -> None:
    run(experiment(rounds=2), tmp_path / "a")
    run(experiment(rounds=2, tracking=TRACKED), tmp_path / "b")
    first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in "ab")
    assert (first["weights_sha256"], first["final"]) == (second["weights_sha256"], second["final"])


def test_counters_count_from_the_last_start(tmp_path: Path) -> None:
    case = experiment(rounds=3, tracking=TRACKED)
    run(case, tmp_path / "r", display=Stopping(2))
    display = Scraping()
    run(case, tmp_path / "r", display=display, resume=True)
    rows = list(tables.rows(tmp_path / "r" / "rounds.parquet"))
    assert display.pages[-1]["simfl_rounds_done", ""] == 3
    assert display.pages[-1]["simfl_clients_total", ""] == rows[-1]["sampled"]
    assert display.pages[-1]["simfl_run_bytes", ""] == sum(row["total_bytes"] for row in rows)


PRIVATE = Privacy(unit="client", clip=1.0, noise_multiplier=1.0, delta=1e-3, min_clients=2)


@pytest.mark.parametrize(
    ("privacy", "shown"),
    [
        (PRIVATE, {"view=averages": 2.5}),
        (Privacy(**{**vars(PRIVATE), "view": "formula"}), {"view=averages": 2.5}),
        (Privacy(**{**vars(PRIVATE), "noise_seed": 1}), {}),
        (None, {}),
    ],
    ids=["claimed", "formula", "for tests", "none"],
)
def test_epsilon_is_shown_where_one_is_claimed(privacy: Privacy | None, shown: dict[str, float]) -> None:
    metrics = RunMetrics(experiment(privacy=privacy), "r", 0, lambda: PoolLoad(0, 0, 1, 1))
    row = dict.fromkeys(("phase", "sampled", "skipped", "download_bytes", "upload_bytes", "loss", "seconds"), 1)
    metrics.log(TrackingEvent(1, 2, {**row, "epsilon": 9.0, "epsilon_averages": 2.5, "epsilon_formula": 9.0}))
    found = {label(sample): sample.value for sample in metrics.samples() if sample.spec.name == "simfl_epsilon"}
    assert found == shown


def label(sample: MetricSample) -> str:
    """Return the labels of a sample besides those of the run."""
    return ",".join(f"{key}={value}" for key, value in sample.labels[2:])


@pytest.mark.parametrize(
    ("requested", "joined", "message"),
    [
        (Prometheus(through="ray"), False, "joins no Ray cluster that exports metrics"),
        (Prometheus(host="192.0.2.77"), False, "tracking.prometheus: cannot listen on 192.0.2.77:9464"),
        (Prometheus(host="no.such.host.invalid"), False, "cannot listen on no.such.host.invalid:9464"),
    ],
)
def test_what_cannot_be_offered_is_refused(requested: Prometheus, joined: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check(requested, joined)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'simfl[prometheus]'")):
        run(experiment(tracking=TRACKED), tmp_path / "r")
    assert not (tmp_path / "r").exists()


# Grafana


def expressions() -> list[str]:
    """Return every expression of the dashboard."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def test_every_panel_shows_metrics_that_exist() -> None:
    for expression in expressions():
        [name] = re.findall(r"\(ray_\)\?(\w+)", expression)
        spec = SPECS[name]
        assert ("rate(" in expression) == spec.is_counter, name
        [by] = re.findall(r"by \((.*?)\)", expression)
        assert set(by.split(", ")) == {"run", *spec.labels}, name


def test_every_metric_is_on_a_panel() -> None:
    assert {query.metric for panel in PANELS for query in panel.queries} == set(SPECS)


def test_command_writes_dashboard_and_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grafana", str(tmp_path / "g")]) == 0
    assert json.loads((tmp_path / "g" / "simfl.json").read_text()) == json.loads(json.dumps(dashboard()))
    assert (tmp_path / "g" / "prometheus.yml").read_text() == scrape_settings()
    assert main(["grafana", str(tmp_path / "g")]) == 2
    assert "this file exists" in capsys.readouterr().err


# Ray


@pytest.mark.slow
@pytest.mark.ray
def test_metrics_of_a_cluster_are_those_of_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "1000")
    (tmp_path / "e.yaml").write_text(config.dump(experiment(rounds=40, tracking=TRACKED)))
    with cluster(2) as found:
        words = ["run", str(tmp_path / "e.yaml"), "--out", str(tmp_path / "r"), "--address", found.address]
        process = subprocess.Popen(
            [sys.executable, "-m", "simfl", *words], env={**environment(), **OWN_SESSION}, cwd=Path(__file__).parents[1]
        )
        node = found.head_node
        url = f"http://{node.node_ip_address}:{node.metrics_export_port}/metrics"
        seen = wait_for(lambda: scraped(url), process)
        assert process.wait(120) == 0
    assert 0 < seen["simfl_rounds_done", ""] <= 40
    absent = {"simfl_epsilon", "simfl_gpu_utilization_ratio", "simfl_clients_skipped_total"}  # none, or no value but 0
    assert {name for name, _ in seen} >= set(SPECS) - absent


def environment() -> dict[str, str]:
    """Return the environment of a run that imports the modules of the tests."""
    folder = Path(__file__).parents[1]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(folder.parent)])}


def wait_for(scrape: Callable[[], Samples], process: subprocess.Popen[bytes]) -> Samples:
    """Return the first samples of a run that has finished a round."""
    while process.poll() is None:
        try:
            seen = scrape()
        except OSError:
            seen = {}
        if seen.get(("simfl_clients_total", ""), 0) > 0:
            return seen
        time.sleep(0.2)
    raise AssertionError("the run ended before its metrics were seen")
