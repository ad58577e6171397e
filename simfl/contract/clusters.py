"""The contract of clusters to which experiments are submitted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simfl.errors import ConfigError
from simfl.submit.cluster import Cluster
from simfl.submit.package import Package
from simfl.submit.request import Request

NAME, FILE = "contract-example", "experiment.yaml"


def check_cluster(cluster: Cluster) -> Iterator[str]:
    """Yield one line for each rule that a cluster breaks."""
    request = Request(NAME, "run", FILE, Package(Path(), {FILE: 1}), "/results", environment=("SIMFL_CONTRACT",))
    shown = cluster.shown(request)
    if shown != cluster.shown(request):
        yield "`shown` differs between two calls"
    for part in (NAME, FILE, "/results", "SIMFL_CONTRACT"):
        if part not in shown:
            yield f"`shown` does not contain {part!r} of the request"
    try:
        cluster.shown(Request(NAME, "run", FILE, Package(Path(), {FILE: 1}), ""))
    except ConfigError:
        return
    yield "`shown` accepts a request without --out; raise ConfigError"
