"""Metrics of a run among those of a Ray cluster, which the cluster's own Prometheus reads from Ray's agents."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from simfl.runtime.ray import cluster
from simfl.tracking.prometheus import RUN_LABELS, MetricSample, Push

COLLECTION = "RAY_enable_metrics_collection"  # environment variable of Ray's processes, "0" with the fast start


def metrics_push() -> Push | None:
    """Return a function that sends samples to the metrics of the cluster which this process has joined, or None."""
    return RayMetrics().push if exports_metrics() else None


def exports_metrics() -> bool:
    """Return whether this process belongs to a cluster that it did not start, and that collects metrics."""
    return cluster.joined() and os.environ.get(COLLECTION, "1") not in ("0", "false", "False")


class RayMetrics:
    """Gauges and counters of `ray.util.metrics`, made when they are first used."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._counted: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def push(self, samples: Iterable[MetricSample]) -> None:
        """Set the gauges, and increase the counters by what was added since the last call."""
        from ray.util import metrics

        for sample in samples:
            spec = sample.spec
            if spec.name not in self._made:
                kind = metrics.Counter if spec.is_counter else metrics.Gauge
                self._made[spec.name] = kind(spec.name, spec.text, (*RUN_LABELS, *spec.labels))
            if not spec.is_counter:
                self._made[spec.name].set(sample.value, dict(sample.labels))
            elif more := sample.value - self._counted.get((spec.name, sample.labels), 0.0):
                self._made[spec.name].inc(more, dict(sample.labels))
                self._counted[spec.name, sample.labels] = sample.value
