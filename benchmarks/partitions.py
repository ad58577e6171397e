"""Measure how long each partitioner takes for a million clients: `python -m benchmarks.partitions [CLIENTS]`.

A row has the seconds for the partition and for its manifest, the size of the manifest, and the ratio of the first to
the seconds with a tenth of the clients: about 10 to 13 for O(n log n), more if the smaller partition fits into the
cache of the processor. `objects` counts the Python objects that a partition adds; there should be none per client. The
last line has the peak memory.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from simfl.data.base import Split
from simfl.data.partition.nested import Nested, Subsample
from simfl.data.partition.partitioners import Natural, Partition, Partitioner, Provider
from simfl.data.partition.synthetic import Iid, Quantity, Shards

EXAMPLES = 3  # per client
TASKS = 10

Maker = Callable[[int], Partitioner]
MAKERS: dict[str, Maker] = {
    "iid": lambda clients: Iid(clients=clients),
    "natural": lambda clients: Natural(column="user"),
    "provider": lambda clients: Provider(column="provider", clients=clients),
    "shards": lambda clients: Shards(clients=clients, shards=2),
    "quantity": lambda clients: Quantity(clients=clients),
    "nested": lambda clients: Nested(column="task", inner=Iid(clients=clients // TASKS)),
    "subsample of iid": lambda clients: Subsample(of=Iid(clients=clients), examples=2),
}


def split(clients: int) -> Split:
    """Return the examples of a number of users, with two providers per user, ten tasks and ten labels."""
    count = EXAMPLES * clients
    user = np.arange(count) % clients
    columns = {
        "user": pa.array(user).cast(pa.string()),
        "provider": pa.array(2 * user + np.arange(count) % 2).cast(pa.string()),
        "task": pa.array(np.arange(count) % TASKS).cast(pa.string()),
        "label": pa.array((np.arange(count) * 7 % 10).astype(np.int32)),
    }
    return Split(pa.table(columns))


def timed(maker: Maker, examples: Split, clients: int) -> tuple[float, Partition, int]:
    """Return seconds, the partition and the number of Python objects that it adds."""
    gc.collect()
    before = len(gc.get_objects())
    start = time.perf_counter()
    partition = maker(clients).split(examples, seed=1)
    seconds = time.perf_counter() - start
    return seconds, partition, len(gc.get_objects()) - before


def main() -> None:
    """Measure all partitioners and print the rows."""
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    small, large = split(clients // 10), split(clients)
    print(f"{clients:,} clients of {EXAMPLES} examples each")
    print(f"{'partition':<18}{'seconds':>9}{'ratio':>7}{'objects':>9}{'manifest s':>12}{'MB':>7}")
    for name, maker in MAKERS.items():
        tenth, _, _ = timed(maker, small, clients // 10)
        seconds, partition, objects = timed(maker, large, clients)
        start = time.perf_counter()
        manifest = partition.manifest({"by": name}, "0" * 64, 1)
        manifest_seconds = time.perf_counter() - start
        size = len(manifest) / 1e6
        print(f"{name:<18}{seconds:9.2f}{seconds / tenth:7.1f}{objects:9,}{manifest_seconds:12.2f}{size:7.1f}")
        del partition, manifest
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
