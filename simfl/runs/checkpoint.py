"""Commits: all that a run needs to go on, written whole or not at all.

    checkpoints/000012/state.safetensors   every tensor
                       facts.json          everything else that the run's future depends on
                       notes.json          what may differ between two equal runs: clock times, resumes
                       digest.json         the hashes of the above

A commit is filled under a temporary name, forced to the disk, and takes its name in one step. The newest two are kept.
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
from simfl.weights import Weights, load, sha256, write_safetensors

KEPT = 2
STATE, FACTS, NOTES, DIGEST = "state.safetensors", "facts.json", "notes.json", "digest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A commit as read from the disk, with its hashes verified."""

    step: int
    tensors: Weights
    facts: dict[str, object]
    notes: dict[str, object]
    state_sha256: str  # of tensors and facts
    warning: str = ""  # not empty: newer commits were damaged and passed over


def commit(
    folder: Path, step: int, tensors: Weights, facts: Mapping[str, object], notes: Mapping[str, object] | None = None
) -> str:
    """Writes `<folder>/<step>` and returns its state_sha256; RunError if the disk refuses.

    Facts and notes are JSON (string keys; NaN allowed). Nothing is written if this very state is there already; another
    commit of the same step is replaced.
    """
    tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    texts = {FACTS: _json(facts), NOTES: _json(notes or {})}
    digest = {STATE: sha256(tensors)} | {name: _sha256(text) for name, text in texts.items()}
    if not _holds(folder, step, _state_sha256(digest)):
        files.make_folder(folder)
        _write(_path(folder, step), tensors, {**texts, DIGEST: _json(digest)})
        _prune(folder, step)
    return _state_sha256(digest)


def latest(folder: Path) -> Checkpoint | None:
    """The newest commit whose hashes hold, with a warning if newer ones are damaged; None if there never was one.

    RunError if there are commits and all are damaged.
    """
    damage: list[str] = []
    for step in reversed(steps(folder)):
        try:
            return read(folder, step, warning="; ".join(damage))
        except RunError as error:
            damage.append(f"{error}; falling back to the commit before")
    if damage:
        raise RunError(f"{folder}: every commit is damaged: {', '.join(str(step) for step in steps(folder))}")
    return None


def read(folder: Path, step: int, warning: str = "") -> Checkpoint:
    """The commit of one step; RunError if it is missing or its hashes do not hold."""
    path = _path(folder, step)
    try:
        digest = json.loads((path / DIGEST).read_bytes())
        facts, notes = (path / FACTS).read_bytes(), (path / NOTES).read_bytes()
        tensors = load(path / STATE)
        found = {STATE: sha256(tensors), FACTS: _sha256(facts), NOTES: _sha256(notes)}
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: damaged commit: {str(error).splitlines()[0]}") from error
    wrong = [name for name in found if digest.get(name) != found[name]]
    if wrong:
        raise RunError(f"{path}: damaged commit: the hash of {', '.join(wrong)} does not hold")
    return Checkpoint(step, tensors, json.loads(facts), json.loads(notes), _state_sha256(digest), warning)


def steps(folder: Path) -> list[int]:
    """The steps that have a commit, damaged ones included, in order."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else []


def drop_after(folder: Path, step: int) -> None:
    """Deletes the commits after a step: a run that resumes from it must not count damaged ones among the newest two."""
    for later in steps(folder):
        if later > step:
            _discard(_path(folder, later))


def _holds(folder: Path, step: int, state_sha256: str) -> bool:
    try:
        return step in steps(folder) and read(folder, step).state_sha256 == state_sha256
    except RunError:
        return False  # a damaged commit is replaced


def _write(target: Path, tensors: Weights, texts: Mapping[str, bytes]) -> None:
    temp = files.temp_beside(target)
    try:
        temp.mkdir()
        files.write_synced(temp / STATE, lambda file: write_safetensors(tensors, file))
        for name, text in texts.items():
            _write_text(temp / name, text)
        files.sync_folder(temp)
        if target.exists():
            _discard(target)
        os.replace(temp, target)
        files.sync_folder(target.parent)
    except OSError as error:
        shutil.rmtree(temp, ignore_errors=True)
        raise files.disk_error(target, error) from error


def _write_text(path: Path, text: bytes) -> None:
    files.write_synced(path, lambda file: file.write(text))


def _prune(folder: Path, newest: int) -> None:
    for step in [step for step in steps(folder) if step <= newest][:-KEPT]:
        _discard(_path(folder, step))
    for path in folder.glob(f"{files.TEMP}*"):
        shutil.rmtree(path)


def _discard(path: Path) -> None:
    """The name goes in one step, so that a commit is never seen half deleted."""
    doomed = files.temp_beside(path)
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def _path(folder: Path, step: int) -> Path:
    return folder / f"{step:06d}"


def _json(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, sort_keys=True, indent=1).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _state_sha256(digest: Mapping[str, str]) -> str:
    return _sha256(f"{digest[STATE]} {digest[FACTS]}".encode())
