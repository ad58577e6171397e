"""Several data sets as one, for experiments whose clients have different ones (Nguyen et al. 2024)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from simfl.data.base import Data, Dataset, Published, Split
from simfl.data.io.tables import shift_documents
from simfl.errors import ConfigError, DataError, nearest


@dataclass(frozen=True)
class Joined(Data):
    """Concatenation of several data sets; the column `dataset` of the examples names the source."""

    parts: Mapping[str, Data]  # name -> data set
    splits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # part -> its split -> name of the split here
    example: ClassVar[Mapping[str, object]] = {"parts": {"a": {"name": "prototypes", "examples": 40, "shape": [4]}}}

    def load(self, cache: Path) -> Dataset:
        """Load all parts and concatenate their splits. Nothing is cached; ids are prefixed with the part's name."""
        if not self.parts:
            raise ConfigError("data.parts: empty, at least one data set is required")
        loaded = {name: data.load(cache) for name, data in self.parts.items()}
        self._check({part: set(dataset.splits) for part, dataset in loaded.items()})
        pieces: dict[str, list[tuple[str, Split]]] = {}
        for part, dataset in loaded.items():
            for name, split in dataset.splits.items():
                pieces.setdefault(self.splits.get(part, {}).get(name, name), []).append((part, split))
        splits = {name: _join(parts) for name, parts in pieces.items()}
        lines = [f"{name} {d.sha256}\n" for name, d in loaded.items()]
        lines += [f"{part} {old} {new}\n" for part, names in self.splits.items() for old, new in names.items()]
        digest = hashlib.sha256("".join(lines).encode()).hexdigest()
        splits = {name: split.with_sha256(digest) for name, split in splits.items()}
        return Dataset("joined", splits, digest, {"parts": {name: dict(d.card) for name, d in loaded.items()}})

    def _check(self, known: Mapping[str, set[str]]) -> None:
        """Check that every renamed split exists and that no part has two splits of one name."""
        for part, names in self.splits.items():
            if part not in known:
                raise ConfigError(f"data.splits: unknown part {part!r}; {nearest(part, known)}")
            for split in names:
                if split not in set().union(*known.values()):  # the part may lack a file that others have
                    raise ConfigError(f"data.splits.{part}: unknown split {split!r}; {nearest(split, known[part])}")
            if len({names.get(split, split) for split in known[part]}) < len(known[part]):
                raise ConfigError(f"data.splits.{part}: {dict(names)} gives two splits one name")

    def published(self) -> Published | None:
        """Return the sizes of the parts by the column `dataset`; None if one of them is unknown."""
        sizes = {name: data.published() for name, data in self.parts.items()}
        counts = {name: size.examples for name, size in sizes.items() if size is not None}
        return Published(sum(counts.values()), by={"dataset": counts}) if len(counts) == len(sizes) else None


def _join(parts: Sequence[tuple[str, Split]]) -> Split:
    with_documents = [split.documents for _, split in parts if split.documents is not None]
    if len(with_documents) not in (0, len(parts)):
        raise DataError(f"data.parts: of {', '.join(name for name, _ in parts)}, some have documents and some do not")
    starts = np.cumsum([0, *(len(split.documents or ()) for _, split in parts)])
    examples = [_label(name, split.examples, int(start)) for (name, split), start in zip(parts, starts, strict=False)]
    documents = _concat(with_documents) if with_documents else None
    return Split(_concat(examples), documents)


def _label(name: str, examples: pa.Table, start: int) -> pa.Table:
    """Return the examples with the name of their part, and with the rows of their documents shifted by `start`."""
    table = examples.append_column("dataset", pa.array([name] * len(examples), pa.string()))
    if "id" in table.column_names:
        ids = pa.array([f"{name}/{id}" for id in table["id"].to_pylist()], pa.string())
        table = table.set_column(table.schema.get_field_index("id"), "id", ids)
    return shift_documents(table, start) if "document" in table.column_names else table


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    both = {"image", "image_path"} & {name for table in tables for name in table.column_names}
    if len(both) == 2:
        raise DataError("data.parts: some parts store images and some only paths; give all the same image_size")
    try:
        return pa.concat_tables([t.replace_schema_metadata(None) for t in tables], promote_options="default")
    except pa.ArrowInvalid as error:
        raise DataError(f"data.parts: the columns do not match ({error})") from error
