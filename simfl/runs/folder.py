"""Names and format of the files in a run folder, and checks of what a folder holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simfl.errors import RunError

FORMAT = 1  # version of the files that runs and sweeps leave; raise it when an older simfl could not read them

RUN, SWEEP = "experiment.yaml", "sweep.json"  # the file that marks the folder of a run; of a sweep
MANIFEST, SUMMARY, PARTITION = "manifest.json", "summary.json", "partition.json"
LOG, ERROR = "log.jsonl", "error.txt"  # ERROR is written by a sweep: why its run failed
CHECKPOINTS, TABLE_PARTS, CLIENT_STATES = "checkpoints", "tables", "client_states"  # folders

JsonObject = dict[str, Any]  # the content of a JSON file


def is_taken(folder: Path) -> bool:
    """Return whether the folder holds a run or a sweep."""
    return (folder / SWEEP).exists() or (folder / RUN).exists()


def refuse_taken(folder: Path) -> None:
    """Raise RunError if the folder holds a run or a sweep."""
    if (folder / SWEEP).exists():
        raise RunError(f"{folder}: the folder holds a sweep already; give another --out")
    if (folder / RUN).exists():
        raise RunError(f"{folder}: the folder holds a run already; resume it with --resume, or give another --out")


def require_run(folder: Path) -> None:
    """Raise RunError if the folder holds no run, or one whose files have another format."""
    if (folder / SWEEP).exists():
        runs = sorted(path.parent for path in folder.glob(f"runs/*/{RUN}"))
        hint = f"; name one of its runs, such as {runs[0]}" if runs else ""
        raise RunError(f"{folder}: the folder holds a sweep, not a run{hint}")
    if not (folder / RUN).exists():
        raise RunError(f"{folder}: the folder holds no run")
    check_run_format(folder)


def check_run_format(folder: Path) -> None:
    """Raise RunError if the files of a run have another format than this simfl reads and writes."""
    read_json(folder / MANIFEST)


def read_json(path: Path) -> JsonObject:
    """Read a JSON file that carries a format number: a manifest, a sweep, the digests of a checkpoint.

    Raises:
        RunError: The file is missing or damaged, or has another format.
    """
    try:
        content: JsonObject = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path.parent}: {path.name} is missing; the folder is incomplete") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: damaged: {str(error).splitlines()[0]}") from None
    check_format(path, content)
    return content


def check_format(path: Path, content: JsonObject) -> None:
    """Raise RunError if the content of a file has another format than this simfl reads and writes."""
    found = content.get("format")
    if found != FORMAT:
        shown = "no format number" if found is None else f"format {found}"
        raise RunError(
            f"{path}: {shown} found, format {FORMAT} expected; the file is from another version of simfl:"
            " run the experiment again, or use that version"
        )
