"""A dashboard of Grafana for the metrics of `simfl.tracking.prometheus`, and settings of Prometheus that read them.

The metrics of a Ray cluster have names that begin with `ray_`. Every expression matches both names, so one dashboard
shows runs of one machine and of a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simfl.runs.folder import JsonObject

SCHEMA_VERSION = 39  # of Grafana 10 and later
WIDTH, HEIGHT = 8, 8  # of a panel, in Grafana's grid of 24 columns
FIRST_PORT, NUM_PORTS = 9464, 10  # of the endpoints that the settings of Prometheus name
RAY_TARGETS = "/tmp/ray/prom_metrics_service_discovery.json"  # which Ray writes on its head node
SOURCE = {"type": "prometheus", "uid": "${source}"}
RUN = 'run=~"$run"'


@dataclass(frozen=True)
class Query:
    """One query of a panel: a metric, perhaps its rate, summed by the labels that the legend shows."""

    metric: str
    legend: str = "{{run}}"
    rate: bool = False  # per second
    by: tuple[str, ...] = ("run",)
    scale: int = 1

    @property
    def expression(self) -> str:
        """Return the expression in PromQL."""
        series = f'{{__name__=~"(ray_)?{self.metric}",{RUN}}}'
        inner = f"rate({series}[$__rate_interval])" if self.rate else series
        value = f"{'sum' if self.rate else 'max'} by ({', '.join(self.by)}) ({inner})"
        return value if self.scale == 1 else f"{value} * {self.scale}"


@dataclass(frozen=True)
class Panel:
    """A chart with its queries; `unit` is one of Grafana's."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"


PANELS = (
    Panel("Finished rounds", (Query("simfl_rounds_done"), Query("simfl_rounds_planned", "{{run}}, planned"))),
    Panel("Scores", (Query("simfl_score", "{{run}}, {{score}}", by=("run", "score")),)),
    Panel("Training loss", (Query("simfl_loss"),)),
    Panel("Clients per second", (Query("simfl_clients_per_second"),)),
    Panel(
        "Bytes per second",
        (
            Query("simfl_download_bytes_total", "{{run}}, down", rate=True),
            Query("simfl_upload_bytes_total", "{{run}}, up", rate=True),
        ),
        "Bps",
    ),
    Panel("Bytes of the run", (Query("simfl_run_bytes"),), "bytes"),
    Panel("Epsilon spent", (Query("simfl_epsilon", "{{run}}, {{view}}", by=("run", "view")),)),
    Panel(
        "Tasks",
        (Query("simfl_tasks_queued", "{{run}}, queued"), Query("simfl_tasks_in_flight", "{{run}}, in flight")),
    ),
    Panel(
        "Workers", (Query("simfl_workers", "{{run}}, all"), Query("simfl_workers_ready", "{{run}}, ready"))
    ),
    Panel("Seconds of a round", (Query("simfl_round_seconds"),), "s"),
    Panel(
        "Where time goes",
        (Query("simfl_activity_seconds_total", "{{run}}, {{activity}}", rate=True, by=("run", "activity")),),
    ),
    Panel(
        "Workers busy", (Query("simfl_worker_busy_ratio", "{{run}}, {{worker}}", by=("run", "worker")),), "percentunit"
    ),
    Panel(
        "GPU utilization",
        (Query("simfl_gpu_utilization_ratio", "{{run}}, {{worker}}", by=("run", "worker")),),
        "percentunit",
    ),
    Panel(
        "Memory of workers",
        (Query("simfl_worker_memory_bytes", "{{run}}, {{worker}}", by=("run", "worker")),),
        "bytes",
    ),
    Panel(
        "Clients",
        (
            Query("simfl_clients_total", "{{run}}, trained", rate=True),
            Query("simfl_clients_skipped_total", "{{run}}, skipped", rate=True),
        ),
    ),
    Panel("Phase", (Query("simfl_phase"),)),
    Panel("Time of the last round", (Query("simfl_round_finished_timestamp_seconds", scale=1000),), "dateTimeFromNow"),
)  # fmt: skip


def dashboard() -> JsonObject:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "simfl",
        "title": "simfl",
        "tags": ["simfl"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def scrape_settings() -> str:
    """Return a file of settings for Prometheus: the endpoints of runs on this machine, and those of a Ray head."""
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in range(FIRST_PORT, FIRST_PORT + NUM_PORTS))
    return "\n".join(
        (
            "# Settings of Prometheus for runs of simfl; written by `simfl grafana`.",
            "global: {scrape_interval: 5s}",
            "scrape_configs:",
            "  - job_name: simfl  # runs on this machine; a port without a run is shown as down",
            "    static_configs:",
            f"      - targets: [{targets}]",
            "  - job_name: ray  # a Ray cluster whose head node is this machine",
            "    file_sd_configs:",
            f"      - files: [{RAY_TARGETS}]",
            "",
        )
    )


def _variables() -> Sequence[JsonObject]:
    """Return the variables of the dashboard: the data source, and the runs that are shown."""
    names = '{__name__=~"(ray_)?simfl_rounds_done"}'
    return (
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "run", "type": "query", "label": "Run", "datasource": SOURCE, "refresh": 2, "multi": True,
            "includeAll": True, "allValue": ".*", "query": {"query": f"label_values({names}, run)", "refId": "run"},
        },
    )  # fmt: skip


def _panel(number: int, panel: Panel) -> JsonObject:
    per_row = 24 // WIDTH
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "stat" if panel.unit == "dateTimeFromNow" else "timeseries",
        "datasource": SOURCE,
        "gridPos": {"x": WIDTH * (number % per_row), "y": HEIGHT * (number // per_row), "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend}
            for i, query in enumerate(panel.queries)
        ],
    }
