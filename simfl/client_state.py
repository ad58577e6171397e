"""What clients remember between visits: one file per state, named by the hash of its content.

Equal states share a file and a file never changes, so any number of processes may write at once, and a commit needs to
keep only the digests.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from simfl import files
from simfl.errors import RunError
from simfl.weights import State, flatten, load, sha256, unflatten, write_safetensors

EMPTY = sha256({})  # the digest of remembering nothing, which needs no file
STALE_SECONDS = 3600.0  # a temporary file this old was left by a process that died


class ClientStore(Protocol):
    """What a cohort needs of the place where clients' memory is."""

    def get(self, digest: str) -> State:
        """The state with this digest, not to be written to."""

    def write(self, state: State) -> str:
        """The digest of a state, which is sure to stay once `sync` has returned, or its keeper has acknowledged it."""

    def sync(self, digests: Iterable[str]) -> None:
        """Make sure of states."""


class FileClientStore:
    """A folder of states. It keeps what it read last, up to `cache_bytes`; what it gives out must not be written to."""

    def __init__(self, folder: Path, cache_bytes: int = 1 << 30) -> None:
        """The folder is made if need be."""
        self.folder, self.cache_bytes = Path(folder), cache_bytes
        self._cache: OrderedDict[str, State] = OrderedDict()
        self._cached_bytes = 0
        files.make_folder(self.folder)

    def put(self, state: State) -> str:
        """The digest of a state, which is on the disk when this returns."""
        return self.put_all([state])[0]

    def put_all(self, states: Sequence[State]) -> list[str]:
        """The digests of states, all on the disk when this returns; RunError if the disk refuses."""
        digests = [self.write(state) for state in states]
        self.sync(digests)
        return digests

    def write(self, state: State) -> str:
        """The digest of a state, whose file is written; it is sure to stay once `sync` has returned."""
        flat = {name: tensor.detach().cpu() for name, tensor in flatten(state).items()}
        digest = sha256(flat)
        if digest != EMPTY and not self._path(digest).exists():
            files.write(self._path(digest), lambda file: write_safetensors(flat, file))
        return digest

    def sync(self, digests: Iterable[str]) -> None:
        """Make sure of states: of files that were there too, whose writer may not have come this far."""
        if set(digests) - {EMPTY}:
            files.sync_folder(self.folder)

    def get(self, digest: str) -> State:
        """The state with this digest; RunError if it is missing or damaged."""
        if digest == EMPTY:
            return {}
        if digest not in self._cache:
            self._remember(digest, self._read(digest))
        self._cache.move_to_end(digest)
        state = self._cache[digest]
        self._evict()
        return {group: dict(tensors) for group, tensors in state.items()}

    def collect(self, keep: Collection[str]) -> int:
        """Deletes every state but those to keep, and says how many went.

        To be called while nobody writes, with the digests of every commit that may still be resumed from.
        """
        doomed = [path for path in self.folder.glob("*.safetensors") if path.stem not in keep]
        for path in doomed:
            path.unlink()
            self._forget(path.stem)
        for path in self.folder.glob(f"{files.TEMP}*"):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()
        return len(doomed)

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"

    def _read(self, digest: str) -> State:
        path = self._path(digest)
        try:
            flat = load(path)
        except FileNotFoundError as error:
            raise RunError(f"{path}: this client's memory is missing") from error
        except ValueError as error:
            raise RunError(f"{path}: this client's memory is damaged") from error
        except OSError as error:
            raise files.disk_error(path, error) from error
        if sha256(flat) != digest:
            raise RunError(f"{path}: this client's memory is damaged: its content has another hash than its name")
        return unflatten(flat)

    def _remember(self, digest: str, state: State) -> None:
        self._cache[digest] = state
        self._cached_bytes += _num_bytes(state)

    def _forget(self, digest: str) -> None:
        if digest in self._cache:
            self._cached_bytes -= _num_bytes(self._cache.pop(digest))

    def _evict(self) -> None:
        while self._cache and self._cached_bytes > self.cache_bytes:
            self._forget(next(iter(self._cache)))


def _num_bytes(state: State) -> int:
    return sum(tensor.nbytes for tensors in state.values() for tensor in tensors.values())
