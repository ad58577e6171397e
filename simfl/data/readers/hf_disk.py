"""Data sets saved to disk by the Hugging Face library `datasets`, read by Arrow alone.

    dataset_dict.json                     names of the splits, where there are several
    SPLIT/state.json                      the files of the split, in order
    SPLIT/dataset_info.json               types of the columns: pictures, names of classes
    SPLIT/data-00000-of-00002.arrow       an Arrow stream

Which of their columns is what is said in the settings; a dotted name reaches into a mapping (`question.en`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from simfl.constraints import Count, Positive
from simfl.data.base import PICTURES, WORD_PICTURES, Data, Dataset, Split
from simfl.data.io import records
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.gather import Columns, Gather, Pictures, finish, kept
from simfl.data.io.images import shrink
from simfl.data.readers import vqa
from simfl.errors import ConfigError, DataError, nearest

EDITION = 1
SPLITS = {"train": "train", "validation": "valid", "val": "valid", "valid": "valid", "dev": "valid", "test": "test"}
ROLES = ("id", "image", "question", "answers", "field", "words", "boxes", "provider", "label", "text")
BATCH = 256  # rows that are Python objects at a time


@dataclass(frozen=True)
class HfDisk(Data):
    """A data set saved by the library `datasets` (save_to_disk): questions, classes or words, as its columns say."""

    path: str  # the folder given to save_to_disk; ~ and $VARIABLES are followed
    columns: Mapping[
        str, str
    ]  # our name: theirs; ours are id, image, question, answers, field, words, boxes, provider, label, text
    groups: tuple[str, ...] = ()  # further columns of theirs, kept as text to partition by
    box_scale: Positive = 1.0  # what their boxes are divided by: 1000 for LayoutLM's
    image_size: Count = 224  # pictures are stored in colour, squeezed to this many pixels square

    def load(self, cache: Path) -> Dataset:
        for name in self.columns:
            if name not in ROLES:
                raise ConfigError(f"data.columns: no column is called {name!r}; {nearest(name, ROLES)}")
        if not {"question", "label", "text"} & set(self.columns):
            raise ConfigError("data.columns: question, label or text is needed, it tells what the task is")
        root = records.folder(self.path)
        files = _files(root)
        sources = [path for paths in files.values() for path in paths]
        return kept(cache, "hf_disk", EDITION, self, sources, lambda: self._build(files))

    def _build(self, files: Mapping[str, list[Path]]) -> Dataset:
        if "question" in self.columns:
            return finish("hf_disk", {split: self._asked(split, paths) for split, paths in files.items()}, {})
        names = _classes(files["train"][0].parent, self.columns.get("label", ""))
        splits = {split: self._shown(paths, names) for split, paths in files.items()}
        card: dict[str, object] = {"examples": {split: len(part) for split, part in splits.items()}}
        if "label" in self.columns:
            labels = [label for split in splits.values() for label in split.examples["label"].to_pylist()]
            card |= {"num_classes": max(len(names), max(labels, default=-1) + 1), "classes": names}
            card |= {"shape": [3, self.image_size, self.image_size]}
        return Dataset("hf_disk", splits, content_sha256(splits, also=str(self.image_size)), card)

    def _asked(self, split: str, paths: list[Path]) -> Gather:
        """Questions, each picture once."""
        gather = Gather(
            Pictures(self.image_size), split != "test", [vqa.COUNTS, *((g, pa.string()) for g in self.groups)]
        )
        for where, number, row in self._rows(paths):
            encoded = _bytes(where, row.get("image"))
            key = hashlib.sha256(encoded or b"").hexdigest()[:16] if encoded else f"{split}-{number}"
            words = [str(word) for word in row.get("words") or ()]
            boxes = [float(v) / self.box_scale for box in row.get("boxes") or () for v in box]
            picture = partial(shrink, encoded, self.image_size, "RGB", "JPEG", where) if encoded else None
            page = gather.page(where, key, picture, words, boxes, str(row.get("provider") or ""))
            given = row.get("answers")
            answers, counts = vqa.tally(where, [given] if isinstance(given, str) else given)
            id, kind = str(row.get("id", f"{split}-{number}")), str(row.get("field") or "")
            gather.ask(
                id, page, records.text(where, row, "question"), answers, kind, counts=counts, **self._groups(row)
            )
        return gather

    def _shown(self, paths: list[Path], names: list[str]) -> Split:
        """Pictures with a class, or of words."""
        words = "text" in self.columns
        columns = Columns(
            pa.schema([*(WORD_PICTURES if words else PICTURES), *((g, pa.string()) for g in self.groups)])
        )
        for where, number, row in self._rows(paths):
            encoded = _bytes(where, row.get("image"))
            if encoded is None:
                raise DataError(f"{where}: image is missing")
            if words:
                told: dict[str, Any] = {"text": records.text(where, row, "text"), "source": paths[0].parent.name}
            else:
                label = records.whole(where, row, "label")
                kind = names[label] if 0 <= label < len(names) else ""
                told = {"label": label, "class": kind, "domain": str(row.get("provider") or "")}
            size = self.image_size
            image = shrink(encoded, size, "RGB", "JPEG", where)
            id = str(row.get("id", number))
            columns.add(id=id, image=image, width=size, height=size, **told, **self._groups(row))
        return Split(columns.table())

    def _groups(self, row: Mapping[str, Any]) -> dict[str, str]:
        return {name: str(row[name]) for name in self.groups}

    def _rows(self, paths: list[Path]) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """File and row, number in the split, and the values under our names."""
        number = 0
        for path in paths:
            table = _table(path)
            wanted = {**self.columns, **{group: group for group in self.groups}}
            for theirs in wanted.values():
                if theirs.partition(".")[0] not in table.column_names:
                    raise ConfigError(f"data.columns: {path} has no {theirs!r}; {nearest(theirs, table.column_names)}")
            for batch in table.to_batches(max_chunksize=BATCH):
                for record in batch.to_pylist():
                    row = {ours: _at(record, theirs) for ours, theirs in wanted.items()}
                    yield f"{path} row {number}", number, row
                    number += 1


def _files(root: Path) -> dict[str, list[Path]]:
    """The Arrow files of each split, in order."""
    told = records.found(root, "dataset_dict.json")
    names = records.mapping(str(told), records.json_file(told)).get("splits", []) if told else [""]
    found = {}
    for name in names:
        split = SPLITS.get(name, name) if name else "train"
        state = records.mapping(f"{root / name}", records.json_file(records.need(root / name, "state.json")))
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise DataError(f"{root / name}: saved with a selection of rows; call flatten_indices() and save again")
        found[split] = [root / name / str(entry["filename"]) for entry in state.get("_data_files") or ()]
    if not found.get("train"):
        raise DataError(f"data.path: {root} has no split train")
    return found


def _table(path: Path) -> pa.Table:
    try:
        return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Arrow stream ({error})") from error


def _classes(folder: Path, column: str) -> list[str]:
    """The names of the classes, where the column has some."""
    path = folder / "dataset_info.json"
    features = records.mapping(str(path), records.json_file(path)).get("features") or {} if path.is_file() else {}
    return [str(name) for name in (features.get(column) or {}).get("names") or ()]


def _at(record: Mapping[str, Any], dotted: str) -> Any:
    value: Any = record
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _bytes(where: str, image: Any) -> bytes | None:
    """An encoded picture: bytes, a mapping with bytes or a path, as `datasets` saves them."""
    if isinstance(image, dict):
        path = image.get("path")
        image = image.get("bytes") or (Path(path).read_bytes() if path and Path(path).is_file() else None)
        if image is None:
            raise DataError(f"{where}: the picture {path!r} is not saved with the data and not there")
    if image is not None and not isinstance(image, bytes):
        raise DataError(f"{where}: image is {type(image).__name__}, an encoded picture is needed")
    return image
