"""The files that go along: a working directory without what nobody needs elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from simfl.errors import ConfigError

NEVER = (".git", ".venv", "venv", "__pycache__", "runs", "wandb", ".ipynb_checkpoints", "*.pyc", "*.egg-info")
MOST_BYTES = 200 << 20  # Ray keeps parcels in the memory of the head node
SHOWN = 3  # of the largest files, in an error


@dataclass(frozen=True)
class Parcel:
    """Files of a folder, by their path in it."""

    folder: Path
    files: dict[str, int]  # relative path -> bytes

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    def holds(self, place: str) -> bool:
        """Whether this file, or something in this folder, goes along."""
        inside = os.path.normpath(place)
        return inside in self.files or any(file.startswith(f"{inside}/") for file in self.files)

    def copy(self, target: Path) -> None:
        """Lay the files into another folder."""
        for file in self.files:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.folder / file, target / file)


def gather(folder: Path, exclude: Sequence[str] = (), most: int = MOST_BYTES) -> Parcel:
    """The files of a folder that go along: in a git repository those that it does not ignore, elsewhere all.

    `exclude`: patterns of paths, or of the name of any folder or file on the way; ConfigError if the rest is too big.
    """
    refused = (*NEVER, *exclude)
    files = {
        path: (folder / path).stat().st_size
        for path in sorted(_known_to_git(folder) or _walk(folder, refused))
        if not _excluded(path, refused) and (folder / path).is_file()
    }
    parcel = Parcel(folder, files)
    if parcel.bytes > most:
        largest = sorted(files, key=lambda path: -files[path])[:SHOWN]
        shown = ", ".join(f"{path} ({files[path] / 1e6:.0f} MB)" for path in largest)
        raise ConfigError(
            f"{folder}: {parcel.bytes / 1e6:.0f} MB would be sent, at most {most / 1e6:.0f} MB can; the largest are"
            f" {shown}; leave them out with --exclude, or give a smaller --working-dir"
        )
    return parcel


def _known_to_git(folder: Path) -> list[str]:
    """Tracked files and new ones that are not ignored; nothing where there is no repository."""
    words = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(words, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository: every file counts
        return []
    return [path for path in found.split("\0") if path]


def _walk(folder: Path, refused: Sequence[str]) -> Iterator[str]:
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not any(fnmatchcase(name, pattern) for pattern in refused)]
        for name in names:
            yield str((Path(here) / name).relative_to(folder))


def _excluded(path: str, patterns: Sequence[str]) -> bool:
    parts = PurePosixPath(path).parts
    wholes = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatchcase(one, pattern.rstrip("/")) for pattern in patterns for one in (*parts, *wholes))
