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
class Commit:
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
    target = _path(folder, step)
    temp = files.temp_beside(target)
    digest = {STATE: sha256(tensors), FACTS: _sha256(_json(facts)), NOTES: _sha256(_json(notes or {}))}
    if _holds(folder, step, _state_sha256(digest)):
        return _state_sha256(digest)
    try:
        temp.mkdir(parents=True)
        files.write_synced(temp / STATE, lambda file: write_safetensors(tensors, file))
        files.write_synced(temp / FACTS, lambda file: file.write(_json(facts)))
        files.write_synced(temp / NOTES, lambda file: file.write(_json(notes or {})))
        files.write_synced(temp / DIGEST, lambda file: file.write(_json(digest)))
        files.sync_folder(temp)
        if target.exists():
            _discard(target)
        os.replace(temp, target)
        files.sync_folder(folder)
        _prune(folder, step)
    except OSError as error:
        raise files.disk_error(target, error) from error
    return _state_sha256(digest)


def latest(folder: Path) -> Commit | None:
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


def read(folder: Path, step: int, warning: str = "") -> Commit:
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
    return Commit(step, tensors, json.loads(facts), json.loads(notes), _state_sha256(digest), warning)


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
