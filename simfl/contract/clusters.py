"""The contract of clusters to which experiments are submitted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from simfl.submit.cluster import Cluster
from simfl.submit.package import Package
from simfl.submit.request import Request

NAME, FILE, OUT, VARIABLE = "contract-example", "experiment.yaml", "/results", "SIMFL_CONTRACT"


def check_cluster(cluster: Cluster) -> Iterator[str]:
    """Yield one line for each rule that a cluster breaks."""
    with tempfile.TemporaryDirectory(prefix="simfl-") as folder:
        size = (Path(folder) / FILE).write_text("name: example\n")
        request = Request(NAME, "run", FILE, Package(Path(folder), {FILE: size}), OUT, environment=(VARIABLE,))
        shown, again = cluster.shown(request), cluster.shown(request)
    if shown != again:
        yield "`shown` differs between two calls"
    for part in (NAME, FILE, OUT, VARIABLE):
        if part not in shown:
            yield f"`shown` does not contain {part!r} of the request"
