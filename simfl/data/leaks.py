"""What two splits share that they should not: documents, providers, whole pages, or any column's values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import pyarrow as pa

from simfl.data.base import Dataset, Split
from simfl.data.partition.base import column
from simfl.errors import ConfigError, DataError, nearest

DOCUMENT = "document"  # in place of a column: the ids of pages
CONTENT = "content"  # likewise: equal pages, or equal pictures where there are no pages


def shared(first: Split, second: Split, name: str) -> list[str]:
    """The values of a column that both splits have, sorted; with `content`, the ids in `second` of what is in both.

    The empty text is no value: it stands for a provider that is not known. ConfigError if there is no such column.
    """
    if name == CONTENT:
        return equal(contents(first), contents(second))
    names = [set(_names(split, name)) for split in (first, second)]
    return sorted((names[0] & names[1]) - {""})


def equal(first: Mapping[str, Sequence[str]], second: Mapping[str, Sequence[str]]) -> list[str]:
    """The ids in `second` of contents that `first` has too, sorted."""
    return sorted(id for digest, ids in second.items() if digest in first for id in ids)


def _names(split: Split, name: str) -> list[str]:
    if name == DOCUMENT:
        if split.documents is None:
            raise ConfigError("disjoint: document is named, but the data has none")
        ids: list[str] = split.documents["id"].to_pylist()
        return ids
    values: list[str] = column(split, name)[1].to_pylist()
    return values


def refuse(dataset: Dataset, disjoint: Mapping[str, Sequence[str]], split: str = "train") -> None:
    """DataError if `split` shares a value with one of the splits named, in the columns named for it."""
    for other, columns in disjoint.items():
        if other not in dataset.splits:
            raise ConfigError(f"disjoint.{other}: the data has no such split; {nearest(other, dataset.splits)}")
        for name in columns:
            both = shared(dataset.splits[split], dataset.splits[other], name)
            if both:
                raise DataError(
                    f"disjoint.{other}: {split} and {other} share {len(both)} of {name}, such as {both[0]!r}"
                )


def contents(split: Split) -> dict[str, list[str]]:
    """A hash of what each page or picture shows, with the ids (else rows) of all that show it."""
    table = split.documents if split.documents is not None else split.examples
    ids = table["id"].to_pylist() if "id" in table.column_names else [str(row) for row in range(len(table))]
    found: dict[str, list[str]] = {}
    parts = [table[name] for name in ("words", "image", "image_path", "features") if name in table.column_names]
    for row, id in enumerate(ids):
        digest = hashlib.sha256()
        for values in parts:
            digest.update(_plain(values[row]))
        found.setdefault(digest.hexdigest(), []).append(str(id))
    return found


def _plain(value: pa.Scalar) -> bytes:
    if not value.is_valid:
        return b"\0"
    if isinstance(value, pa.BinaryScalar):
        return bytes(value.as_buffer())
    return repr(value.as_py()).encode()
