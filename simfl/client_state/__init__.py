"""Storage of what clients keep between rounds: states named by the hash of their content, many of them in a file.

A worker writes one file for each cohort (`packs`), before the cohort counts as done. Files never change and each holds
its own index, so any number of processes may write at once, and a checkpoint only stores digests. The driver waits for
the disk before a checkpoint refers to a file (of NFS, a worker's machine has sent the file when it closes it). It
deletes states that no checkpoint needs, and merges small files and files of which less than half is needed.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from simfl import files
from simfl.client_state import packs
from simfl.client_state.packs import Pack, PackWriter
from simfl.errors import DamagedFile, RunError
from simfl.weights import State, flatten, parse_safetensors, sha256, unflatten, write_safetensors

EMPTY = sha256({})  # digest of the empty state, which needs no file
MERGED_PACKS = 32  # packs of about the same size that are merged into one
MAX_PACK_BYTES = 256 << 20  # of merged states; larger packs are merged only once less than half of them is needed
YOUNG = 2  # calls of `collect` after which a pack may be merged; most states are replaced before
STALE_SECONDS = 3600.0  # age from which a temporary file belongs to a process that died


class ClientStore(Protocol):
    """The storage of client states, as a worker uses it."""

    def get(self, digest: str) -> State:
        """Return the state with this digest; it must not be written to."""

    def write(self, state: State) -> str:
        """Write a state and return its digest; others can read it after `publish`. May be called by one thread."""

    def publish(self) -> None:
        """Make the states written so far readable for other processes."""


class FileClientStore:
    """A folder of packs of states, with a cache of the last states read, of up to `cache_bytes`."""

    def __init__(self, folder: Path, cache_bytes: int = 1 << 30) -> None:
        """Create the folder if it does not exist."""
        self.folder, self.cache_bytes = Path(folder), cache_bytes
        self._cache: OrderedDict[str, State] = OrderedDict()
        self._cached_bytes = 0
        self._packs: dict[str, Pack] = {}  # known packs by the name of their file
        self._damaged: set[str] = set()  # names of files that are no packs
        self._places: dict[str, Pack] = {}  # digest -> a pack that has or had the state
        self._ages: dict[str, int] = {}  # pack -> how many calls of `collect` it has survived
        self._writer: PackWriter | None = None  # of states that are not published yet
        self._durable: set[str] = set()  # names of packs that are on the disk for certain
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
        """Write a state and return its digest; others can read it after `publish`, and it is durable after `sync`.

        One thread may write while another one reads.
        """
        flat = {name: tensor.detach().cpu() for name, tensor in flatten(state).items()}
        digest = sha256(flat)
        if digest == EMPTY or self._is_stored(digest):
            return digest
        try:
            self._writer = self._writer or PackWriter(self.folder)
            self._writer.add(digest, lambda file: write_safetensors(flat, file))
        except OSError as error:
            raise self._refused(error) from error
        return digest

    def publish(self) -> None:
        """Make the states written so far readable for other processes; RunError if the disk refuses."""
        try:
            if self._writer is not None:
                self._add(self._writer.close())
                self._writer = None
        except OSError as error:
            raise self._refused(error) from error

    def sync(self, digests: Iterable[str]) -> None:
        """Publish the states written so far, and wait until these states are on the disk, whoever has written them."""
        self.publish()
        self.force(self.not_durable(digests))

    def not_durable(self, digests: Iterable[str]) -> list[Path]:
        """Return the packs of these states that may not be on the disk yet; states without a pack are left out."""
        wanted = set(digests) - {EMPTY}
        if not wanted <= self._places.keys():
            self._refresh()
        found = {self._places[digest].path for digest in wanted if digest in self._places}
        return sorted(path for path in found if path.name not in self._durable)

    def force(self, paths: Sequence[Path]) -> None:
        """Wait until packs are on the disk; may be called by a thread. RunError if the disk refuses."""
        try:
            for path in paths:
                files.sync_file(path)
            if paths:
                files.sync_folder(self.folder)
        except OSError as error:
            raise files.disk_error(self.folder, error) from error
        self._durable |= {path.name for path in paths}

    def _refused(self, error: OSError) -> RunError:
        """Drop the states that were not synced, and return the error of the disk."""
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
        return files.disk_error(self.folder, error)

    def _is_stored(self, digest: str) -> bool:
        """Return whether a state is in a pack that is still there, or will be synced."""
        if self._writer is not None and digest in self._writer.index:
            return True
        pack = self._places.get(digest)
        return pack is not None and pack.path.exists()

    def get(self, digest: str) -> State:
        """Return the state with this digest; its tensors must not be written to.

        Raises:
            DamagedFile: It is missing or damaged.
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
        """Read states. DamagedFile if one is missing or damaged."""
        for digest in sorted(set(digests) - {EMPTY}, key=self._order):
            self._read(digest)

    def adopt(self, other: Path, digests: Iterable[str], by_reference: bool = False) -> None:
        """Link the packs of another folder that hold these states, which stay here if they are deleted there.

        Args:
            other: The folder.
            digests: Digests of the states.
            by_reference: Whether a symbolic link is enough where there are no hard links; else the packs are copied.

        Raises:
            DamagedFile: A state is missing there.
        """
        needed = set(digests) - {EMPTY}
        if not needed:
            return
        source = FileClientStore(other)
        for path in {source.pack_of(digest).path.resolve() for digest in sorted(needed)}:
            here = self.folder / path.name
            try:
                os.link(path, here)
            except FileExistsError:
                continue
            except OSError:  # another file system
                if by_reference:
                    here.symlink_to(path)
                else:
                    files.link(path, here)

    def pack_of(self, digest: str) -> Pack:
        """Return a pack that holds a state. DamagedFile if there is none."""
        if digest not in self._places or not self._places[digest].path.exists():
            self._refresh()
        if digest not in self._places:
            damaged = f"; {min(self._damaged)} is damaged" if self._damaged else ""
            raise DamagedFile(f"{self.folder}: client state {digest} is missing{damaged}")
        return self._places[digest]

    def collect(self, keep: Collection[str], compact: bool = False) -> int:
        """Delete packs without a state to keep, and merge others; return the number of states that are not needed.

        A pack is rewritten without such states once they are more than half of it. Call this while no process writes,
        with the digests of every checkpoint that may still be resumed from.

        Args:
            keep: Digests of the states to keep.
            compact: Rewrite every pack with other states, so that none of them is left.
        """
        self._refresh()
        needed, unused, live = set(keep), 0, dict[str, set[str]]()
        for name, pack in sorted(self._packs.items(), key=lambda item: (-len(item[1].names), item[0])):
            live[name] = needed.intersection(pack.names)  # of a state that two packs have, one is not needed
            needed -= live[name]
            unused += len(pack.names) - len(live[name])
        self._ages = {name: self._ages.get(name, 0) + 1 for name in live}
        old = {name: live[name] for name in live if live[name] and (compact or self._ages[name] > YOUNG)}
        merged = {name for name in old if self._is_wasteful(name, old[name], compact)}
        merged |= self._small({name: digests for name, digests in old.items() if name not in merged})
        self._merge({name: live[name] for name in sorted(merged)})
        damaged = set() if needed else self._damaged  # a missing state may be in one, which its reader then names
        self._delete({name for name in live if not live[name]} | merged | damaged)
        for digest in self._cache.keys() - set(keep):
            self._drop(digest)
        for path in self.folder.glob(f"{files.TEMP}*"):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()
        return unused

    def _is_wasteful(self, name: str, live: Collection[str], compact: bool) -> bool:
        """Return whether a pack is rewritten for what it holds besides the states that are needed."""
        pack = self._packs[name]
        return len(live) < len(pack.names) and (compact or 2 * pack.num_bytes_of(live) < pack.num_bytes)

    def _small(self, live: Mapping[str, Collection[str]]) -> set[str]:
        """Return packs of about the same size, of which there are so many that they are merged."""
        sizes: dict[int, list[str]] = {}
        for name, digests in live.items():
            num_bytes = self._packs[name].num_bytes_of(digests)
            if 2 * num_bytes <= MAX_PACK_BYTES:
                sizes.setdefault(num_bytes.bit_length() // 5, []).append(name)  # 2^5 packs make one of the next size
        return {name for names in sizes.values() if len(names) >= MERGED_PACKS for name in names}

    def _merge(self, live: Mapping[str, Collection[str]]) -> None:
        """Write the states that are needed of some packs to new packs, durably."""
        try:
            for name, digests in live.items():
                for digest in sorted(digests, key=lambda one: self._packs[name].index[one]):
                    content = self._packs[name].read(digest)
                    if self._writer is not None and self._writer.num_bytes + len(content) > MAX_PACK_BYTES:
                        self.publish()
                    self._writer = self._writer or PackWriter(self.folder)
                    self._writer.add(digest, lambda file, content=content: file.write(content))  # type: ignore[misc]
        except OSError as error:
            raise self._refused(error) from error
        self.sync([digest for digests in live.values() for digest in digests])  # before the old packs are deleted

    def _delete(self, names: Collection[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
            self._packs.pop(name, None)
        self._damaged -= set(names)
        self._durable -= set(names)
        self._places = {digest: pack for pack in self._packs.values() for digest in pack.names}

    def _refresh(self) -> None:
        """Read the indexes of packs that other processes have written, and forget those that were deleted."""
        found = {path.name: path for path in packs.paths(self.folder)}
        for name in self._packs.keys() - found.keys():
            del self._packs[name]
        self._damaged &= found.keys()
        for name in found.keys() - self._packs.keys() - self._damaged:
            try:
                self._packs[name] = Pack.open(found[name])
            except FileNotFoundError:
                continue
            except DamagedFile:
                self._damaged.add(name)
        self._places = {digest: pack for pack in self._packs.values() for digest in pack.names}

    def _add(self, pack: Pack) -> None:
        self._packs[pack.path.name] = pack
        self._places |= dict.fromkeys(pack.names, pack)

    def _order(self, digest: str) -> tuple[str, int]:
        """Return the key by which states are read: pack by pack."""
        pack = self._places.get(digest)
        return ("", 0) if pack is None else (pack.path.name, pack.index[digest].offset)

    def _read(self, digest: str) -> State:
        pack, content = self._content(digest)
        try:
            flat = parse_safetensors(content)
        except ValueError as error:
            raise DamagedFile(f"{pack.path}: client state {digest} is damaged") from error
        if sha256(flat) != digest:
            raise DamagedFile(f"{pack.path}: client state {digest} is damaged: the hash of its content is not its name")
        return unflatten(flat)

    def _content(self, digest: str) -> tuple[Pack, bytes]:
        """Return the bytes of a state and the pack that they are from."""
        while True:
            pack = self.pack_of(digest)
            try:
                return pack, pack.read(digest)
            except FileNotFoundError:  # merged by the driver in between
                continue
            except OSError as error:
                raise files.disk_error(pack.path, error) from error

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
