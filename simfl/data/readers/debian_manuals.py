"""Headings of real manuals: about 7,900 PDF pages that Debian packages install. simfl installs none of the packages.

A larger alternative to the part `manuals` of `multi_docqa`: the question is "Which section starts on this page?", and
the outline of the document has the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simfl.constraints import NonNegativeFloat, PositiveInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.readers.pdf_folder import PdfFolder
from simfl.errors import ConfigError, DataError, nearest

VERSION = 1
PACKAGES = (  # each a publisher; about 60 MB to download
    "asymptote-doc", "bash-doc", "debian-reference-en", "dynare-doc", "ghostscript-doc", "glpk-doc", "gnuplot-doc",
    "octave-doc", "pari-doc", "python-reportlab-doc", "r-cran-lme4", "r-cran-vcd", "r-doc-pdf", "xfig-doc",
)  # fmt: skip


@dataclass(frozen=True)
class DebianManuals(Data):
    """Headings of PDF manuals that Debian packages install; each package is a provider."""

    path: str = "/usr/share/doc"  # folder that contains the packages' folders; ~ and $VARIABLES are expanded
    packages: tuple[str, ...] = PACKAGES  # which packages to read
    unseen: tuple[str, ...] = ("dynare-doc", "glpk-doc", "pari-doc", "r-cran-vcd")  # only in the split `unseen`
    pages: PositiveInt | None = 120  # read only the first so many pages of a file
    valid: NonNegativeFloat = 0.1  # share of the files for validation, drawn by their names
    test: NonNegativeFloat = 0.2  # share of the files for testing, drawn by their names
    image_size: PositiveInt = 224  # pages are stored in colour, resized to this many pixels square

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files; DataError gives the command that installs what is missing."""
        root = records.resolve_folder(self.path)
        for package in self.unseen:
            if package not in self.packages:
                raise ConfigError(f"data.unseen: {package!r} given; {nearest(package, self.packages)}")
        found = {package: list(_find_pdfs(root / package)) for package in self.packages}
        missing = [package for package, paths in found.items() if not paths]
        if missing:
            command = f"apt-get install {' '.join(missing)}"
            raise DataError(f"debian_manuals: {root} lacks {len(missing)} packages; {command}")
        files = {path.relative_to(root).as_posix(): path for package in sorted(found) for path in found[package]}
        reader = PdfFolder(
            self.path, "headings", valid=self.valid, test=self.test, unseen=self.unseen, pages=self.pages,
            image_size=self.image_size,
        )  # fmt: skip
        build = lambda: reader.build(files, "debian_manuals")
        return load_or_build(cache, "debian_manuals", VERSION, self, files.values(), build)


def _find_pdfs(folder: Path) -> Iterator[Path]:
    """Yield the PDFs of a package in the order of their names, without links, which duplicate files."""
    yield from sorted(path for path in folder.rglob("*.pdf") if path.is_file() and not path.is_symlink())
