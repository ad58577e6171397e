"""Several data sets as one, for experiments whose clients hold different ones (paper: Nguyen et al. 2024)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from simfl.data.base import Data, Dataset, Published, Split
from simfl.errors import ConfigError, DataError, nearest


@dataclass(frozen=True)
class Joined(Data):
    """Several data sets one after the other; the column `dataset` of the examples tells which."""

    parts: Mapping[str, Data]  # a name for each, and the data set
    splits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # part -> its split -> its name here

    def load(self, cache: Path) -> Dataset:
        """All splits that any part has. Nothing is copied; ids are prefixed with the part's name."""
        if not self.parts:
            raise ConfigError("data.parts: empty, at least one data set is needed")
        loaded = {name: data.load(cache) for name, data in self.parts.items()}
        held: dict[str, list[tuple[str, Split]]] = {}
        for part, dataset in loaded.items():
            for split, content in dataset.splits.items():
                held.setdefault(self.splits.get(part, {}).get(split, split), []).append((part, content))
        self._check({part: set(dataset.splits) for part, dataset in loaded.items()})
        splits = {name: _join(parts) for name, parts in held.items()}
        told = [f"{name} {d.sha256}\n" for name, d in loaded.items()]
        told += [f"{part} {old} {new}\n" for part, names in self.splits.items() for old, new in names.items()]
        digest = hashlib.sha256("".join(told).encode()).hexdigest()
        splits = {name: split.of(digest) for name, split in splits.items()}
        return Dataset("joined", splits, digest, {"parts": {name: dict(d.card) for name, d in loaded.items()}})

    def _check(self, has: Mapping[str, set[str]]) -> None:
        """Every split that is to have another name is there, and no part has two of one name."""
        for part, names in self.splits.items():
            if part not in has:
                raise ConfigError(f"data.splits: unknown part {part!r}; {nearest(part, has)}")
            for split in names:
                if split not in has[part]:
                    raise ConfigError(f"data.splits.{part}: unknown split {split!r}; {nearest(split, has[part])}")
            if len({names.get(split, split) for split in has[part]}) < len(has[part]):
                raise ConfigError(f"data.splits.{part}: {dict(names)} gives two splits one name")

    def published(self) -> Published | None:
        """The parts as values of the column `dataset`; None if one of them is not known."""
        found = {name: data.published() for name, data in self.parts.items()}
        counts = {name: told.examples for name, told in found.items() if told is not None}
        return Published(sum(counts.values()), by={"dataset": counts}) if len(counts) == len(found) else None


def _join(parts: Sequence[tuple[str, Split]]) -> Split:
    with_documents = [split.documents for _, split in parts if split.documents is not None]
    if len(with_documents) not in (0, len(parts)):
        raise DataError(f"data.parts: {', '.join(name for name, _ in parts)}: some have documents and some have none")
    starts = np.cumsum([0, *(len(split.documents or ()) for _, split in parts)])
    examples = [_marked(name, split.examples, int(start)) for (name, split), start in zip(parts, starts, strict=False)]
    documents = _concat(with_documents) if with_documents else None
    return Split(_concat(examples), documents)


def _marked(name: str, examples: pa.Table, start: int) -> pa.Table:
    """The examples with their part's name, and the rows of their documents moved by `start`."""
    table = examples.append_column("dataset", pa.array([name] * len(examples), pa.string()))
    if "id" in table.column_names:
        ids = pa.array([f"{name}/{id}" for id in table["id"].to_pylist()], pa.string())
        table = table.set_column(table.schema.get_field_index("id"), "id", ids)
    if "document" in table.column_names:
        rows = pa.array(table["document"].to_numpy() + start, pa.int32())
        table = table.set_column(table.schema.get_field_index("document"), "document", rows)
    return table


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    both = {"image", "image_path"} & {name for table in tables for name in table.column_names}
    if len(both) == 2:
        raise DataError("data.parts: some parts keep pictures and some only paths; give all the same image_size")
    try:
        return pa.concat_tables([t.replace_schema_metadata(None) for t in tables], promote_options="default")
    except pa.ArrowInvalid as error:
        raise DataError(f"data.parts: the columns do not fit together ({error})") from error
