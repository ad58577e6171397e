"""Headings of real manuals: some 7,900 pages of PDF that packages of Debian install. simfl installs none of them.

The richer content for the part `manuals` of `multi_docqa`: whoever has the packages asks "Which section starts on this
page?", and the documents' own outlines answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simfl.constraints import Amount, Count
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import kept
from simfl.data.readers.pdf_folder import PdfFolder
from simfl.errors import ConfigError, DataError, nearest

EDITION = 1
PACKAGES = (  # each a publisher; together some 60 MB to download
    "asymptote-doc", "bash-doc", "debian-reference-en", "dynare-doc", "ghostscript-doc", "glpk-doc", "gnuplot-doc",
    "octave-doc", "pari-doc", "python-reportlab-doc", "r-cran-lme4", "r-cran-vcd", "r-doc-pdf", "xfig-doc",
)  # fmt: skip


@dataclass(frozen=True)
class DebianManuals(Data):
    """Headings of PDF manuals that Debian's packages install; a package is a publisher."""

    path: str = "/usr/share/doc"  # where the packages' folders are; ~ and $VARIABLES are followed
    packages: tuple[str, ...] = PACKAGES  # which of them
    unseen: tuple[str, ...] = ("dynare-doc", "glpk-doc", "pari-doc", "r-cran-vcd")  # only in the split `unseen`
    pages: Count | None = 120  # at most so many of a file, the first ones
    valid: Amount = 0.1  # share of the files, drawn by their names
    test: Amount = 0.2  # likewise
    image_size: Count = 224  # pages are stored in colour, squeezed to this many pixels square

    def load(self, cache: Path) -> Dataset:
        """DataError with the command that installs what is missing."""
        root = records.folder(self.path)
        for package in self.unseen:
            if package not in self.packages:
                raise ConfigError(f"data.unseen: {package!r} given; {nearest(package, self.packages)}")
        found = {package: list(_files(root / package)) for package in self.packages}
        missing = [package for package, paths in found.items() if not paths]
        if missing:
            raise DataError(
                f"debian_manuals: {root} lacks {len(missing)} packages; apt-get install {' '.join(missing)}"
            )
        files = {path.relative_to(root).as_posix(): path for package in sorted(found) for path in found[package]}
        reader = PdfFolder(
            self.path, "headings", valid=self.valid, test=self.test, unseen=self.unseen, pages=self.pages,
            image_size=self.image_size,
        )  # fmt: skip
        build = lambda: reader.build(files, "debian_manuals")
        return kept(cache, "debian_manuals", EDITION, self, files.values(), build)


def _files(folder: Path) -> Iterator[Path]:
    """The PDFs of a package in the order of their names; links double files and are left out."""
    yield from sorted(path for path in folder.rglob("*.pdf") if path.is_file() and not path.is_symlink())
