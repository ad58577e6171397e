"""Files of installed pip packages, read without importing the package and checked against their hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from simfl.errors import DataError


@dataclass(frozen=True)
class PackageFile:
    """One file of one version of a package."""

    package: str  # name for pip
    version: str  # the version that the file was taken from
    file: str  # path in the package's folder
    sha256: str  # the first 16 digits
    module: str = ""  # the package's folder; empty: its name with underscores
    install: str = ""  # arguments of `pip install`; empty: the extra `simfl[benchmarks]`

    def path(self, data: str) -> Path:
        """Return the path of the file.

        Raises:
            DataError: The file is missing or has another hash. The message starts with `data` and names the command
                that installs it.
        """
        return _find(self, data)

    @property
    def source(self) -> str:
        """Return package and version, for a data card."""
        return f"{self.package} {self.version}"


@cache
def _find(part: PackageFile, data: str) -> Path:
    name = part.file.rpartition("/")[2]
    remedy = f"pip install {part.install or repr('simfl[benchmarks]')}"
    spec = find_spec(part.module or part.package.replace("-", "_"))
    path = Path(next(iter(spec.submodule_search_locations or ()), "")) / part.file if spec else None
    if path is None or not path.is_file():
        raise DataError(f"{data}: {name} of {part.source} is missing; install it with: {remedy}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()[: len(part.sha256)]
    if found != part.sha256:
        raise DataError(
            f"{data}: {name} hashes to {found}, expected {part.sha256} of {part.source}; install it with: {remedy}"
        )
    return path
