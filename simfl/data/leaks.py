"""Detection of leaks between splits: documents, providers, equal pages or values of any column that both contain."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import pyarrow as pa

from simfl.data.base import Dataset, Split
from simfl.data.partition.base import column
from simfl.errors import ConfigError, DataError, nearest

DOCUMENT = "document"  # in place of a column: the ids of documents
CONTENT = "content"  # in place of a column: equal pages, or equal images or texts where there are no pages
PAGE, TEXT = ("words", "image", "image_path", "features"), ("text", "question")  # columns with the content


def shared_values(first: Split, second: Split, name: str) -> list[str]:
    """Return the values of a column that both splits contain, sorted.

    For `content`, return the ids in `second` of pages that `first` contains too. The empty text is not a value: it
    stands for an unknown provider. ConfigError if there is no such column.
    """
    if name == CONTENT:
        return equal_pages(page_hashes(first), page_hashes(second))
    values = [set(_values(split, name)) for split in (first, second)]
    return sorted((values[0] & values[1]) - {""})


def equal_pages(first: Mapping[str, Sequence[str]], second: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the ids in `second` of pages whose hash `first` contains too, sorted."""
    return sorted(id for digest, ids in second.items() if digest in first for id in ids)


def _values(split: Split, name: str) -> list[str]:
    if name == DOCUMENT:
        if split.documents is None:
            raise ConfigError("disjoint: document is given, but the data has no documents")
        ids: list[str] = split.documents["id"].to_pylist()
        return ids
    values: list[str] = column(split, name)[1].to_pylist()
    return values


def check_disjoint(dataset: Dataset, disjoint: Mapping[str, Sequence[str]], split: str = "train") -> None:
    """Raise DataError if `split` shares a value with another split.

    Args:
        dataset: The data set.
        disjoint: The columns to compare, for each of the other splits.
        split: The split that must be disjoint from the others.
    """
    for other, columns in disjoint.items():
        if other not in dataset.splits:
            raise ConfigError(f"disjoint.{other}: the data has no such split; {nearest(other, dataset.splits)}")
        for name in columns:
            both = shared_values(dataset.splits[split], dataset.splits[other], name)
            if both:
                raise DataError(
                    f"disjoint.{other}: {split} and {other} share {len(both)} of {name}, such as {both[0]!r}"
                )


def page_hashes(split: Split) -> dict[str, list[str]]:
    """Return a hash of the content of each page, image or text, with the ids (or rows) of all that have it."""
    table = split.documents if split.documents is not None else split.examples
    ids = table["id"].to_pylist() if "id" in table.column_names else [str(row) for row in range(len(table))]
    found: dict[str, list[str]] = {}
    present = [name for name in PAGE if name in table.column_names] or [n for n in TEXT if n in table.column_names]
    columns = [table[name] for name in present]
    if not columns:
        return {}
    for row, id in enumerate(ids):
        digest = hashlib.sha256()
        for values in columns:
            digest.update(_value_bytes(values[row]))
        found.setdefault(digest.hexdigest(), []).append(str(id))
    return found


def _value_bytes(value: pa.Scalar) -> bytes:
    if not value.is_valid:
        return b"\0"
    if isinstance(value, pa.BinaryScalar):
        return bytes(value.as_buffer())
    return repr(value.as_py()).encode()
