"""What a run leaves on the disk: its experiment, manifest, tables, log, commits and summary."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simfl import files
from simfl.client_state import FileClientStore
from simfl.errors import RunError
from simfl.experiment import Checkpoint
from simfl.runs import checkpoint, tables
from simfl.runs.manifest import refuse_another
from simfl.runs.mirror import Mirror
from simfl.runs.snapshot import Snapshot
from simfl.timing import timed
from simfl.tracking.run_folder import refuse_taken
from simfl.transport import ledger

TABLES = ("rounds", "ledger", "clients", "evaluations", "samples", "scores")
Rows = dict[str, list[dict[str, Any]]]


@dataclass
class Record:
    """The folder of one run. Rows wait in memory until the commit that covers their rounds."""

    folder: Path
    policy: Checkpoint
    manifest: dict[str, Any] = field(default_factory=dict)
    pending: Rows = field(default_factory=lambda: {name: [] for name in TABLES})
    mirror: Mirror | None = None  # the folder's copy at a URL; null: there is none
    seconds: float = 0.0  # spent in earlier sittings, up to their last commit
    state_sha256: str = ""
    _started: float = field(default_factory=time.monotonic)
    _committed: tuple[int, float] = (0, 0.0)  # step and clock of the last commit
    _held: dict[int, set[str]] = field(default_factory=dict)  # memory digests of each commit on the disk

    @staticmethod
    def open(
        folder: Path,
        experiment_yaml: str,
        manifest: Mapping[str, Any],
        partition: bytes,
        policy: Checkpoint,
        resume: bool,
        mirror: Mirror | None = None,
    ) -> Record:
        """A fresh folder, or one to go on in. RunError where it holds another run, or lacks the one to resume."""
        stored = folder / "experiment.yaml"
        if not resume or not stored.exists():
            refuse_taken(folder)
        if resume and not stored.exists():
            raise RunError(f"{folder}: no run to resume here")
        record = Record(folder, policy, {**manifest, "resumes": []}, mirror=mirror)
        if resume:
            record._check(experiment_yaml)
            return record
        try:
            folder.mkdir(parents=True, exist_ok=True)
            record._write("manifest.json", record.manifest)
            files.write(folder / "partition.json", lambda file: file.write(partition))
            files.write(stored, lambda file: file.write(experiment_yaml.encode()))
            files.sync_folder(folder)
        except OSError as error:
            raise files.disk_error(folder, error) from error
        return record

    def _check(self, experiment_yaml: str) -> None:
        refuse_another(self.folder, experiment_yaml)
        stored = json.loads((self.folder / "manifest.json").read_text())
        for key in ("data_sha256", "partition_sha256", "identity"):
            if stored[key] != self.manifest[key]:
                raise RunError(f"{self.folder}: {key} was {stored[key]!r} at the start, now {self.manifest[key]!r}")
        sitting = {key: self.manifest[key] for key in ("simfl", "python", "libraries", "machine")}
        self.manifest = {**stored, "resumes": [*stored["resumes"], sitting]}

    @property
    def home(self) -> str:
        """Where the run is to be found: its folder, or the URL of its copy, which outlives this machine."""
        return str(self.folder) if self.mirror is None else self.mirror.url

    def restore(self) -> tuple[Snapshot | None, str]:
        """The newest whole commit, and a warning if newer ones were damaged; None where none was made."""
        found = checkpoint.latest(self.folder / "checkpoints")
        last = found.step if found else -1
        checkpoint.drop_after(self.folder / "checkpoints", last)
        for name in TABLES:
            tables.drop_after(self.folder / "tables", name, last)
        if self.manifest["resumes"]:
            self.manifest["resumes"][-1]["step"] = max(0, last)
            self._write("manifest.json", self.manifest)
        if found is None:
            return None, ""
        snapshot = Snapshot.restore(found.tensors, found.facts)
        self.seconds = float(str(found.notes.get("seconds", 0.0)))
        self.state_sha256 = found.state_sha256
        self._committed = (snapshot.step, time.monotonic())
        self._held = {snapshot.step: set(snapshot.memory.values())}
        for step in checkpoint.steps(self.folder / "checkpoints")[:-1]:
            with suppress(RunError):  # an older commit that is damaged will not be gone back to
                facts: dict[str, Any] = checkpoint.read(self.folder / "checkpoints", step).facts
                self._held[step] = set(facts["memory"].values())
        return snapshot, found.warning

    def add(self, rows: Mapping[str, list[dict[str, Any]]]) -> None:
        """Rows of a finished round."""
        for name, more in rows.items():
            self.pending[name] += more

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table so far, committed or not."""
        parts = tables.parts(self.folder / "tables", name)
        return [row for part in parts for row in tables.read(part).to_pylist()] + self.pending[name]

    def rows_at(self, name: str, step: int) -> list[dict[str, Any]]:
        """The rows that a table has of this step, committed or not; of a long run, one part alone is read."""
        parts = [part for part in tables.parts(self.folder / "tables", name) if int(part.stem) >= step]
        committed = tables.where(tables.read(parts[0]), step=step).to_pylist() if parts else []
        return committed + [row for row in self.pending[name] if row["step"] == step]

    def last_step(self, name: str) -> int:
        """The last step of which a table has rows; 0 for an empty one."""
        newest = tables.parts(self.folder / "tables", name)[-1:]
        rows: list[dict[str, Any]] = self.pending[name] or [r for part in newest for r in tables.read(part).to_pylist()]
        return max((row["step"] for row in rows), default=0)

    def due(self, step: int) -> bool:
        """Whether a commit is due: enough rounds and enough seconds since the last."""
        last, when = self._committed
        return step - last >= self.policy.rounds and time.monotonic() - when >= self.policy.seconds

    def clients_per_batch(self, step: int) -> int:
        """Visits per cohort in the round after so many: the run's clients_per_batch, or what it was narrowed to since."""
        changes = [
            clients_per_batch
            for since, clients_per_batch in self.manifest.get("clients_per_batch", [])
            if since <= step
        ]
        return int(changes[-1] if changes else self.manifest["identity"]["clients_per_batch"])

    def choice(self, phase: int) -> dict[str, Any]:
        """What was chosen at the start of a phase, and why; empty where the run's identity says it all."""
        found: dict[str, Any] = self.manifest.get("choices", {}).get(str(phase), {})
        return found

    def choose(self, phase: int, step: int, facts: Mapping[str, Any]) -> None:
        """How a phase's visits are trained from its first round on, which comes after so many; on the disk at once."""
        self.manifest["choices"] = {**self.manifest.get("choices", {}), str(phase): dict(facts)}
        self.narrow(step, facts["clients_per_batch"])

    def narrow(self, step: int, clients_per_batch: int) -> None:
        """From the round after so many on, cohorts are this wide; on the disk before the first of them is trained."""
        self.manifest["clients_per_batch"] = [*self.manifest.get("clients_per_batch", []), [step, clients_per_batch]]
        self._write("manifest.json", self.manifest)
        files.sync_folder(self.folder)

    @timed("commit")
    def commit(self, snapshot: Snapshot, store: FileClientStore, newer: Snapshot | None = None) -> None:
        """Tables first, then the commit that makes them count; what clients remember in a `newer` state is kept too."""
        for name, rows in self.pending.items():
            if rows:
                tables.write_part(self.folder / "tables", name, snapshot.step, rows)
        notes = {"seconds": self.elapsed}
        folder = self.folder / "checkpoints"
        self.state_sha256 = checkpoint.commit(folder, snapshot.step, snapshot.tensors(), snapshot.facts(), notes)
        self.pending = {name: [] for name in TABLES}
        self._committed = (snapshot.step, time.monotonic())
        self._held[snapshot.step] = set(snapshot.memory.values())
        self._held = {step: self._held[step] for step in checkpoint.steps(folder) if step in self._held}
        ahead = set() if newer is None else set(newer.memory.values())
        store.collect(ahead.union(*self._held.values()))
        if self.mirror is not None:
            self.mirror.push()

    @property
    def elapsed(self) -> float:
        """Seconds of this and earlier sittings."""
        return self.seconds + time.monotonic() - self._started

    def log(self, event: str, **facts: Any) -> None:
        """One line in `log.jsonl`."""
        path = self.folder / "log.jsonl"
        try:
            with open(path, "a") as file:
                file.write(json.dumps({"time": time.time(), "event": event, **facts}) + "\n")
        except OSError as error:
            raise files.disk_error(path, error) from error

    def finish(self, snapshot: Snapshot, status: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Join the tables, write `summary.json` and return it."""
        for name in TABLES:
            tables.join(self.folder / "tables", name, self.folder / f"{name}.parquet")
        rounds = tables.rows(self.folder / "rounds.parquet")  # far fewer than the ledger's rows, with their sums
        summary = {
            "status": status,
            "rounds": snapshot.step,
            "resumed_at": [resume["step"] for resume in self.manifest["resumes"]],
            **facts,
            "bytes": _sums(rounds, ""),
            "charged": _sums(rounds, "charged_"),
            "weights_sha256": snapshot.weights_sha256,
            "state_sha256": self.state_sha256,
        }
        self._write("summary.json", summary)
        if self.mirror is not None:
            self.mirror.push()
        return summary

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        data = json.dumps(content, indent=2).encode()
        files.write(self.folder / name, lambda file: file.write(data))


def _sums(rounds: list[dict[str, Any]], count: str) -> dict[str, int]:
    directions = (*ledger.DIRECTIONS, "total")
    return {direction: sum(row[f"{count}{direction}_bytes"] for row in rounds) for direction in directions}
