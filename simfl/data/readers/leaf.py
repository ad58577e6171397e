"""Data sets in the JSON format of LEAF (Caldas et al. 2018, "LEAF: A benchmark for federated settings").

    data/train/*.json, data/test/*.json: {"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}

The column `user` names the user of each example: `partition: {by: natural, column: user}` makes each user a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from simfl.constraints import PositiveInt
from simfl.data.base import Data, Dataset, split_name
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.readers.own import Own
from simfl.errors import DataError

VERSION = 1
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Leaf(Data):
    """Files in LEAF's JSON format: users with their own inputs and labels."""

    path: str  # folder with train/ and test/, such as data/femnist/data; ~ and $VARIABLES are expanded
    shape: tuple[PositiveInt, ...] | None = None  # of one input, such as [28, 28]; null: as listed
    classes: PositiveInt | tuple[str, ...] | None = None  # number or names of the classes; null: those of train

    example: ClassVar[Mapping[str, object]] = {"shape": (28, 28)}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        files = self._files()
        sources = [path for paths in files.values() for path in paths]
        return load_or_build(cache, "leaf", VERSION, self, sources, lambda: self._build(files))

    def preview(self, cache: Path) -> Dataset:
        """Read the files without checking their values; nothing is stored."""
        return self._build(self._files())

    def _files(self) -> dict[str, list[Path]]:
        root = records.resolve_folder(self.path)
        named = {split_name(folder.name): folder for folder in sorted(root.iterdir())}
        found = {split: sorted(folder.glob("*.json")) for split, folder in named.items() if split in SPLITS}
        found = {split: paths for split, paths in found.items() if paths}
        if "train" not in found:
            raise DataError(
                f"data.path: {root} has no files train/*.json; give the folder that contains train and test"
            )
        return found

    def _build(self, files: Mapping[str, list[Path]]) -> Dataset:
        splits = {split: self._columns(paths) for split, paths in files.items()}
        made = Own(splits, classes=self.classes).read()
        users = {split: len(set(columns["user"])) for split, columns in splits.items()}
        return Dataset("leaf", made.splits, made.sha256, {**made.card, "users": users})

    def _columns(self, paths: list[Path]) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {"user": [], "label": []}
        inputs: list[Any] = []
        for path in paths:
            where, content = str(path), records.read_json_mapping(path)
            data = records.as_mapping(where, content.get("user_data"), "user_data")
            for user in records.as_list(where, content.get("users"), "users"):
                own = records.as_mapping(where, data.get(str(user)), f"user_data of {user!r}")
                x, y = (records.as_list(where, own.get(name), f"{name} of user {user!r}") for name in ("x", "y"))
                if len(x) != len(y):
                    raise DataError(f"{path}: user {user!r} has {len(x)} inputs and {len(y)} labels")
                inputs += x
                columns["label"] += y
                columns["user"] += [str(user)] * len(y)
        if all(isinstance(one, str) for one in inputs):
            return columns | {"text": inputs}
        return columns | {"features": [self._array(one, number, paths) for number, one in enumerate(inputs)]}

    def _array(self, values: Any, number: int, paths: list[Path]) -> np.ndarray:
        where = f"{paths[0].parent}, example {number}"
        try:
            array = np.asarray(values, np.float32)
            return array if self.shape is None else array.reshape(self.shape)
        except (TypeError, ValueError):
            if self.shape is None:
                raise DataError(f"{where}: x is neither numbers nor text") from None
            raise DataError(f"{where}: x has {np.size(values)} values, data.shape has {np.prod(self.shape)}") from None
