"""Files at a URL (s3://, gs://, file://, …), through fsspec and its package for the scheme.

Files are moved in batches, which the packages of object stores transfer concurrently.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simfl.errors import ConfigError, RunError
from simfl.safe_text import has_secret, mask_secrets

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

URL = re.compile(r"^[a-z][a-z0-9+.-]*://.")
BUCKET_PROTOCOLS = ("s3", "s3a", "gs", "gcs", "abfs", "az", "abfss", "oss", "oci", "tos")  # they have no folders
VERSION_KEYS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")


def is_url(out: object) -> bool:
    """Return whether `out` is a URL and not a folder of this machine."""
    return bool(URL.match(str(out)))


@dataclass(frozen=True)
class Storage:
    """The files under a URL; names are relative to it.

    All methods raise RunError if the storage fails, without the password of the URL.
    """

    url: str
    system: AbstractFileSystem
    root: str  # path of the URL in the file system

    @staticmethod
    def open(url: str) -> Storage:
        """Open a URL, without a connection where the package allows it.

        Raises:
            ConfigError: The scheme is unknown, its package is missing, or a file:// URL has a user.
        """
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        try:
            system, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(mask_secrets(f"{url}: {error}")) from None
        if isinstance(system, LocalFileSystem) and has_secret(url):
            raise ConfigError(f"{mask_secrets(url)}: a file:// URL has no user and no password")
        return Storage(url.rstrip("/"), system, root.rstrip("/"))

    @property
    def has_folders(self) -> bool:
        """Return whether files need the folder that they are in; object stores have buckets only."""
        protocols = self.system.protocol
        return not set(BUCKET_PROTOCOLS) & set((protocols,) if isinstance(protocols, str) else protocols)

    def check(self) -> None:
        """Check that the bucket exists. simfl creates folders, but no bucket.

        Raises:
            ConfigError: There is no such bucket.
        """
        if self.has_folders:
            return
        bucket = self.root.lstrip("/").partition("/")[0]
        with self._failing():
            found = self.system.exists(bucket)
        if not found:
            raise ConfigError(
                f"{mask_secrets(self.url)}: there is no bucket {bucket!r}, or these credentials cannot read it;"
                " create the bucket first"
            )

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        with self._failing():
            try:
                content: bytes = self.system.cat_file(self._path(name))
            except FileNotFoundError:
                return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self._failing():
            self._make_folders([self._path(name)])
            self.system.pipe_file(self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists, in one step where the storage can; return whether it was written."""
        with self._failing():
            self._make_folders([self._path(name)])
            try:
                self.system.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                return False
            except OSError:  # some storages report the refused condition in another way
                if self.read(name) is None:
                    raise
                return False
        return True

    def remove(self, names: Iterable[str]) -> None:
        """Delete files; those that do not exist are skipped."""
        found = list(names)
        if not found:
            return
        with self._failing():
            if len(found) > 1 and not self.has_folders:  # one request deletes up to 1,000 objects
                self.system.rm([self._path(name) for name in found])
                return
            for name in found:
                try:
                    self.system.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def versions(self) -> dict[str, str]:
        """Return all files, each with a text that changes when the file does.

        Raises:
            RunError: The name of a file leads out of a folder into which it would be downloaded.
        """
        with self._failing():
            self.system.invalidate_cache()  # another machine may have written
            if not self.system.exists(self.root):
                return {}
            found: Mapping[str, Mapping[str, object]] = self.system.find(self.root, detail=True)
        named = {path[len(self.root) :].lstrip("/"): _version(info) for path, info in sorted(found.items())}
        if unsafe := [name for name in named if not name or not {"", ".", ".."}.isdisjoint(name.split("/"))]:
            raise RunError(f"{mask_secrets(self.url)}: holds {unsafe[0]!r}, which is no name of a file in a folder")
        return named

    def get(self, folder: Path, names: Sequence[str]) -> None:
        """Download files into a folder."""
        targets = [folder / name for name in names]
        for parent in {target.parent for target in targets}:
            parent.mkdir(parents=True, exist_ok=True)
        if names:
            with self._failing():
                self.system.get([self._path(name) for name in names], [str(target) for target in targets])

    def get_all(self, folder: Path, without: Collection[str] = (), skip: Collection[str] = ()) -> list[str]:
        """Download all files into a folder, and return their names.

        Args:
            folder: The folder, which is created.
            without: Names of folders that are not downloaded.
            skip: Names of files that are not downloaded.
        """
        names = [name for name in self.versions() if is_wanted(name, without) and name not in skip]
        folder.mkdir(parents=True, exist_ok=True)
        self.get(folder, names)
        return names

    def put(self, sources: Mapping[str, Path]) -> None:
        """Upload files, given by name."""
        if sources:
            targets = [self._path(name) for name in sources]
            with self._failing():
                self._make_folders(targets)
                self.system.put([str(path) for path in sources.values()], targets)

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _make_folders(self, paths: Iterable[str]) -> None:
        if self.has_folders:
            for parent in sorted({self.system._parent(path) for path in paths}):
                self.system.makedirs(parent, exist_ok=True)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(mask_secrets(f"{self.url}: {error}")) from error


def is_wanted(name: str, without: Collection[str]) -> bool:
    """Return whether a file is in none of the folders with these names."""
    return set(without).isdisjoint(name.split("/")[:-1])


def _version(info: Mapping[str, object]) -> str:
    found = next((info[key] for key in VERSION_KEYS if info.get(key) is not None), "")
    return f"{info.get('size')} {found}"
