"""Metrics of a running run for Prometheus: an HTTP endpoint of this process, or the metrics of a Ray cluster.

Counters count from the last start of the run, as Prometheus expects of a process; use `rate` and `increase`. Every
metric carries the labels `run`, the name of the run folder, and `experiment`. Ray puts `ray_` before each name.
"""

from __future__ import annotations

import errno
import importlib.util
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from simfl.errors import ConfigError
from simfl.evaluation.headlines import headlines
from simfl.experiment import Experiment, Prometheus
from simfl.runs.folder import JsonObject
from simfl.runs.tables import TableRow
from simfl.tracking.events import PoolLoad, TrackingEvent

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

PORTS = 100  # number of ports that are tried, from the given one
PUSH_SECONDS = 2.0  # between two updates of Ray's metrics
LOOPBACK = ("127.", "::1", "localhost")
RUN_LABELS = ("run", "experiment")


@dataclass(frozen=True)
class MetricSpec:
    """Name and meaning of a metric; `labels` are those besides `RUN_LABELS`."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False


@dataclass(frozen=True)
class MetricSample:
    """A value of a metric; `labels` includes those of the run."""

    spec: MetricSpec
    labels: tuple[tuple[str, str], ...]
    value: float


Push = Callable[[Iterable[MetricSample]], None]  # sends samples to Ray's metrics


@dataclass(frozen=True)
class MetricSource:
    """Source of the metrics that events do not hold, and their way to Ray."""

    load: Callable[[], PoolLoad]  # called from another thread
    push: Push | None = None  # None: the process has joined no cluster of Ray that exports metrics


SPECS = {
    spec.name: spec
    for spec in (
        MetricSpec("simfl_rounds_planned", "Rounds of the run in all phases"),
        MetricSpec("simfl_rounds_done", "Finished rounds of the run"),
        MetricSpec("simfl_phase", "Phase of the last finished round, from 0"),
        MetricSpec("simfl_round_seconds", "Seconds of the last round"),
        MetricSpec("simfl_round_finished_timestamp_seconds", "Time at which the last round ended"),
        MetricSpec("simfl_clients_per_second", "Client updates per second in the last round"),
        MetricSpec("simfl_clients_total", "Client updates since the start, skipped ones included", is_counter=True),
        MetricSpec("simfl_clients_skipped_total", "Client updates that failed and were skipped", is_counter=True),
        MetricSpec("simfl_download_bytes_total", "Encoded bytes from server to clients", is_counter=True),
        MetricSpec("simfl_upload_bytes_total", "Encoded bytes from clients to server", is_counter=True),
        MetricSpec("simfl_run_bytes", "Encoded bytes in both directions in all rounds of the run"),
        MetricSpec("simfl_epsilon", "Privacy budget spent, of runs that claim differential privacy", ("view",)),
        MetricSpec("simfl_loss", "Mean training loss of the last round"),
        MetricSpec("simfl_score", "Score of the last evaluation, named as in the summary", ("score",)),
        MetricSpec("simfl_activity_seconds_total", "Seconds by activity, over all workers", ("activity",), True),
        MetricSpec("simfl_tasks_queued", "Tasks that wait for a worker"),
        MetricSpec("simfl_tasks_in_flight", "Tasks that were sent to a worker and have not returned"),
        MetricSpec("simfl_workers", "Workers, including those that start"),
        MetricSpec("simfl_workers_ready", "Workers that take tasks"),
        MetricSpec("simfl_worker_busy_ratio", "Share of the last round in which a worker was busy", ("worker",)),
        MetricSpec("simfl_worker_memory_bytes", "Peak memory of a worker's GPU or process", ("worker",)),
        MetricSpec("simfl_gpu_utilization_ratio", "Share of time in which a worker's GPU computed", ("worker",)),
    )
}


class RunMetrics:
    """The current values of all metrics of a run; a tracker that other threads may read."""

    def __init__(self, experiment: Experiment, run: str, step: int, load: Callable[[], PoolLoad]) -> None:
        """Start with no values but the numbers of rounds.

        Args:
            experiment: The experiment.
            run: The name of the run folder.
            step: Finished rounds of a resumed run.
            load: Returns the current tasks and workers.
        """
        self._run, self._load, self._lock = (("run", run), ("experiment", experiment.name)), load, Lock()
        self._values: dict[tuple[MetricSpec, tuple[tuple[str, str], ...]], float] = {}
        self._view, self._first_split = claimed_view(experiment), experiment.evaluate.splits[0]
        for spec in SPECS.values():
            if spec.is_counter and not spec.labels:
                self._add(spec.name, 0)
        self._set("simfl_rounds_planned", sum(phase.rounds for phase in experiment.phases))
        self._set("simfl_rounds_done", step)

    def samples(self) -> list[MetricSample]:
        """Return the current values."""
        load = self._load()
        with self._lock:
            for name, value in (
                ("simfl_tasks_queued", load.queued),
                ("simfl_tasks_in_flight", load.in_flight),
                ("simfl_workers", load.workers),
                ("simfl_workers_ready", load.ready),
            ):
                self._set(name, value)
            return [MetricSample(spec, labels, value) for (spec, labels), value in self._values.items()]

    def log(self, event: TrackingEvent) -> None:
        """Take the values of a round, or of the evaluation before the first."""
        with self._lock:
            self._set("simfl_rounds_done", event.step)
            self._set("simfl_run_bytes", event.bytes)
            for name, score in headlines(event.evaluations, self._first_split).items():
                self._set("simfl_score", score.value, score=name)
            if event.row:
                self._log_round(event, event.row)

    def finish(self, summary: JsonObject, evaluations: list[TableRow]) -> None:
        """Do nothing: the last round has been logged."""

    def _log_round(self, event: TrackingEvent, row: TableRow) -> None:
        self._set("simfl_phase", row["phase"])
        self._set("simfl_round_seconds", row["seconds"])
        self._set("simfl_round_finished_timestamp_seconds", event.ended)
        self._set("simfl_clients_per_second", row["sampled"] / max(row["seconds"], 1e-9))
        self._add("simfl_clients_total", row["sampled"])
        self._add("simfl_clients_skipped_total", row["skipped"])
        self._add("simfl_download_bytes_total", row["download_bytes"])
        self._add("simfl_upload_bytes_total", row["upload_bytes"])
        if row["loss"] is not None:
            self._set("simfl_loss", row["loss"])
        if self._view and row.get(f"epsilon_{self._view}") is not None:
            self._set("simfl_epsilon", row[f"epsilon_{self._view}"], view=self._view)
        for name, seconds in event.timings.items():
            self._add("simfl_activity_seconds_total", seconds, activity=name)
        for worker, busy in enumerate(event.busy):
            self._set("simfl_worker_busy_ratio", min(1.0, busy / max(row["seconds"], 1e-9)), worker=str(worker))
        for worker, size in enumerate(event.memory):
            self._set("simfl_worker_memory_bytes", size, worker=str(worker))
        for worker, use in enumerate(event.use):
            if use is not None:
                self._set("simfl_gpu_utilization_ratio", use, worker=str(worker))

    def _set(self, name: str, value: float, **labels: str) -> None:
        self._values[SPECS[name], (*self._run, *labels.items())] = float(value)

    def _add(self, name: str, value: float, **labels: str) -> None:
        key = SPECS[name], (*self._run, *labels.items())
        self._values[key] = self._values.get(key, 0.0) + float(value)


def claimed_view(experiment: Experiment) -> str:
    """Return the view in which a run claims differential privacy, or an empty string if it claims none."""
    privacy = experiment.privacy
    if privacy is None or privacy.noise_seed is not None or privacy.deployment is not None:
        return ""
    return "averages" if privacy.view == "formula" else privacy.view


def check(requested: Prometheus, joined: bool) -> None:
    """Check that the metrics can be offered.

    Args:
        requested: The settings.
        joined: Whether the process has joined a cluster of Ray that exports metrics.

    Raises:
        ConfigError: A package is missing, an address cannot be used, or no cluster was joined.
    """
    if requested.through == "ray" and not joined:
        raise ConfigError(
            "tracking.prometheus.through: ray, but the run joins no Ray cluster that exports metrics; give --address,"
            " or allowed: auto, endpoint"
        )
    if _uses_ray(requested, joined):
        return
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(
            "tracking.prometheus: the package prometheus-client is not installed; pip install 'simfl[prometheus]'"
        )
    free_port(requested.host, requested.port)


@contextmanager
def opened(
    requested: Prometheus, metrics: RunMetrics, push: Push | None, on_message: Callable[[str], None]
) -> Iterator[RunMetrics]:
    """Offer the metrics of a run for the block: as an endpoint, or with `push` through Ray's metrics."""
    through_ray = push is not None and _uses_ray(requested, joined=True)
    with _pushed(metrics, push) if through_ray and push else _endpoint(metrics, requested, on_message):
        yield metrics


def free_port(host: str, first: int) -> int:
    """Return the first free port from a given one; 0 if 0 is given.

    Raises:
        ConfigError: The address is not one of this machine, or all ports are in use.
    """
    error: OSError | None = None
    for port in range(first, min(first + PORTS, 65536)) if first else (0,):
        try:
            family, kind, *_, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind) as attempt:
                attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                attempt.bind(address)
                return port
        except OSError as failure:
            error = failure
            if failure.errno != errno.EADDRINUSE:
                break
    raise ConfigError(f"tracking.prometheus: cannot listen on {_address(host, first)}: {error}")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _uses_ray(requested: Prometheus, joined: bool) -> bool:
    return joined and requested.through != "endpoint"


@contextmanager
def _endpoint(metrics: RunMetrics, requested: Prometheus, on_message: Callable[[str], None]) -> Iterator[None]:
    """Serve the metrics by HTTP for the block."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(_collector(metrics))
    port = free_port(requested.host, requested.port)
    server, thread = start_http_server(port, addr=requested.host, registry=registry)
    shown = _address(requested.host, server.server_port)
    taken = f" (port {requested.port} is in use)" if requested.port and port != requested.port else ""
    exposed = "" if requested.host.startswith(LOOPBACK) else "; everyone who reaches this address can read them"
    on_message(f"metrics for Prometheus: http://{shown}/metrics{taken}{exposed}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _collector(metrics: RunMetrics) -> Collector:
    """Return a collector of prometheus_client that reads the metrics when they are asked for."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    class RunCollector(Collector):
        def collect(self) -> Iterator[Any]:
            families: dict[str, Any] = {}
            for sample in metrics.samples():
                spec = sample.spec
                kind = CounterMetricFamily if spec.is_counter else GaugeMetricFamily
                family = families.setdefault(spec.name, kind(spec.name, spec.text, labels=(*RUN_LABELS, *spec.labels)))
                family.add_metric([value for _, value in sample.labels], sample.value)
            yield from families.values()

    return RunCollector()


@contextmanager
def _pushed(metrics: RunMetrics, push: Push) -> Iterator[None]:
    """Send the metrics to Ray every `PUSH_SECONDS` for the block, and once at its end."""
    closing = Event()

    def send() -> None:
        while not closing.wait(PUSH_SECONDS):
            push(metrics.samples())

    push(metrics.samples())
    thread = Thread(target=send, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()
        push(metrics.samples())
