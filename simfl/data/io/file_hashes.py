"""Hashes of the contents of files, computed once and kept in the cache.

A hash is computed again when the file is another one, or has another size, time of modification or time of change. The
system sets the time of change itself, so a file that was altered is noticed, whatever its time of modification says.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path

from simfl import files
from simfl.errors import SimflError
from simfl.json_files import is_intact, seal

MEMO, FORMAT = "file_hashes.json", 1  # in the cache folder
SETTLED_SECONDS = 2.0  # a file changed less than this ago may change again without another time


class FileHashes:
    """Hashes of files; those of earlier processes are used for files that have not changed since."""

    def __init__(self, cache: Path) -> None:
        """Read the hashes that are kept in the cache folder."""
        self._memo, self._new = cache / MEMO, dict[str, list[object]]()
        self._known = _read(self._memo)

    def sha256(self, path: Path) -> str:
        """Return the hash of a file's content. OSError if it cannot be read."""
        name, stamp = str(path.resolve()), _stamp(path)
        known = self._known.get(name, [])
        if known[:-1] == stamp:
            return str(known[-1])
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if _stamp(path) == stamp and time.time() - path.stat().st_ctime > SETTLED_SECONDS:
            self._new[name] = [*stamp, digest]
        return digest

    def save(self) -> None:
        """Keep the new hashes in the cache folder, where it can be written."""
        if self._new:
            kept = {name: known for name, known in _read(self._memo).items() if Path(name).exists()}
            content = json.dumps(seal({"files": {**kept, **self._new}}, FORMAT)).encode()
            with suppress(OSError, SimflError):
                files.write(self._memo, lambda file: file.write(content))


def _read(memo: Path) -> dict[str, list[object]]:
    with suppress(OSError, ValueError):
        content = json.loads(memo.read_bytes())
        if isinstance(content, dict) and content.get("format") == FORMAT and is_intact(content):
            found: dict[str, list[object]] = content["files"]
            return found
    return {}  # all hashes are computed again


def _stamp(path: Path) -> list[object]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
