"""A card: one file with what a run claims and everything that is needed to check it on another machine.

    card.json             the claims, the environment, and the hash of every other file
    run/...               experiment, manifest, partition, summary, tables, checkpoints and the client states they need

A card is a ZIP file. Equal runs give equal cards, since times and names of machines stay out of the order and the
headers of its files. The key of private noise never enters a card.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from simfl import files
from simfl.errors import DamagedFile, RunError
from simfl.json_files import body_of, describe_format, is_intact, seal
from simfl.privacy.randomness import KEY_FILE
from simfl.runs.folder import (
    CHECKPOINTS,
    CLIENT_STATES,
    MANIFEST,
    PARTITION,
    RUN,
    SUMMARY,
    TABLE_PARTS,
    JsonObject,
    file_sha256,
)
from simfl.runs.manifest import RunManifest
from simfl.runs.results import Run
from simfl.runs.summary import COMPLETED

FORMAT = 1  # of `card.json`
CARD, INSIDE = "card.json", "run/"
SINGLE = (RUN, MANIFEST, PARTITION, SUMMARY)
FOLDERS = (TABLE_PARTS, CHECKPOINTS, CLIENT_STATES)
EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of every file in a card
MODE = 0o644 << 16
CHUNK = 1 << 20
CLAIMED = ("name", "status", "rounds", "clients", "initial", "final", "baselines", "bytes", "charged", "plan")


def claims_of(run: Run) -> JsonObject:
    """Return what a run claims: scores, baselines, bytes, epsilon, and the hashes of what they come from.

    Raises:
        DamagedFile: A file of the run was altered.
        RunError: The run has not ended.
    """
    summary, manifest = run.summary, run.manifest
    claims = {name: summary.get(name) for name in CLAIMED}
    spent = {k: v for k, v in summary.get("privacy", {}).items() if k != "statement"}
    hashes = {
        "data": manifest.data_sha256,
        "partition": manifest.partition_sha256,
        "experiment": manifest.experiment_sha256,
        "weights": summary["weights_sha256"],
        "state": summary["state_sha256"],
    }
    return claims | ({"privacy": spent} if spent else {}) | {"seed": run.experiment.seed, "sha256": hashes}


def write_card(run: Run, path: Path) -> JsonObject:
    """Write the card of a run that has ended, and return the content of its `card.json`.

    Args:
        run: The run.
        path: The file; it must not exist.

    Raises:
        DamagedFile: A file of the run was altered.
        RunError: The run has not ended, or the file exists or cannot be written.
    """
    if path.exists():
        raise RunError(f"{path}: this file exists; give another name")
    status = run.summary["status"]
    if status != COMPLETED:
        raise RunError(f"{run.folder}: the run is {status}; a card needs a completed one; resume it with --resume")
    names = sorted(_files(run.folder))
    environment = RunManifest.read(run.folder).environment
    content = seal(
        {
            "claims": claims_of(run),
            "environment": {"simfl": environment.simfl, "libraries": dict(environment.libraries)},
            "files": {name: file_sha256(run.folder / name) for name in names},
        },
        FORMAT,
    )
    temp = files.temp_path(path)
    try:
        with zipfile.ZipFile(temp, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_entry(CARD), json.dumps(content, indent=1))
            for name in names:
                with open(run.folder / name, "rb") as source, archive.open(_entry(INSIDE + name), "w") as target:
                    shutil.copyfileobj(source, target, CHUNK)
        temp.replace(path)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise files.disk_error(path, error) from error
    return content


def open_card(path: Path, scratch: Path) -> tuple[Path, JsonObject]:
    """Unpack a card into an empty folder; return the run folder, and the content of `card.json`.

    Every file is compared with its hash. Only files that `card.json` names are written, and none outside the folder.

    Raises:
        DamagedFile: The file is no card, or something in it was altered, is missing or is not named.
        RunError: The card has another format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            content = _read_content(path, archive.read(CARD))
            _unpack(path, archive, content["files"], scratch)
    except (KeyError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].strip("'\"")
        raise DamagedFile(f"{path}: damaged, or not a card of simfl: {reason}") from None
    except OSError as error:
        raise DamagedFile(f"{path}: {error.strerror or error}") from None
    return scratch, content


def _read_content(path: Path, data: bytes) -> JsonObject:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise DamagedFile(f"{path}: damaged: {CARD}: {error}") from None
    if not isinstance(content, dict):
        raise DamagedFile(f"{path}: damaged: {CARD}: a mapping was expected")
    if difference := describe_format(content.get("format"), FORMAT):
        raise RunError(f"{path}: {CARD}: {difference}")
    if not is_intact(content) or not isinstance(content.get("files"), dict) or "claims" not in content:
        raise DamagedFile(f"{path}: damaged: {CARD} does not match its hash")
    return body_of(content)


def _unpack(path: Path, archive: zipfile.ZipFile, named: dict[str, str], scratch: Path) -> None:
    present = {name.removeprefix(INSIDE) for name in archive.namelist() if name.startswith(INSIDE)}
    for name in sorted(present ^ named.keys()):
        raise DamagedFile(f"{path}: damaged: {name} is {'not named in' if name in present else 'missing, named by'} it")
    for name, sha256 in named.items():
        if not _is_safe(name):
            raise DamagedFile(f"{path}: {name!r}: this name does not belong into a card")
        target, digest = scratch / name, hashlib.sha256()
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(INSIDE + name) as source, open(target, "wb") as file:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != sha256:
            raise DamagedFile(f"{path}: damaged: {name} does not match its hash")


def _is_safe(name: str) -> bool:
    """Return whether a name is one of those that a card of a run can have."""
    parts = PurePosixPath(name).parts
    known = name in SINGLE or (len(parts) > 1 and parts[0] in FOLDERS)
    return known and ".." not in parts and "\\" not in name and name == "/".join(parts)


def _files(folder: Path) -> Iterator[str]:
    yield from (name for name in SINGLE if (folder / name).exists())
    for name in FOLDERS:
        for path in (folder / name).rglob("*"):
            if path.is_file() and not path.name.startswith((files.TEMP, ".")) and path.name != KEY_FILE:
                yield path.relative_to(folder).as_posix()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, MODE
    return entry
