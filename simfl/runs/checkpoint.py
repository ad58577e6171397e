"""Checkpoints: the complete state of a run after a number of rounds, written atomically.

    checkpoints/000012/state.safetensors   every tensor
                       state.json          every other value that the run's future depends on
                       notes.json          values that may differ between two equal runs: clock times
                       digests.json        the hashes of the files above, and the format

A checkpoint is filled under a temporary name, forced to the disk, and renamed in one step. The newest two are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simfl import files
from simfl.errors import RunError
from simfl.runs.folder import FORMAT, check_format
from simfl.weights import Weights, load_safetensors, sha256, write_safetensors

NUM_KEPT = 2
TENSORS, VALUES, NOTES, DIGESTS = "state.safetensors", "state.json", "notes.json", "digests.json"


class DamagedCheckpoint(RunError):
    """A checkpoint is missing, or its content does not match its hashes."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint as read from the disk, with its hashes verified."""

    step: int
    tensors: Weights
    values: dict[str, object]
    notes: dict[str, object]
    state_sha256: str  # of tensors and values
    warning: str = ""  # not empty: newer checkpoints are damaged and were skipped


def write(
    folder: Path, step: int, tensors: Weights, values: Mapping[str, object], notes: Mapping[str, object] | None = None
) -> str:
    """Write `<folder>/<step>` and return its state_sha256; RunError if the disk refuses.

    Values and notes are JSON (string keys; NaN allowed). Nothing is written if an equal state exists already; a
    different checkpoint of the same step is replaced.
    """
    tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    texts = {VALUES: _json(values), NOTES: _json(notes or {})}
    digests = {TENSORS: sha256(tensors)} | {name: _sha256(text) for name, text in texts.items()}
    state_sha256 = _state_sha256(digests)
    if not _exists(folder, step, state_sha256):
        files.make_folder(folder)
        _write_folder(_path(folder, step), tensors, {**texts, DIGESTS: _json({"format": FORMAT, **digests})})
        _prune(folder, step)
    return state_sha256


def latest(folder: Path) -> StoredCheckpoint | None:
    """Read the newest undamaged checkpoint; its warning names newer damaged ones. None if there is no checkpoint.

    Raises:
        RunError: Every checkpoint is damaged, or one has another format.
    """
    damage: list[str] = []
    for step in reversed(steps(folder)):
        try:
            return read(folder, step, warning="; ".join(damage))
        except DamagedCheckpoint as error:
            damage.append(f"{error}; using the previous checkpoint")
    if damage:
        raise RunError(f"{folder}: every checkpoint is damaged: {', '.join(str(step) for step in steps(folder))}")
    return None


def read(folder: Path, step: int, warning: str = "") -> StoredCheckpoint:
    """Read the checkpoint of one step.

    Raises:
        DamagedCheckpoint: The checkpoint is missing, or a hash does not match.
        RunError: It has another format.
    """
    path = _path(folder, step)
    try:
        digests = json.loads((path / DIGESTS).read_bytes())
        check_format(path / DIGESTS, digests)
        values, notes = (path / VALUES).read_bytes(), (path / NOTES).read_bytes()
        tensors = load_safetensors(path / TENSORS)
        found = {TENSORS: sha256(tensors), VALUES: _sha256(values), NOTES: _sha256(notes)}
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(f"{path}: damaged checkpoint: {str(error).splitlines()[0]}") from error
    wrong = [name for name in found if digests.get(name) != found[name]]
    if wrong:
        raise DamagedCheckpoint(f"{path}: damaged checkpoint: {', '.join(wrong)} does not match its hash")
    return StoredCheckpoint(step, tensors, json.loads(values), json.loads(notes), _state_sha256(digests), warning)


def steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, in order; damaged ones are included."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else []


def drop_after(folder: Path, step: int) -> None:
    """Delete the checkpoints after a step, so that a resumed run does not count damaged ones among the newest two."""
    for later in steps(folder):
        if later > step:
            _delete(_path(folder, later))


def _exists(folder: Path, step: int, state_sha256: str) -> bool:
    """Return whether the step has an undamaged checkpoint of this state."""
    try:
        return step in steps(folder) and read(folder, step).state_sha256 == state_sha256
    except RunError:
        return False  # a damaged checkpoint is replaced


def _write_folder(target: Path, tensors: Weights, texts: Mapping[str, bytes]) -> None:
    temp = files.temp_path(target)
    try:
        temp.mkdir()
        files.write_synced(temp / TENSORS, lambda file: write_safetensors(tensors, file))
        for name, text in texts.items():
            _write_text(temp / name, text)
        files.sync_folder(temp)
        if target.exists():
            _delete(target)
        os.replace(temp, target)
        files.sync_folder(target.parent)
    except OSError as error:
        shutil.rmtree(temp, ignore_errors=True)
        raise files.disk_error(target, error) from error


def _write_text(path: Path, text: bytes) -> None:
    files.write_synced(path, lambda file: file.write(text))


def _prune(folder: Path, newest: int) -> None:
    for step in [step for step in steps(folder) if step <= newest][:-NUM_KEPT]:
        _delete(_path(folder, step))
    for path in folder.glob(f"{files.TEMP}*"):
        shutil.rmtree(path)


def _delete(path: Path) -> None:
    """Rename the folder before deleting it, so that no process sees a partly deleted checkpoint."""
    doomed = files.temp_path(path)
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def _path(folder: Path, step: int) -> Path:
    return folder / f"{step:06d}"


def _json(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, sort_keys=True, indent=1).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _state_sha256(digests: Mapping[str, str]) -> str:
    return _sha256(f"{digests[TENSORS]} {digests[VALUES]}".encode())
