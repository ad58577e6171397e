"""The reader of a path whose format the user did not name."""

from __future__ import annotations

from pathlib import Path

from simfl.data.io.table_files import SUFFIXES, is_saved, metadata_files
from simfl.data.readers.image_folder import found_layout
from simfl.errors import DataError

LEAF_BYTES = 4096  # at the start of a file, among which LEAF's field `users` is


def detect_reader(path: Path) -> dict[str, object]:
    """Return the name of the reader of a file or a folder, with the settings that follow from its names.

    Raises:
        DataError: No reader for a user's own files reads it.
    """
    if path.is_file():
        if path.suffix.lower() in SUFFIXES:
            return {"name": "table"}
        raise DataError(f"{path}: unknown ending {path.suffix!r}; read as a table: {', '.join(SUFFIXES)}; or give --as")
    if is_saved(path):
        return {"name": "hf_disk"}
    if _is_leaf(path):
        return {"name": "leaf"}
    if metadata_files(path) or _has_tables(path):
        return {"name": "table"}
    if layout := found_layout(path):
        return {"name": "image_folder", "layout": layout}
    if next(path.glob("*.pdf"), None):
        return {"name": "pdf_folder"}
    raise DataError(
        f"{path}: no tables ({', '.join(SUFFIXES)}), no images in folders, no saved data set; give --as FORMAT, one of"
        " `simfl data list`"
    )


def _is_leaf(path: Path) -> bool:
    first = next(iter(sorted((path / "train").glob("*.json"))), None)
    if first is None:
        return False
    with first.open("rb") as file:
        return b'"users"' in file.read(LEAF_BYTES)


def _has_tables(path: Path) -> bool:
    folders = [path, path / "data", *(folder for folder in path.iterdir() if folder.is_dir())]
    return any(p.suffix.lower() in SUFFIXES for folder in folders if folder.is_dir() for p in folder.iterdir())
