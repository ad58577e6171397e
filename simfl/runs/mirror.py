"""Copies of run folders at a URL (s3://, gs://, file://, …), from which another machine can resume the run.

A run works in a folder of its machine. Each checkpoint is copied after it is complete, its hashes last, so an
interrupted copy is a damaged checkpoint, and a resumed run uses the one before. Needs fsspec and its package for the
scheme.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from simfl import files
from simfl.errors import ConfigError, RunError
from simfl.runs.checkpoint import DIGESTS
from simfl.runs.folder import CHECKPOINTS, CLIENT_STATES, TABLE_PARTS
from simfl.safe_text import has_secret, mask_secrets, without_password

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

URL = re.compile(r"^[a-z][a-z0-9+.-]*://.")
ORDER = (
    CLIENT_STATES,
    TABLE_PARTS,
    "",
    CHECKPOINTS,
)  # copied in this order: a checkpoint follows the files that it needs
LOCAL_FILES = (".lock",)  # not copied


def is_url(out: object) -> bool:
    """Return whether `out` is a URL and not a folder of this machine."""
    return bool(URL.match(str(out)))


def read(url: str) -> bytes | None:
    """Read a file at a URL; None if there is none. RunError if the storage fails."""
    system, path = _system(url)
    try:
        content: bytes = system.cat_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _storage_error(url, error) from error
    return content


def write(url: str, content: bytes) -> None:
    """Write a file at a URL. RunError if the storage fails."""
    system, path = _system(url)
    try:
        system.makedirs(system._parent(path), exist_ok=True)
        system.pipe_file(path, content)
    except OSError as error:
        raise _storage_error(url, error) from error


def remove(url: str) -> None:
    """Delete a file at a URL, if there is one. RunError if the storage fails."""
    system, path = _system(url)
    try:
        system.rm_file(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _storage_error(url, error) from error


@contextmanager
def mirrored(url: str, cache: Path, without: Collection[str] = ()) -> Iterator[Mirror]:
    """Open the local copy of a URL for the block, with the content of the URL.

    Args:
        url: The URL of a run folder.
        cache: The cache folder, which holds the local copy.
        without: Names of folders that are not downloaded.

    Raises:
        ConfigError: The scheme of the URL is unknown.
        RunError: The storage fails, or another process of this machine uses the copy.
    """
    shown = mask_secrets(url).rstrip("/").rpartition("/")[2].rpartition("@")[2]
    name = f"{shown}-{hashlib.sha256(without_password(url).encode()).hexdigest()[:12]}"
    base = cache / "mirrored" / name
    files.make_folder(base)
    with files.locked(base):
        mirror = Mirror(url.rstrip("/"), base / "run")
        mirror.pull(without)
        yield mirror


@dataclass
class Mirror:
    """A local folder and its copy at a URL."""

    url: str
    folder: Path
    copied: dict[str, tuple[int, int]] = field(default_factory=dict)  # file -> its size and time when it was copied

    def pull(self, without: Collection[str] = ()) -> None:
        """Replace the local folder by the content of the URL, except folders named in `without`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        files.make_folder(self.folder)
        system, root = self._system()
        system.invalidate_cache()  # another machine may have written
        try:
            found = sorted(system.find(root)) if system.exists(root) else []
            for path in found:
                name = path[len(root) :].lstrip("/")
                if not set(without).isdisjoint(name.split("/")[:-1]):
                    continue
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(path, str(target))
                self.copied[name] = _stamp(target)
        except OSError as error:
            raise _storage_error(self.url, error) from error

    def push(self) -> None:
        """Upload new and changed files, checkpoints after the files that they need; then delete files that are gone."""
        system, root = self._system()
        here = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if _is_copied(path)}
        stamps = {name: _stamp(path) for name, path in here.items()}
        try:
            for name in sorted(here, key=_order):
                if self.copied.get(name) != stamps[name]:
                    target = f"{root}/{name}"
                    system.makedirs(system._parent(target), exist_ok=True)
                    system.put_file(str(here[name]), target)
                    self.copied[name] = stamps[name]
            for name in sorted(self.copied.keys() - here.keys(), key=_order, reverse=True):
                system.rm_file(f"{root}/{name}")
                del self.copied[name]
        except OSError as error:
            raise _storage_error(self.url, error) from error

    def _system(self) -> tuple[AbstractFileSystem, str]:
        return _system(self.url)


def _system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the path in it."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    try:
        system, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(mask_secrets(f"--out: {url}: {error}")) from None
    if isinstance(system, LocalFileSystem) and has_secret(url):
        raise ConfigError(f"--out: {mask_secrets(url)}: a file:// URL has no user and no password")
    return system, root.rstrip("/")


def _storage_error(url: str, error: OSError) -> RunError:
    """Return an error of the storage at a URL, without the password of the URL."""
    return RunError(mask_secrets(f"{url}: {error}"))


def _is_copied(path: Path) -> bool:
    temporary = any(part.startswith(files.TEMP) for part in path.parts)
    return path.is_file() and path.name not in LOCAL_FILES and not temporary


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and time of modification, which change when a file does."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _order(name: str) -> tuple[int, bool, str]:
    """Return the key by which files are sorted for copying."""
    top = name.partition("/")[0] if "/" in name else ""
    return ORDER.index(top) if top in ORDER else ORDER.index(""), name.endswith(f"/{DIGESTS}"), name
