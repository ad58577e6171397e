"""Names and format of the files in a run folder, and checks of what a folder holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simfl import files
from simfl.errors import DamagedFile, RunError
from simfl.json_files import describe_format, is_intact, seal

FORMAT = 3  # version of the files that runs and sweeps leave; raise it when an older simfl could not read them
READ_FORMATS = (2, FORMAT)  # format 2 has a file for each client state; a run that is resumed gets the newest format

RUN, SWEEP = "experiment.yaml", "sweep.json"  # the file that marks the folder of a run; of a sweep
MANIFEST, SUMMARY, PARTITION = "manifest.json", "summary.json", "partition.json"
HETEROGENEITY = "heterogeneity.json"  # counts of values at clients, for the figure of the report
AUDIT = "audit.json"  # written after the run, by `simfl audit canaries --save`
CLIENT_LOG = "clients.jsonl"  # times of client updates
LOG, ERROR = "log.jsonl", "error.txt"  # ERROR is written by a sweep: why its run failed
CHECKPOINTS, TABLE_PARTS, CLIENT_STATES = "checkpoints", "tables", "client_states"  # folders
DIGESTS = "digests.json"  # of a checkpoint, its last file

JsonObject = dict[str, Any]  # the content of a JSON file


def is_taken(folder: Path) -> bool:
    """Return whether the folder holds a run or a sweep."""
    return (folder / SWEEP).exists() or (folder / RUN).exists()


def refuse_taken(folder: Path) -> None:
    """Raise RunError if the folder holds a run or a sweep."""
    if (folder / SWEEP).exists():
        raise RunError(f"{folder}: the folder holds a sweep already; give another --out")
    if (folder / RUN).exists() or (folder / CHECKPOINTS).exists():
        raise RunError(f"{folder}: the folder holds a run already; resume it with --resume, or give another --out")


def require_run(folder: Path) -> None:
    """Raise RunError if the folder holds no run, or one whose files have another format."""
    if (folder / SWEEP).exists():
        runs = sorted(path.parent for path in folder.glob(f"runs/*/{RUN}"))
        hint = f"; name one of its runs, such as {runs[0]}" if runs else ""
        raise RunError(f"{folder}: the folder holds a sweep, not a run{hint}")
    if (folder / MANIFEST).exists():
        check_run_format(folder)
    if not (folder / RUN).exists():
        raise missing_run(folder)
    check_run_format(folder)


def missing_run(folder: Path) -> RunError:
    """Return the error for a folder without an experiment: it holds no run, or one whose experiment was lost."""
    if (folder / MANIFEST).exists():
        return DamagedFile(f"{folder}: {RUN} is missing; the folder is incomplete")
    return RunError(f"{folder}: the folder holds no run")


def check_run_format(folder: Path) -> None:
    """Raise RunError if the files of a run have another format than this simfl reads and writes."""
    read_json(folder / MANIFEST)


def write_json(path: Path, content: Mapping[str, object]) -> JsonObject:
    """Write a JSON file atomically and return its content, with format number and hash; RunError if the disk refuses.

    The caller syncs the folder.
    """
    sealed = seal(content, FORMAT)
    data = json.dumps(sealed, indent=2).encode()
    files.write(path, lambda file: file.write(data))
    return sealed


def read_json(path: Path) -> JsonObject:
    """Read a JSON file that `write_json` wrote: a manifest, a summary, a sweep; format number and hash are included.

    Raises:
        DamagedFile: The file is missing or was altered.
        RunError: It has another format.
    """
    content = parse_json(path)
    if not is_intact(content):
        raise DamagedFile(f"{path}: damaged: the content does not match its hash")
    return content


def parse_json(path: Path) -> JsonObject:
    """Read a JSON file that carries a format number; the content is not verified.

    Raises:
        DamagedFile: The file is missing or is no JSON.
        RunError: It has another format.
    """
    try:
        content: JsonObject = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DamagedFile(f"{path.parent}: {path.name} is missing; the folder is incomplete") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: damaged: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise DamagedFile(f"{path}: damaged: a mapping was expected")
    check_format(path, content)
    return content


def check_format(path: Path, content: JsonObject) -> None:
    """Raise RunError if the content of a file has another format than this simfl reads and writes."""
    number = content.get("format")
    difference = "" if number in READ_FORMATS else describe_format(number, FORMAT)
    if difference:
        raise RunError(
            f"{path}: {difference}; the file is from another version of simfl:"
            " run the experiment again, or use that version"
        )


def file_sha256(path: Path) -> str:
    """Return the hash of a file; DamagedFile if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DamagedFile(f"{path}: this file is missing") from None
    except OSError as error:
        raise DamagedFile(f"{path}: {error.strerror or error}") from None
