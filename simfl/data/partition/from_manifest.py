"""A partition that was built before and saved as a manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from simfl.data.base import DATA_SHA256, Split
from simfl.data.partition.base import Partitioner
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError, DataError


@dataclass(frozen=True)
class FromManifest(Partitioner):
    """A partition built before by `simfl partition build`, refused if it was made from other data."""

    path: str = ""  # the manifest; ~ and $VARIABLES are followed

    def split(self, split: Split, seed: int) -> Partition:
        if not self.path:
            raise ConfigError("partition.path: empty, the path of a manifest is needed")
        path = Path(os.path.expandvars(self.path)).expanduser()
        told = (split.examples.schema.metadata or {}).get(DATA_SHA256)
        if told is None:
            raise ConfigError("partition.by: manifest needs a data set that tells its hash; this one does not")
        try:
            manifest = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error
        partition = Partition.read(manifest, told.decode())
        last = int(partition.order.max(initial=-1))
        if last >= len(split):
            raise DataError(
                f"{path}: it gives away row {last}, the split has {len(split)}; it was made for another split"
            )
        self.count_is(len(partition))
        return partition
