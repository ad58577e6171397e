"""Storage of what clients keep between rounds: one file per state, named by the hash of its content.

Equal states share a file and files never change, so any number of processes may write at once, and a checkpoint only
stores digests.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from simfl import files
from simfl.errors import DamagedFile
from simfl.weights import State, flatten, load_safetensors, sha256, unflatten, write_safetensors

EMPTY = sha256({})  # digest of the empty state, which needs no file
STALE_SECONDS = 3600.0  # age from which a temporary file belongs to a process that died


class ClientStore(Protocol):
    """The storage of client states, as a worker uses it."""

    def get(self, digest: str) -> State:
        """Return the state with this digest; it must not be written to."""

    def write(self, state: State) -> str:
        """Write a state and return its digest; it is durable after `sync`, or once its owner has acknowledged it."""

    def sync(self, digests: Iterable[str]) -> None:
        """Make states durable."""


class FileClientStore:
    """A folder of states, with a cache of the last ones read, of up to `cache_bytes`."""

    def __init__(self, folder: Path, cache_bytes: int = 1 << 30) -> None:
        """Create the folder if it does not exist."""
        self.folder, self.cache_bytes = Path(folder), cache_bytes
        self._cache: OrderedDict[str, State] = OrderedDict()
        self._cached_bytes = 0
        files.make_folder(self.folder)

    def put(self, state: State) -> str:
        """Write a state durably and return its digest."""
        return self.put_all([state])[0]

    def put_all(self, states: Sequence[State]) -> list[str]:
        """Write states durably and return their digests; RunError if the disk refuses."""
        digests = [self.write(state) for state in states]
        self.sync(digests)
        return digests

    def write(self, state: State) -> str:
        """Write the file of a state and return its digest; it is durable after `sync`."""
        flat = {name: tensor.detach().cpu() for name, tensor in flatten(state).items()}
        digest = sha256(flat)
        if digest != EMPTY and not self._path(digest).exists():
            files.write(self._path(digest), lambda file: write_safetensors(flat, file))
        return digest

    def sync(self, digests: Iterable[str]) -> None:
        """Make states durable, including files that existed before, whose writer may not have synced yet."""
        if set(digests) - {EMPTY}:
            files.sync_folder(self.folder)

    def get(self, digest: str) -> State:
        """Return the state with this digest; its tensors must not be written to.

        Raises:
            DamagedFile: Its file is missing or damaged.
        """
        if digest == EMPTY:
            return {}
        if digest not in self._cache:
            self._add_to_cache(digest, self._read(digest))
        self._cache.move_to_end(digest)
        state = self._cache[digest]
        self._evict()
        return {group: dict(tensors) for group, tensors in state.items()}

    def verify(self, digests: Iterable[str]) -> None:
        """Read the files of states. DamagedFile if one is missing or damaged."""
        for digest in sorted(set(digests) - {EMPTY}):
            self._read(digest)

    def collect(self, keep: Collection[str]) -> int:
        """Delete every state except those to keep, and return how many were deleted.

        Call it while no process writes, with the digests of every checkpoint that may still be resumed from.
        """
        unused = [path for path in self.folder.glob("*.safetensors") if path.stem not in keep]
        for path in unused:
            path.unlink()
            self._drop(path.stem)
        for path in self.folder.glob(f"{files.TEMP}*"):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()
        return len(unused)

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"

    def _read(self, digest: str) -> State:
        path = self._path(digest)
        try:
            flat = load_safetensors(path, ordered=True)
        except FileNotFoundError as error:
            raise DamagedFile(f"{path}: this client state is missing") from error
        except ValueError as error:
            raise DamagedFile(f"{path}: this client state is damaged") from error
        except OSError as error:
            raise files.disk_error(path, error) from error
        if sha256(flat) != digest:
            raise DamagedFile(f"{path}: this client state is damaged: the hash of its content is not its name")
        return unflatten(flat)

    def _add_to_cache(self, digest: str, state: State) -> None:
        self._cache[digest] = state
        self._cached_bytes += _num_bytes(state)

    def _drop(self, digest: str) -> None:
        if digest in self._cache:
            self._cached_bytes -= _num_bytes(self._cache.pop(digest))

    def _evict(self) -> None:
        while self._cache and self._cached_bytes > self.cache_bytes:
            self._drop(next(iter(self._cache)))


def _num_bytes(state: State) -> int:
    return sum(tensor.nbytes for tensors in state.values() for tensor in tensors.values())
