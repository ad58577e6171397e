"""A run's folder kept a second time at a URL (s3://, gs://, file://, …), so that another machine can go on with it.

The run works in a folder of its machine; each commit is copied when it is whole, its hashes last. What a copy was cut
off in counts as a damaged commit, and the one before is gone back to. Needs fsspec and its package for the scheme.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simfl import files
from simfl.errors import ConfigError, RunError

URL = re.compile(r"^[a-z][a-z0-9+.-]*://.")
ORDER = ("memory", "tables", "", "checkpoints")  # copied in this order: what a commit names is there before it
LAST = "digest.json"  # of a commit: without it there is none
OWN = (".lock",)  # of this machine


def is_url(out: object) -> bool:
    """Whether a place for a run is a URL, not a folder of this machine."""
    return bool(URL.match(str(out)))


def read(url: str) -> bytes | None:
    """What a file at a URL holds; None if there is none. RunError where the place does not answer."""
    system, path = _system(url)
    try:
        content: bytes = system.cat_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{url}: {error}") from error
    return content


def write(url: str, content: bytes) -> None:
    """Put a file at a URL. RunError where the place does not take it."""
    system, path = _system(url)
    try:
        system.makedirs(system._parent(path), exist_ok=True)
        system.pipe_file(path, content)
    except OSError as error:
        raise RunError(f"{url}: {error}") from error


def remove(url: str) -> None:
    """Take away a file at a URL, if there is one."""
    system, path = _system(url)
    try:
        system.rm_file(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{url}: {error}") from error


@contextmanager
def mirrored(url: str, cache: Path, without: Collection[str] = ()) -> Iterator[Mirror]:
    """The mirror of a URL; its folder lies under `cache` and holds at first what the URL holds, and nothing else.

    `without`: names of folders that stay at the URL. ConfigError where the scheme is not known; RunError where the
    place does not answer, or another process of this machine is at work on it.
    """
    name = f"{url.rstrip('/').rpartition('/')[2]}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    base = cache / "mirrored" / name
    files.make_folder(base)
    with files.locked(base):
        mirror = Mirror(url.rstrip("/"), base / "run")
        mirror.pull(without)
        yield mirror


@dataclass
class Mirror:
    """A folder and its copy."""

    url: str
    folder: Path
    copied: dict[str, tuple[int, int]] = field(default_factory=dict)  # file -> size and time when it was copied

    def pull(self, without: Collection[str] = ()) -> None:
        """Make the folder what the copy is, but for folders of these names."""
        shutil.rmtree(self.folder, ignore_errors=True)
        files.make_folder(self.folder)
        system, root = self._system()
        system.invalidate_cache()  # another machine may have written there
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
            raise RunError(f"{self.url}: {error}") from error

    def push(self) -> None:
        """Copy what is new or changed, in an order that never leaves a commit without what it names; then tidy."""
        system, root = self._system()
        here = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if _counts(path)}
        stamps = {name: _stamp(path) for name, path in here.items()}
        try:
            for name in sorted(here, key=_turn):
                if self.copied.get(name) != stamps[name]:
                    target = f"{root}/{name}"
                    system.makedirs(system._parent(target), exist_ok=True)
                    system.put_file(str(here[name]), target)
                    self.copied[name] = stamps[name]
            for name in sorted(self.copied.keys() - here.keys(), key=_turn, reverse=True):
                system.rm_file(f"{root}/{name}")
                del self.copied[name]
        except OSError as error:
            raise RunError(f"{self.url}: {error}") from error

    def _system(self) -> tuple[Any, str]:
        return _system(self.url)


def _system(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and the path in it."""
    import fsspec

    try:
        system, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"--out: {url}: {error}") from None
    return system, root.rstrip("/")


def _counts(path: Path) -> bool:
    return path.is_file() and path.name not in OWN and not any(part.startswith(files.TEMP) for part in path.parts)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _turn(name: str) -> tuple[int, bool, str]:
    """When a file is copied."""
    top = name.partition("/")[0] if "/" in name else ""
    return ORDER.index(top) if top in ORDER else ORDER.index(""), name.endswith(f"/{LAST}"), name
