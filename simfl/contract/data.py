"""The contracts of data sets and partitioners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from simfl.data.base import Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.classification import feature_split
from simfl.data.partition.base import Partitioner
from simfl.errors import ConfigError, DataError


@dataclass(frozen=True)
class UnevenClients(Data):
    """Five classes with Gaussian features; client k, of the column `client`, holds `sizes[k]` examples."""

    sizes: tuple[int, ...] = (1, 20, 5, 33, 9)  # training examples of each client
    valid: int = 10  # validation examples

    def load(self, cache: Path) -> Dataset:
        """Build the data set."""
        even = [-(-(self.valid - k) // len(self.sizes)) for k in range(len(self.sizes))]
        splits = {"train": self._split(1, list(self.sizes)), "valid": self._split(2, even)}
        return Dataset("uneven_clients", splits, content_sha256(splits), {"shape": [12], "num_classes": 5})

    def _split(self, stream: int, sizes: list[int]) -> Split:
        centres, rng, count = np.random.default_rng(0).normal(size=(5, 12)), np.random.default_rng(stream), sum(sizes)
        labels = rng.integers(0, 5, count)
        client = np.repeat(np.arange(len(sizes)), sizes)
        features = centres[labels] + rng.normal(size=(count, 12))
        columns = {
            "client": pa.array(client, pa.int32()),
            "provider": pa.array([f"p{c}.{k % 3}" for k, c in enumerate(client)]),
            "dataset": pa.array([f"d{c % 2}" for c in client]),
            "answers": pa.array([[f"a{label}"] for label in labels]),
        }
        return feature_split(features, labels, **columns)


def check_data(data: Data) -> Iterator[str]:
    """Yield one line for each rule that a data set breaks.

    A data set with a setting `path` is tried with a missing path alone; any other one is loaded twice.
    """
    with TemporaryDirectory() as folder:
        missing = str(Path(folder) / "missing")
        if "path" in {field.name for field in fields(data)}:
            broken = replace(data, path=missing)  # type: ignore[call-arg]
            yield from _check_missing(lambda: broken.load(Path(folder)), missing)
            return
        first, second = (data.load(Path(folder) / name) for name in ("a", "b"))
        if first.sha256 != second.sha256:
            yield "two builds have different hashes; seed all random numbers by name (simfl.seeds.rng)"
        if "train" not in first.splits:
            yield f"has no split `train`, but {sorted(first.splits)}"


def _check_missing(load: Callable[[], object], missing: str) -> Iterator[str]:
    try:
        load()
    except (ConfigError, DataError) as error:
        if "\n" in str(error) or missing not in str(error):
            yield f"path: the error for a missing path must be one line with the path: {error}"
    else:
        yield "path: loads a missing path; raise DataError"


def check_partitioner(partitioner: Partitioner) -> Iterator[str]:
    """Yield one line for each rule that a partitioner breaks, tried on a split of 120 examples.

    The split has the columns `label`, `client` (5 clients), `provider`, `dataset` and `answers`. A partitioner with
    a setting `path` is only tried with a missing path.
    """
    if "path" in {field.name for field in fields(partitioner)}:
        with TemporaryDirectory() as folder:
            missing = str(Path(folder) / "missing")
            broken = replace(partitioner, path=missing)  # type: ignore[call-arg]
            yield from _check_missing(lambda: broken.split(_split(), 1), missing)
        return
    split = _split()
    first, second = partitioner.split(split, 1), partitioner.split(split, 1)
    if not (np.array_equal(first.order, second.order) and np.array_equal(first.starts, second.starts)):
        yield "two partitions with one seed differ; seed all random numbers by name (simfl.seeds.rng)"
    if len(np.unique(first.order)) != len(first.order) or first.order.min(initial=0) < 0:
        yield "an example belongs to two clients, or a row is negative"
    if first.order.max(initial=0) >= len(split):
        yield f"a row is {first.order.max()}, but there are {len(split)} examples"
    if partitioner.clients is not None and len(first) != partitioner.clients:
        yield f"makes {len(first)} clients; the setting `clients` says {partitioner.clients}"


def _split() -> Split:
    return UnevenClients(sizes=(24, 24, 24, 24, 24)).load(Path()).splits["train"].with_sha256("0")
