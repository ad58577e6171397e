"""A run folder as it was stored: settings, summary, manifest, tables and partition, read without torch.

Commands that show results, such as `simfl report`, read no more than this; see results.py for models and states.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from simfl.data.partition.heterogeneity import ValueCounts
from simfl.data.partition.manifest import Partition, manifest_sha256
from simfl.errors import DamagedFile, DataError, RunError
from simfl.json_files import JsonLines
from simfl.runs import checkpoint, tables
from simfl.runs.folder import (
    CHECKPOINTS,
    CLIENT_LOG,
    HETEROGENEITY,
    PARTITION,
    RUN,
    TABLE_PARTS,
    JsonObject,
    read_json,
    require_run,
)
from simfl.runs.manifest import RunManifest, read_experiment
from simfl.runs.parts import Coverage, TableParts
from simfl.runs.summary import read_summary
from simfl.runs.tables import TABLES
from simfl.yaml_text import parsed


class StoredRun:
    """The contents of a run folder, of a run that has ended or is in progress. Nothing here writes to the folder.

    Every file is compared with its hash when it is read. A file that is missing or altered raises DamagedFile, a
    RunError that names it; no older state is read in its place. Tables are Arrow tables: `.to_pandas()` and
    `.to_pylist()` convert them.
    """

    def __init__(self, folder: Path | str) -> None:
        """Open a run folder.

        Args:
            folder: The run folder.

        Raises:
            DamagedFile: The experiment, the manifest, the summary or the index of the tables was altered, or a part of
                a table is missing.
            RunError: The folder holds no run, or files of another format.
        """
        self.folder = Path(folder)
        require_run(self.folder)
        read_experiment(self.folder)
        self._opened: tuple[Coverage | None, TableParts] | None = None
        self._table_parts(self._coverage())

    @cached_property
    def settings(self) -> JsonObject:
        """The resolved experiment as plain values: all settings, defaults included."""
        found: Any = parsed(read_experiment(self.folder), str(self.folder / RUN))
        return dict(found)

    @property
    def summary(self) -> JsonObject:
        """The content of `summary.json`: status, scores, bytes, seconds, hashes. RunError while the run is going on."""
        summary = read_summary(self.folder)
        if summary is None:
            raise RunError(f"{self.folder}: there is no summary.json; the run has not ended yet")
        return summary

    @cached_property
    def manifest(self) -> RunManifest:
        """The manifest: versions, hashes, hardware, and the choices that results depend on."""
        return RunManifest.read(self.folder)

    def rounds(self) -> tables.Table:
        """Return one row per round: loss, number of clients, bytes."""
        return self.table("rounds")

    def ledger(self) -> tables.Table:
        """Return one row per message part that was sent: client, direction, part, bytes."""
        return self.table("ledger")

    def times(self) -> tables.Table:
        """Return one row per client that started in a round, with its virtual times; no rows without profiles."""
        return self.table("times")

    def clients(self) -> tables.Table:
        """Return one row per client update: examples, local steps, weight, loss."""
        return self.table("clients")

    def evaluations(self) -> tables.Table:
        """Return one row per score: split, model, group, metric, value."""
        return self.table("evaluations")

    def samples(self) -> tables.Table:
        """Return one row per stored prediction: the example's question, its true answer, the model's answer."""
        return self.table("samples")

    def scores(self) -> tables.Table:
        """Return one row per example that was scored at the end of the run: its scores and its groups."""
        return self.table("scores")

    def client_times(self) -> tables.Table:
        """Return one row per client update that was trained, also of rounds that a resumed run repeated.

        Columns: phase, round, client, worker, and seconds, an equal share where clients are trained together. On a GPU
        they end when the work is queued.

        Raises:
            DamagedFile: The file was altered.
        """
        lines = JsonLines(self.folder / CLIENT_LOG).lines()
        return tables.table(
            {"phase": line["phase"], "round": line["round"], "client": client, "worker": worker, "seconds": seconds}
            for line in lines
            for client, worker, seconds in zip(line["clients"], line["workers"], line["seconds"], strict=True)
        )

    def table(self, name: str) -> tables.Table:
        """Return a table by name, with the rows that the summary covers; of a run in progress, the newest checkpoint.

        Raises:
            DamagedFile: A part of the table is missing or was altered.
        """
        assert name in TABLES, name
        coverage = self._coverage()
        while True:
            try:
                return self._table_parts(coverage).joined(name)
            except DamagedFile:
                newer = self._coverage()
                if newer == coverage:
                    raise
                coverage = newer  # the run has written checkpoints meanwhile, and deleted parts that it had merged

    def _table_parts(self, coverage: Coverage | None) -> TableParts:
        """Open the parts of the tables; those that were opened before are kept, as an index may be long."""
        if self._opened is None or coverage is None or self._opened[0] != coverage:
            self._opened = coverage, TableParts.open(self.folder / TABLE_PARTS, coverage)
        return self._opened[1]

    def _coverage(self) -> Coverage | None:
        """Return the covered parts of the tables; None for a copy of a run without its checkpoints, which has all."""
        summary = read_summary(self.folder)
        if summary is not None:
            return Coverage.from_json(summary["table_parts"])
        return checkpoint.covered_parts(self.folder / CHECKPOINTS)

    @cached_property
    def stored_partition(self) -> Partition:
        """The partition as the run stored it; the data set is not read."""
        return Partition.read(self.partition_manifest, self.manifest.data_sha256)

    @property
    def partition_manifest(self) -> bytes:
        """The content of `partition.json`. DamagedFile if the file is missing or was altered."""
        path = self.folder / PARTITION
        if not path.exists():
            raise DamagedFile(f"{self.folder}: {path.name} is missing; the folder is incomplete")
        content, stored = path.read_bytes(), self.manifest
        try:
            Partition.read(content, stored.data_sha256)
        except DataError as error:
            raise DamagedFile(f"{path}: damaged: {error}") from None
        if manifest_sha256(content) != stored.partition_sha256:
            raise DamagedFile(f"{path}: damaged: it is not the partition of the run")
        return content

    @property
    def has_value_counts(self) -> bool:
        """True if the run has stored `value_counts`; runs of an older simfl have not."""
        return (self.folder / HETEROGENEITY).exists()

    @cached_property
    def value_counts(self) -> ValueCounts | None:
        """The values of a column of the data at the first clients; None if no column has a value for each example.

        Raises:
            DamagedFile: The file is missing or was altered.
        """
        stored = read_json(self.folder / HETEROGENEITY)["value_counts"]
        return None if stored is None else ValueCounts.from_json(stored)
