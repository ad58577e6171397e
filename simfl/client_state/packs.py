"""Files with many states each: 10,000 clients do not need 10,000 files, on a disk or in an object store.

    client_states/<hash of the index>.pack

A pack holds safetensors files, one after the other, then its index (JSON: digest -> offset and length in bytes), then
the length of the index, its SHA-256 and `END`. A pack gets its name once it is complete, and never changes; it is on
the disk before a checkpoint refers to it. A safetensors file `<digest>.safetensors`, as runs of format 2 have them, is
read as a pack of one state.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from simfl import files
from simfl.errors import DamagedFile

SUFFIX, SINGLE = ".pack", ".safetensors"
END = b"simfl pack 1\n\x00\x00\x00"  # 16 bytes
TRAILER = 8 + 32 + len(END)  # bytes after the index


class Place(NamedTuple):
    """Bytes of a state in its pack."""

    offset: int
    length: int


@dataclass(frozen=True, eq=False)
class Pack:
    """A complete pack."""

    path: Path
    index: Mapping[str, Place]  # by digest
    names: frozenset[str] = field(default_factory=frozenset)  # the digests

    @staticmethod
    def open(path: Path) -> Pack:
        """Read the index of a pack.

        Raises:
            DamagedFile: The file is no complete pack.
            FileNotFoundError: It was deleted.
        """
        if path.suffix == SINGLE:
            return Pack(path, {path.stem: Place(0, path.stat().st_size)}, frozenset([path.stem]))
        with open(path, "rb") as file:
            index = _read_index(file)
        if index is None:
            raise DamagedFile(f"{path}: this file of client states is damaged")
        return Pack(path, index, frozenset(index))

    @property
    def num_bytes(self) -> int:
        """Bytes of all states."""
        return sum(place.length for place in self.index.values())

    def num_bytes_of(self, digests: Iterable[str]) -> int:
        """Return the bytes of some of its states."""
        return sum(self.index[digest].length for digest in digests)

    def read(self, digest: str) -> bytes:
        """Return the bytes of a state, which are not verified; OSError if the disk fails."""
        offset, length = self.index[digest]
        with open(self.path, "rb") as file:
            return os.pread(file.fileno(), length, offset)


class PackWriter:
    """A pack that is being written, under a temporary name."""

    def __init__(self, folder: Path) -> None:
        """Create the file; OSError if the disk refuses."""
        self.folder, self.index = folder, dict[str, Place]()
        self._path = files.temp_path(folder / f"states{SUFFIX}")
        self._file = open(self._path, "wb")  # noqa: SIM115  (closed by `close` and `discard`)

    @property
    def num_bytes(self) -> int:
        """Bytes of all states so far."""
        return self._file.tell()

    def add(self, digest: str, fill: Callable[[BinaryIO], object]) -> None:
        """Add a state, whose bytes `fill` writes."""
        start = self._file.tell()
        fill(self._file)
        self.index[digest] = Place(start, self._file.tell() - start)

    def close(self) -> Pack:
        """Complete the pack and give it its name, without waiting for the disk."""
        text = json.dumps(self.index, separators=(",", ":")).encode()
        digest = hashlib.sha256(text)
        self._file.write(text + len(text).to_bytes(8, "little") + digest.digest() + END)
        self._file.close()
        target = self.folder / f"{digest.hexdigest()}{SUFFIX}"
        os.replace(self._path, target)
        return Pack(target, self.index, frozenset(self.index))

    def discard(self) -> None:
        """Delete the unfinished file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def paths(folder: Path) -> Iterator[Path]:
    """Yield the paths of all packs in a folder."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        if name.endswith((SUFFIX, SINGLE)) and not name.startswith(files.TEMP):
            yield folder / name


def _read_index(file: BinaryIO) -> dict[str, Place] | None:
    """Return the index at the end of a file; None if the file is damaged."""
    size = file.seek(0, os.SEEK_END)
    if size < TRAILER:
        return None
    file.seek(size - TRAILER)
    trailer = file.read(TRAILER)
    length, digest = int.from_bytes(trailer[:8], "little"), trailer[8:40]
    if trailer[40:] != END or length > size - TRAILER:
        return None
    file.seek(size - TRAILER - length)
    text = file.read(length)
    if hashlib.sha256(text).digest() != digest:
        return None
    return {name: Place(*place) for name, place in json.loads(text).items()}
