"""The folder of a run while the run writes it: experiment, manifest, tables, log, checkpoints and summary."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from simfl import files
from simfl.aggregation.columns import Columns
from simfl.aggregation.round import CohortResult, RoundAggregator
from simfl.client_state import FileClientStore
from simfl.data.partition.heterogeneity import ValueCounts
from simfl.errors import DamagedFile, RunError
from simfl.experiment import Checkpoint
from simfl.json_files import JsonLines
from simfl.runs import checkpoint, tables
from simfl.runs.folder import (
    CHECKPOINTS,
    CLIENT_LOG,
    CLIENT_STATES,
    HETEROGENEITY,
    LOG,
    MANIFEST,
    PARTITION,
    RUN,
    SUMMARY,
    SWEEP,
    TABLE_PARTS,
    JsonObject,
    file_sha256,
    missing_run,
    refuse_taken,
    write_json,
)
from simfl.runs.manifest import RunManifest, refuse_another, text_sha256
from simfl.runs.mirror import Mirror
from simfl.runs.parts import Coverage, TableParts
from simfl.runs.snapshot import Snapshot
from simfl.runs.tables import TABLES, TIMES, TableRow
from simfl.runs.waiting_rows import Rows, WaitingRows
from simfl.safe_text import mask_secrets
from simfl.stacking import on_host
from simfl.timing import timed
from simfl.training.context import PhaseContext
from simfl.transport import ledger
from simfl.virtual_time.instants import SECOND

BEGUN = (RUN, CHECKPOINTS, TABLE_PARTS, LOG)  # of these, a run that was killed before it began has none


@dataclass
class Record:
    """The folder of a run that is being written. Rows wait in memory until the checkpoint that covers their rounds."""

    folder: Path
    policy: Checkpoint  # how often checkpoints are written
    manifest: RunManifest
    waiting: WaitingRows = field(default_factory=lambda: WaitingRows(TABLES))
    mirror: Mirror | None = None  # copies the folder to a URL
    parts: TableParts = field(init=False)  # the rows on the disk
    earlier_seconds: float = 0.0  # spent before this process, up to its last checkpoint
    state_sha256: str = ""
    _started: float = field(default_factory=time.monotonic)
    _last_checkpoint: tuple[int, float] = (0, 0.0)  # step, and time of the clock
    _digests: dict[int, set[str]] = field(default_factory=dict)  # step of a checkpoint -> its client states
    _pending: tuple[Snapshot, Future[str]] | None = None  # a checkpoint that the thread writes, and its hash
    _written: Callable[[], Snapshot | None] = lambda: None  # the state of the newest checkpoint, while it is in memory

    def __post_init__(self) -> None:
        """Begin without rows on the disk; `restore` finds those of a run to resume."""
        self.parts = TableParts(self.folder / TABLE_PARTS)

    @staticmethod
    def open(
        folder: Path,
        experiment_yaml: str,
        manifest: RunManifest,
        partition: bytes,
        policy: Checkpoint,
        resume: bool,
        mirror: Mirror | None = None,
    ) -> Record:
        """Create a run folder, or open the folder of the run to resume; a run that did not begin is created.

        Args:
            folder: The run folder.
            experiment_yaml: The resolved experiment.
            manifest: The manifest that a new run has.
            partition: The manifest of the partition.
            policy: How often checkpoints are written.
            resume: Whether the folder holds a run to resume.
            mirror: Copies the folder to a URL.

        Raises:
            RunError: The folder holds another run, or lacks the run to resume, or has another format.
        """
        if (folder / SWEEP).exists() or not resume:
            refuse_taken(folder)
        if resume and any((folder / name).exists() for name in BEGUN):
            return Record(folder, policy, _resumed(folder, experiment_yaml, manifest, partition), mirror=mirror)
        manifest = replace(manifest, experiment_sha256=text_sha256(experiment_yaml))
        record = Record(folder, policy, manifest, mirror=mirror)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            record._write_manifest()
            files.write(folder / PARTITION, lambda file: file.write(partition))
            files.write(folder / RUN, lambda file: file.write(experiment_yaml.encode()))
            files.sync_folder(folder)
        except OSError as error:
            raise files.disk_error(folder, error) from error
        return record

    @property
    def has_value_counts(self) -> bool:
        """True if the folder has the counts for the figure of the partition."""
        return (self.folder / HETEROGENEITY).exists()

    def write_value_counts(self, counts: ValueCounts | None) -> None:
        """Store the counts for the figure of the partition, so that a report needs no data; RunError on a full disk."""
        write_json(self.folder / HETEROGENEITY, {"value_counts": None if counts is None else counts.to_json()})

    @property
    def location(self) -> str:
        """The run folder, or the URL of its copy, which stays when this machine is gone."""
        return str(self.folder) if self.mirror is None else mask_secrets(self.mirror.url)

    def restore(self) -> tuple[Snapshot | None, list[str]]:
        """Return the newest undamaged state and messages about what was damaged or cut off; None without a checkpoint.

        Everything that the state needs is verified: the checkpoint, the parts of all tables, and the client states.
        Rounds after it are deleted; they will be repeated.

        Raises:
            DamagedFile, RunError: No checkpoint can be restored, or the log is damaged.
        """
        folder = self.folder / CHECKPOINTS
        logs = [JsonLines(self.folder / name).repair() for name in (LOG, CLIENT_LOG)]
        files.remove_temps(self.folder)
        found = checkpoint.latest(folder, self._verify)
        last = found.step if found else 0
        checkpoint.drop_after(folder, last or -1)  # the scores before the first round are made again
        if not last:
            self.parts = TableParts.open(self.folder / TABLE_PARTS, Coverage())
        messages = [*logs, self.parts.drop_others(), found.warning if found else ""]
        if self.manifest.resumes:
            self.manifest = self.manifest.with_resume_step(last)
            self._write_manifest()
        return self._set_state(found), [text for text in messages if text]

    def _set_state(self, found: checkpoint.StoredCheckpoint | None) -> Snapshot | None:
        if found is None:
            return None
        snapshot, folder = Snapshot.restore(found), self.folder / CHECKPOINTS
        self.earlier_seconds = float(str(found.notes.get("seconds", 0.0)))
        self.state_sha256 = found.state_sha256
        self._last_checkpoint = (snapshot.step, time.monotonic())
        self._digests = {snapshot.step: snapshot.stored_digests}
        for step in checkpoint.steps(folder)[:-1]:
            with suppress(RunError):  # a damaged older checkpoint is never restored
                self._digests[step] = Snapshot.restore(checkpoint.read(folder, step)).stored_digests
        store, needed = FileClientStore(self.folder / CLIENT_STATES), set[str]().union(*self._digests.values())
        store.collect(needed, compact=True)  # damaged states too, or they would be found when rounds are repeated
        return snapshot

    def _verify(self, found: checkpoint.StoredCheckpoint) -> None:
        """Read every file that a checkpoint needs. DamagedFile if one is missing or was altered."""
        self.parts = TableParts.open(self.folder / TABLE_PARTS, found.coverage)
        self.parts.verify()
        FileClientStore(self.folder / CLIENT_STATES).verify(Snapshot.restore(found).stored_digests)

    def add(self, rows: Rows, step: int) -> None:
        """Add the rows of a round, after which `step` rounds of the run are finished."""
        self.waiting.add(rows, self.parts, step)

    def rows(self, name: str) -> list[TableRow]:
        """Return all rows of a table so far, written or not."""
        waiting = self.waiting.rows(name)  # first: the thread may have parts to write
        return [*self.parts.rows(name), *waiting]

    def sum(self, name: str, column: str) -> int:
        """Return the sum of a column of integers over all rows of a table so far, written or not."""
        waiting = sum(row[column] for row in self.waiting.rows(name))
        return waiting + sum(tables.total(self.parts.read(part), column) for part in self.parts.of(name))

    def rows_at(self, name: str, step: int) -> list[TableRow]:
        """Return the rows that a table has of this step, written or not; only one part of the table is read."""
        waiting = [row for row in self.waiting.rows(name) if row["step"] == step]
        parts = [part for part in self.parts.of(name) if part.step >= step]
        written: list[TableRow] = tables.where(self.parts.read(parts[0]), step=step).to_pylist() if parts else []
        return written + waiting

    def last_step(self, name: str) -> int:
        """Return the last step of which a table has rows; 0 for an empty table."""
        waiting, newest = self.waiting.rows(name), self.parts.of(name)[-1:]
        rows = waiting or [row for part in newest for row in self.parts.read(part).to_pylist()]
        return max((row["step"] for row in rows), default=0)

    def checkpoint_due(self, step: int) -> bool:
        """Return whether enough rounds and enough seconds have passed since the last checkpoint."""
        last, when = self._last_checkpoint
        return step - last >= self.policy.rounds and time.monotonic() - when >= self.policy.seconds

    def clients_per_batch(self, step: int) -> int:
        """Return the clients per batch in the round after `step` finished rounds of the run."""
        return self.manifest.clients_per_batch(step)

    def choice(self, phase: int) -> JsonObject:
        """Return the autotuned execution mode of a phase, with its reasons; empty where the identity decides."""
        return self.manifest.choices.get(phase, {})

    def set_choice(self, phase: int, step: int, choice: JsonObject) -> None:
        """Store the autotuned execution mode of a phase on the disk, before its first round is trained.

        Args:
            phase: The phase.
            step: Finished rounds of the run.
            choice: The mode (`mode`, `clients_per_batch`, `program`) and its reasons.
        """
        self.manifest = replace(self.manifest, choices={**self.manifest.choices, phase: dict(choice)})
        self.set_clients_per_batch(step, choice["clients_per_batch"])

    def set_clients_per_batch(self, step: int, clients_per_batch: int) -> None:
        """Store the clients per batch of the rounds after `step` on the disk, before the first of them is trained."""
        sizes = (*self.manifest.batch_sizes, (step, clients_per_batch))
        self.manifest = replace(self.manifest, batch_sizes=sizes)
        self._write_manifest()
        files.sync_folder(self.folder)

    @timed("save")
    def start_checkpoint(self, snapshot: Snapshot, store: FileClientStore, newer: Snapshot | None = None) -> None:
        """Let a thread write the pending rows, and then the checkpoint that makes them count.

        One checkpoint is written at a time, and it holds no tensors but those of a state from which the next round
        starts. Call this while no client is trained.

        Args:
            snapshot: The state to write.
            store: The client states.
            newer: A newer state whose client states are kept too.

        Raises:
            RunError: The disk has refused this or the previous checkpoint, or an upload to the mirror has failed.
        """
        self.settle(snapshot, store, newer)
        if self._written() is snapshot and not self.waiting:
            return
        (self.folder / SUMMARY).unlink(missing_ok=True)  # of an earlier end of the run
        tensors, values, notes = on_host(snapshot.tensors()), snapshot.values(), {"seconds": self.elapsed}
        new_states = store.not_durable(snapshot.stored_digests)

        def write() -> str:
            store.force(new_states)
            folder = self.folder / CHECKPOINTS
            state_sha256 = checkpoint.write(folder, snapshot.step, tensors, values, notes, self.parts.coverage)
            if self.mirror is not None:
                self.mirror.push()
            return state_sha256

        self._last_checkpoint = (snapshot.step, time.monotonic())
        self._pending = snapshot, self.waiting.start_writing(self.parts, snapshot.step, write)

    @timed("save")
    def write_checkpoint(self, snapshot: Snapshot, store: FileClientStore) -> None:
        """Write the pending rows and a checkpoint, and return when both are on the disk."""
        self.start_checkpoint(snapshot, store)
        self.settle(snapshot, store)

    def settle(
        self, snapshot: Snapshot, store: FileClientStore, newer: Snapshot | None = None, wait: bool = True
    ) -> None:
        """Finish a checkpoint that is on the disk: delete what only older ones needed.

        Call this while no client is trained, since no process may write client states meanwhile.

        Args:
            snapshot: The state of the run, whose client states are kept.
            store: The client states.
            newer: A newer state whose client states are kept too.
            wait: Whether to wait for a checkpoint that is being written.
        """
        if self._pending is None or not (wait or self._pending[1].done()):
            return
        (written, future), self._pending = self._pending, None
        self.state_sha256, self._written = future.result(), weakref.ref(written)
        folder = self.folder / CHECKPOINTS
        if self.parts.has_replaced:
            self.waiting.wait()
            self.parts.drop_replaced(checkpoint.least_coverage(folder))
        self._digests[written.step] = written.stored_digests
        self._digests = {step: self._digests[step] for step in checkpoint.steps(folder) if step in self._digests}
        needed = snapshot.stored_digests | (set() if newer is None else newer.stored_digests)
        store.collect(needed.union(*self._digests.values()))

    def upload(self) -> None:
        """Upload the folder once the thread has nothing to write, and return when its content is at the URL."""
        assert self.mirror is not None
        self.waiting.wait()
        self.mirror.push_and_wait()

    def close(self) -> None:
        """Wait for the thread that writes; nothing is written afterwards."""
        self.waiting.close()

    @property
    def elapsed(self) -> float:
        """Seconds spent on the run, by this process and before it."""
        return self.earlier_seconds + time.monotonic() - self._started

    def log(self, event: str, **values: object) -> None:
        """Append a line to `log.jsonl`."""
        JsonLines(self.folder / LOG).append({"time": time.time(), "event": event, **values})

    def log_clients(self, phase: int, round_number: int, results: Sequence[CohortResult]) -> None:
        """Append to `clients.jsonl`, in a thread, how long the client updates of a round took, and on which worker.

        Args:
            phase: Number of the phase.
            round_number: The round, from 1.
            results: The results of its cohorts.
        """
        times = [(result.clients, result.seconds, result.clock.worker) for result in results if len(result.clients)]

        def append() -> None:
            clients = [client for rows, _, _ in times for client in rows.items_of("client")]
            seconds = [round(value, 6) for _, own, _ in times for value in own]
            workers = [worker for _, own, worker in times for _ in own]
            values = {"phase": phase, "round": round_number, "clients": clients, "seconds": seconds, "workers": workers}
            JsonLines(self.folder / CLIENT_LOG).append(values)

        self.waiting.submit(append)

    def finish(self, snapshot: Snapshot, status: str, values: JsonObject) -> JsonObject:
        """Join the parts of each table, write `summary.json` and return its content.

        Args:
            snapshot: The last state.
            status: `completed`, `stopped`, `interrupted` or `failed`.
            values: Further content of the summary.
        """
        rounds = self.parts.joined("rounds")
        names = [name for name in TABLES if name != TIMES or self.parts.of(TIMES)]
        for name in names:
            content = rounds if name == "rounds" else self.parts.joined(name)
            tables.write_table(self.folder / f"{name}.parquet", content)
        files.sync_folder(self.folder)
        files.remove_temps(self.folder / CLIENT_STATES)
        summary = {
            "status": status,
            "rounds": snapshot.step,
            "resumed_at": [resume.step for resume in self.manifest.resumes],
            **values,
            **({"virtual_seconds": snapshot.clock / SECOND} if snapshot.clock else {}),
            "bytes": _sum_bytes(rounds, ""),
            "charged": _sum_bytes(rounds, "charged_"),
            "weights_sha256": snapshot.weights_sha256,
            "state_sha256": self.state_sha256,
            "table_parts": self.parts.coverage.to_json(),
            "files": {f"{name}.parquet": file_sha256(self.folder / f"{name}.parquet") for name in names},
        }
        summary = write_json(self.folder / SUMMARY, summary)
        if self.mirror is not None:
            self.mirror.push_and_wait()
        return summary

    def _write_manifest(self) -> None:
        write_json(self.folder / MANIFEST, self.manifest.to_json())


def round_rows(
    context: PhaseContext,
    after: Snapshot,
    num_clients: int,
    sent: Sequence[Columns],
    results: RoundAggregator,
    metrics: Mapping[str, float | Tensor],
) -> Rows:
    """Return the table rows of a round. They hold no clock times, so equal runs have equal tables.

    Args:
        context: The phase.
        after: The state after the round.
        num_clients: Number of client updates that were planned.
        sent: The ledger rows of all messages besides uploads.
        results: The results of the cohorts.
        metrics: Values that the algorithm reports, by name; they become columns `metric:NAME`.
    """
    trained, skipped = results.clients, sum(len(result.skipped) for result in results.results)
    assert len(trained) + skipped == num_clients, "a client update was lost"
    blocks = [*sent, *(result.ledger for result in results.results)]
    totals = ledger.totals(blocks)
    values: TableRow = {
        "phase": context.index,
        "round": after.round,
        "step": after.step,
        "sampled": num_clients,
        "skipped": skipped,
        "examples": trained.total("examples"),
        "local_steps": trained.total("steps"),
        "loss": _mean_loss(trained),
    }
    values |= {f"{direction}_bytes": int(count["B"]) for direction, count in totals["payload"].items()}
    values |= {f"charged_{direction}_bytes": int(count["B"]) for direction, count in totals["charged"].items()}
    values |= {f"metric:{name}": float(value) for name, value in metrics.items()}
    return {
        "rounds": [values],
        "ledger": Columns.concat(blocks),
        "clients": trained,
        "evaluations": [],
        "samples": [],
    }


def _mean_loss(clients: Columns) -> float | None:
    """Return the mean loss by examples, added up client by client; None if no update had examples."""
    if not clients:
        return None
    losses, examples = clients.column("loss").astype(np.float64), clients.column("examples")
    known = ~np.isnan(losses)
    weight = int(examples[known].sum())
    return float(np.cumsum(losses[known] * examples[known])[-1] / weight) if weight else None


def _resumed(folder: Path, experiment_yaml: str, manifest: RunManifest, partition: bytes) -> RunManifest:
    """Check that an experiment may resume the run in a folder, and return the run's manifest with one more resume."""
    if not (folder / RUN).exists():
        raise missing_run(folder)
    refuse_another(folder, experiment_yaml)
    stored = RunManifest.read(folder).resume(manifest, folder)
    if not (folder / PARTITION).exists() or (folder / PARTITION).read_bytes() != partition:
        raise DamagedFile(f"{folder / PARTITION}: this file is missing or was altered")
    return stored


def _sum_bytes(rounds: tables.Table, prefix: str) -> dict[str, int]:
    directions = (*ledger.DIRECTIONS, "total")
    return {direction: tables.total(rounds, f"{prefix}{direction}_bytes") for direction in directions}
