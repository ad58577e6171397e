"""The files of a job: a working directory without files that the cluster does not need."""

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
MAX_BYTES = 200_000_000  # Ray keeps packages in the memory of the head node
NUM_SHOWN = 3  # largest files named in an error


@dataclass(frozen=True)
class Package:
    """Files of a folder, by their relative path."""

    folder: Path
    files: dict[str, int]  # relative path -> bytes

    @property
    def bytes(self) -> int:
        """Total size of the files in bytes."""
        return sum(self.files.values())

    def contains(self, path: str) -> bool:
        """Return whether the package contains this file, or a file in this folder."""
        relative = os.path.normpath(path)
        return relative in self.files or any(file.startswith(f"{relative}/") for file in self.files)

    def copy(self, target: Path) -> None:
        """Copy the files to another folder."""
        for file in self.files:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.folder / file, target / file)


def gather(folder: Path, exclude: Sequence[str] = (), max_bytes: int = MAX_BYTES) -> Package:
    """Collect the files of a folder: in a git repository those that are not ignored, otherwise all.

    Args:
        folder: The working directory.
        exclude: Patterns of paths, or of the name of a file or of a folder above it, that are left out.
        max_bytes: Largest total size.

    Raises:
        ConfigError: The files are too large.
    """
    refused = (*NEVER, *exclude)
    files = {
        path: (folder / path).stat().st_size
        for path in sorted(_known_to_git(folder) or _walk(folder, refused))
        if not _excluded(path, refused) and (folder / path).is_file()
    }
    package = Package(folder, files)
    if package.bytes > max_bytes:
        largest = sorted(files, key=lambda path: -files[path])[:NUM_SHOWN]
        shown = ", ".join(f"{path} ({files[path] / 1e6:.0f} MB)" for path in largest)
        raise ConfigError(
            f"{folder}: {package.bytes / 1e6:.0f} MB; allowed: {max_bytes / 1e6:.0f} MB; the largest files are"
            f" {shown}; exclude files with --exclude, or give a smaller --working-dir"
        )
    return package


def _known_to_git(folder: Path) -> list[str]:
    """Return tracked files and new files that are not ignored; an empty list outside of a repository."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository: all files are sent
        return []
    return [path for path in found.split("\0") if path]


def _walk(folder: Path, refused: Sequence[str]) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not any(fnmatchcase(name, pattern) for pattern in refused)]
        for name in names:
            yield str((Path(parent) / name).relative_to(folder))


def _excluded(path: str, patterns: Sequence[str]) -> bool:
    parts = PurePosixPath(path).parts
    prefixes = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatchcase(one, pattern.rstrip("/")) for pattern in patterns for one in (*parts, *prefixes))
