"""Checkpoints: the complete state of a run after a number of rounds, written atomically.

    checkpoints/000012/state.safetensors   every tensor
                       state.json          every other value that the run's future depends on
                       notes.json          values that may differ between two equal runs: clock times
                       digests.json        the format, the hashes of the files above, and which table parts are covered

A checkpoint is filled under a temporary name, forced to the disk, and renamed in one step. The newest two are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from simfl import files
from simfl.errors import DamagedFile, RunError
from simfl.json_files import seal
from simfl.runs.folder import DIGESTS, FORMAT, read_json
from simfl.runs.parts import Coverage

if TYPE_CHECKING:
    from simfl.weights import Weights

NUM_KEPT = 2
TENSORS, VALUES, NOTES = "state.safetensors", "state.json", "notes.json"
ORDER, TABLE_PARTS = "order", "table_parts"  # further entries of the digests: hash of the order of tensors; coverage
RETRIES, RETRY_SECONDS = 3, 0.05  # a checkpoint that a running process replaces is missing for a moment


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint as read from the disk, with its hashes verified."""

    step: int
    tensors: Weights
    values: dict[str, object]
    notes: dict[str, object]
    state_sha256: str  # of tensors and values
    coverage: Coverage = field(default_factory=Coverage)  # the parts of tables that it needs
    warning: str = ""  # not empty: newer checkpoints are damaged and were skipped


def write(
    folder: Path,
    step: int,
    tensors: Weights,
    values: Mapping[str, object],
    notes: Mapping[str, object] | None = None,
    coverage: Coverage | None = None,
) -> str:
    """Write `<folder>/<step>` and return its state_sha256; RunError if the disk refuses.

    Values and notes are JSON (string keys; NaN allowed). Nothing is written if an equal state exists already; a
    different checkpoint of the same step is replaced.
    """
    from simfl.weights import sha256  # imports torch, which is not needed to read the coverage of a checkpoint

    tensors, coverage = {name: tensor.detach().cpu() for name, tensor in tensors.items()}, coverage or Coverage()
    texts = {VALUES: _json(values), NOTES: _json(notes or {})}

    def digests() -> dict[str, object]:
        found: dict[str, object] = {TENSORS: sha256(tensors), ORDER: _order_sha256(tensors)}
        return found | {name: _sha256(text) for name, text in texts.items()}

    if step in steps(folder):
        state_sha256 = _state_sha256(digests())
        if _exists(folder, step, state_sha256, coverage):
            return state_sha256
    files.make_folder(folder)
    with ThreadPoolExecutor(1, "hash") as thread:  # hashing takes as long as writing, and neither holds the interpreter
        hashed = thread.submit(digests)

        def sealed() -> bytes:
            return _json(seal({**hashed.result(), TABLE_PARTS: coverage.to_json()}, FORMAT))

        _write_folder(_path(folder, step), tensors, texts, sealed)
        state_sha256 = _state_sha256(hashed.result())
    _prune(folder, step)
    return state_sha256


def latest(folder: Path, check: Callable[[StoredCheckpoint], object] = bool) -> StoredCheckpoint | None:
    """Read the newest undamaged checkpoint; its warning names newer damaged ones. None if there is no checkpoint.

    Args:
        folder: The folder of the checkpoints.
        check: Verifies the other files that a checkpoint needs; raises DamagedFile.

    Raises:
        RunError: Every checkpoint is damaged, or one has another format.
    """
    damage: list[str] = []
    for step in reversed(steps(folder)):
        try:
            found = read(folder, step)
            check(found)
        except DamagedFile as error:
            damage.append(str(error))
            continue
        return replace(found, warning="; ".join(f"{line}; using the previous checkpoint" for line in damage))
    if damage:
        raise RunError(f"{folder}: no checkpoint can be restored: {'; '.join(dict.fromkeys(damage))}")
    return None


def newest(folder: Path) -> StoredCheckpoint | None:
    """Read the newest checkpoint, of a run that may be in progress; None if there is no checkpoint.

    Raises:
        DamagedFile: It is damaged; an older one is not read in its place.
        RunError: It has another format.
    """
    for attempt in range(RETRIES + 1):
        found = steps(folder)
        try:
            return read(folder, found[-1]) if found else None
        except DamagedFile as error:
            if attempt == RETRIES or _path(folder, found[-1]).is_dir():
                others = ", ".join(str(step) for step in found[:-1])
                hint = f"; there are older checkpoints, after round {others}" if others else ""
                raise DamagedFile(f"{error}{hint}") from error
            time.sleep(RETRY_SECONDS)
    raise AssertionError("the last attempt returns or raises")


def covered_parts(folder: Path) -> Coverage | None:
    """Return the coverage of the newest checkpoint without reading its tensors; None if there is no checkpoint.

    Raises:
        DamagedFile: It is damaged.
    """
    found = steps(folder)
    return _coverage(_path(folder, found[-1]) / DIGESTS) if found else None


def least_coverage(folder: Path) -> int:
    """Return the number of lines of the index of tables that every checkpoint covers; 0 if one is damaged."""
    try:
        return min(_coverage(_path(folder, step) / DIGESTS).parts for step in steps(folder))
    except DamagedFile:
        return 0


def _coverage(path: Path) -> Coverage:
    try:
        return Coverage.from_json(read_json(path).get(TABLE_PARTS))
    except ValueError as error:
        raise DamagedFile(f"{path}: damaged: {error}") from None


def read(folder: Path, step: int) -> StoredCheckpoint:
    """Read the checkpoint of one step.

    Raises:
        DamagedFile: The checkpoint is missing, or a hash does not match.
        RunError: It has another format.
    """
    from simfl.weights import load_safetensors, sha256

    path = _path(folder, step)
    if not path.is_dir():
        raise DamagedFile(f"{path}: damaged checkpoint: the folder is missing")
    try:
        digests, coverage = read_json(path / DIGESTS), _coverage(path / DIGESTS)
        values, notes = (path / VALUES).read_bytes(), (path / NOTES).read_bytes()
        tensors = load_safetensors(path / TENSORS)
        found = {TENSORS: sha256(tensors), ORDER: _order_sha256(tensors)}
        found |= {VALUES: _sha256(values), NOTES: _sha256(notes)}
    except (OSError, ValueError, DamagedFile) as error:
        raise DamagedFile(f"{path}: damaged checkpoint: {str(error).splitlines()[0]}") from error
    wrong = [name for name in found if digests.get(name) != found[name]]
    if wrong:
        names = ", ".join(TENSORS if name == ORDER else name for name in wrong)
        raise DamagedFile(f"{path}: damaged checkpoint: {names} does not match its hash")
    return StoredCheckpoint(step, tensors, json.loads(values), json.loads(notes), _state_sha256(digests), coverage)


def steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, in order; damaged ones are included."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else []


def drop_after(folder: Path, step: int) -> None:
    """Delete the checkpoints after a step, so that a resumed run does not count damaged ones among the newest two."""
    for later in steps(folder):
        if later > step:
            _delete(_path(folder, later))


def _exists(folder: Path, step: int, state_sha256: str, coverage: Coverage) -> bool:
    """Return whether the checkpoint of the step is undamaged and has this state and the same table parts."""
    try:
        found = read(folder, step)
    except RunError:
        return False  # a damaged checkpoint is replaced
    return (found.state_sha256, found.coverage) == (state_sha256, coverage)


def _write_folder(target: Path, tensors: Weights, texts: Mapping[str, bytes], digests: Callable[[], bytes]) -> None:
    """Write the files of a checkpoint; `digests` returns the content of the last one, once the hashes are known."""
    from simfl.weights import write_safetensors

    temp = files.temp_path(target)
    try:
        temp.mkdir()
        files.write_synced(temp / TENSORS, lambda file: write_safetensors(tensors, file))
        for name, text in texts.items():
            _write_text(temp / name, text)
        _write_text(temp / DIGESTS, digests())
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


def _order_sha256(tensors: Weights) -> str:
    return _sha256(json.dumps(list(tensors)).encode())


def _state_sha256(digests: Mapping[str, object]) -> str:
    return _sha256(f"{digests[TENSORS]} {digests[VALUES]}".encode())
