"""Location of a sweep or of one of its runs: a folder, or a URL with a local copy.

With a URL, the machine that executes a run writes it to the URL, as `simfl run --out URL` does, and the process of the
sweep reads its own copy. Machines need no shared disk.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from simfl import files
from simfl.runs.mirror import NOT_READ, mirrored
from simfl.runs.storage import Storage, is_url
from simfl.safe_text import mask_secrets


@dataclass(frozen=True)
class RunLocation:
    """A folder, or a URL and the folder of its local copy."""

    folder: Path
    url: str = ""  # empty: the folder itself is the location

    def __str__(self) -> str:
        return mask_secrets(self.url) or str(self.folder)

    def child(self, *names: str) -> RunLocation:
        """Return a location inside this one."""
        return RunLocation(self.folder.joinpath(*names), "/".join([self.url, *names]) if self.url else "")

    def read(self, name: str) -> str:
        """Return the current text of a small file, read at the URL if there is one; empty if it does not exist."""
        if self.url:
            return (self._storage.read(name) or b"").decode()
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def write(self, name: str, text: str) -> None:
        """Write a small file."""
        if self.url:
            self._storage.write(name, text.encode())
            return
        files.make_folder(self.folder)
        files.write(self.folder / name, lambda file: file.write(text.encode()))

    def remove(self, name: str) -> None:
        """Delete a small file if it exists."""
        (self.folder / name).unlink(missing_ok=True)
        if self.url:
            self._storage.remove([name])

    def fetch(self, name: str) -> None:
        """Update one file of the local copy."""
        content = self._storage.read(name) if self.url else None
        if content is not None:
            files.make_folder(self.folder)
            files.write(self.folder / name, lambda file: file.write(content))

    def fetch_all(self) -> None:
        """Update the local copy."""
        if self.url:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._storage.get_all(self.folder, NOT_READ)

    def send(self, name: str) -> None:
        """Upload a file of the local copy."""
        if self.url:
            self._storage.write(name, (self.folder / name).read_bytes())

    @contextmanager
    def reading(self) -> Iterator[Path]:
        """Return a folder with the complete content, for reading."""
        if not self.url:
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix="simfl-opened-") as scratch:
            folder = Path(scratch) / self.folder.name
            self._storage.get_all(folder)
            yield folder

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """Return a folder to write to; at the end of the block its content is uploaded."""
        if not self.url:
            yield self.folder
            return
        with mirrored(self.url, files.cache_folder()) as copy:
            yield copy.folder
            copy.push_and_wait()

    @property
    def _storage(self) -> Storage:
        return Storage.open(self.url)


@contextmanager
def location_of(out: Path | str, exclusive: bool = True) -> Iterator[RunLocation]:
    """Return the location that `--out` names, at a URL with a local copy; RunError if another process uses it.

    Several machines may execute parts of a sweep at a URL that is not `exclusive`; each run has a lease of its own.
    """
    if not is_url(out):
        yield RunLocation(Path(out))
        return
    with mirrored(str(out), files.cache_folder(), NOT_READ, exclusive) as copy:
        yield RunLocation(copy.folder, copy.url)
