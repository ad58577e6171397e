"""Where a sweep, or a run of it, lies: in a folder, or at a URL, of which this machine reads a copy.

At a URL each run is written there by whichever machine does it, as `simfl run --out URL` does; the sweep's own process
reads along in the copy. So machines need no disk in common.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from simfl import cache, files
from simfl.runs import mirror
from simfl.runs.mirror import Mirror, is_url, mirrored

HEAVY = ("checkpoints", "memory", "stacks", "tensorboard", "wandb")  # of a run: what only who goes on with it needs


@dataclass(frozen=True)
class Place:
    """A folder, or a URL and the folder where a copy is read."""

    folder: Path
    url: str = ""  # empty: the folder is all there is

    def __str__(self) -> str:
        return self.url or str(self.folder)

    def below(self, *names: str) -> Place:
        """A place within it."""
        return Place(self.folder.joinpath(*names), "/".join([self.url, *names]) if self.url else "")

    def read(self, name: str) -> str:
        """A small file, as it is now wherever the place is; empty if there is none."""
        if self.url:
            return (mirror.read(f"{self.url}/{name}") or b"").decode()
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def write(self, name: str, text: str) -> None:
        """A small file."""
        if self.url:
            mirror.write(f"{self.url}/{name}", text.encode())
            return
        files.make_folder(self.folder)
        files.write(self.folder / name, lambda file: file.write(text.encode()))

    def remove(self, name: str) -> None:
        """Take away a small file, if there is one."""
        (self.folder / name).unlink(missing_ok=True)
        if self.url:
            mirror.remove(f"{self.url}/{name}")

    def fetch(self, name: str) -> None:
        """Bring the copy of one file up to date."""
        content = mirror.read(f"{self.url}/{name}") if self.url else None
        if content is not None:
            files.make_folder(self.folder)
            files.write(self.folder / name, lambda file: file.write(content))

    def fetch_all(self) -> None:
        """Bring the copy up to date."""
        if self.url:
            Mirror(self.url, self.folder).pull(HEAVY)

    def send(self, name: str) -> None:
        """Put a file of the copy where it belongs."""
        if self.url:
            mirror.write(f"{self.url}/{name}", (self.folder / name).read_bytes())

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """A folder with all that lies there, to be read."""
        if not self.url:
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix="simfl-opened-") as scratch:
            found = Mirror(self.url, Path(scratch) / self.folder.name)
            found.pull()
            yield found.folder

    @contextmanager
    def filled(self) -> Iterator[Path]:
        """A folder in which a run can be made; at the block's end it lies in the place."""
        if not self.url:
            yield self.folder
            return
        with mirrored(self.url, cache.folder()) as copy:
            yield copy.folder
            copy.push()


@contextmanager
def settled(out: Path | str) -> Iterator[Place]:
    """The place that `--out` names; at a URL, with a copy of its own of what is known. RunError if it is in use."""
    if not is_url(out):
        yield Place(Path(out))
        return
    with mirrored(str(out), cache.folder(), HEAVY) as copy:
        yield Place(copy.folder, copy.url)
