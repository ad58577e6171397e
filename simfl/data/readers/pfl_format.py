"""The files of PFL-DocVQA as the competition of 2023 and the later full release have them.

    imdb/imdb_train_client_I.npy  imdb_val.npy  imdb_test.npy     or  blue_train.npy  blue_val.npy  red_test.npy
    imdb/data_points.json         {"client_I": {provider: [row, ...]}}  or, with blue_train, {provider: [row, ...]}
    imdb/red_doc2provider.json    {document: {"provider": ...}}, of the full release
    images/NAME.jpg               one a page; the document is NAME up to its first "_"

A .npy file is an array of objects. Entry 0 is a header; rows count from it, so the first record is row 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simfl.data.io.plain_pickle import load_records
from simfl.errors import DataError

TRAIN = re.compile(r"imdb_train_client_(\d+)\.npy")
WHOLE = {"valid": ("imdb_val.npy", "blue_val.npy"), "test": ("imdb_test.npy", "red_test.npy")}


@dataclass(frozen=True)
class Record:
    """One question as its file has it."""

    where: str  # file and row, for messages
    id: str | None  # None where the file gives none
    question: str
    answers: list[str]  # empty where they are withheld
    page: str  # name of the picture
    set_name: str
    words: list[str]
    raw_boxes: Any

    @property
    def document(self) -> str:
        """The document that the page belongs to."""
        return self.page.partition("_")[0]

    def boxes(self) -> np.ndarray:
        """Boxes of the words, float32 [4n], flat: left, top, right, bottom, cut to [0, 1]."""
        try:
            boxes = np.asarray(self.raw_boxes, np.float32).reshape(len(self.words), 4)
        except (ValueError, TypeError):
            raise DataError(
                f"{self.where}: ocr_normalized_boxes are not 4 numbers for each of {len(self.words)} words"
            ) from None
        if not np.isfinite(boxes).all():
            raise DataError(f"{self.where}: ocr_normalized_boxes hold {boxes[~np.isfinite(boxes)][0]}")
        return np.clip(boxes, 0.0, 1.0).reshape(-1)


def folder(root: Path) -> Path:
    """Where the annotations lie: `imdb` in the root, or the root itself."""
    if not root.is_dir():
        raise DataError(f"data.path: {root} is not a folder")
    return root / "imdb" if (root / "imdb").is_dir() else root


def train_files(imdb: Path) -> dict[int, Path]:
    """The training file of each client, or of nobody (-1) in the full release; DataError if one is missing."""
    found = {int(m[1]): path for path in imdb.iterdir() if (m := TRAIN.fullmatch(path.name))}
    if found:
        missing = sorted(set(range(max(found) + 1)) - set(found))
        if missing:
            raise DataError(f"{imdb}: imdb_train_client_{missing[0]}.npy is missing, client {max(found)} is there")
        return dict(sorted(found.items()))
    if (imdb / "blue_train.npy").exists():
        return {-1: imdb / "blue_train.npy"}
    raise DataError(f"{imdb}: neither imdb_train_client_0.npy nor blue_train.npy is there")


def whole_files(imdb: Path) -> dict[str, Path]:
    """The files of the splits without clients that are there."""
    found = {split: [imdb / n for n in names if (imdb / n).exists()] for split, names in WHOLE.items()}
    return {split: paths[0] for split, paths in found.items() if paths}


def read_records(path: Path) -> Iterator[tuple[int, Record]]:
    """The records of a file with their rows, from row 1; DataError names the row that cannot be read."""
    entries = load_records(path)
    if not entries or not isinstance(entries[0], dict) or "question" in entries[0]:
        raise DataError(f"{path} row 0: a header without a question is needed, as in the official files")
    for row in range(1, len(entries)):
        yield row, _record(f"{path} row {row}", entries[row])
        entries[row] = None  # a file takes gigabytes as objects; what is read is let go


def _record(where: str, entry: Any) -> Record:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: {type(entry).__name__} given, a mapping is needed")
    given = entry.get("question_id")
    return Record(
        where=where,
        id=None if given is None else str(given),
        question=_text(where, entry, "question"),
        answers=_answers(where, entry.get("answers")),
        page=_text(where, entry, "image_name"),
        set_name=str(entry.get("set_name") or ""),
        words=_words(where, entry.get("ocr_tokens")),
        raw_boxes=entry.get("ocr_normalized_boxes"),
    )


def _text(where: str, entry: Mapping[str, Any], field: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: {field} is {value!r}, text is needed")
    return value


def _answers(where: str, given: Any) -> list[str]:
    answers = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
        raise DataError(f"{where}: answers is {given!r}, text is needed")
    return [a for a in answers if a.strip()]


def _words(where: str, given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise DataError(f"{where}: ocr_tokens is {type(given).__name__}, a list of texts is needed")
    return given


def providers_of_rows(imdb: Path, clients: list[int]) -> dict[int, dict[int, str]]:
    """For each client the provider of each row. DataError if a provider is in two clients, or a row of two."""
    path = imdb / "data_points.json"
    points = _json(path)
    held_by = {-1: points} if clients == [-1] else {c: points.get(f"client_{c}") for c in clients}
    provider_of: dict[int, dict[int, str]] = {}
    owner: dict[str, int] = {}
    for client, held in held_by.items():
        if not isinstance(held, dict) or (client >= 0 and len(points) != len(held_by)):
            known = ", ".join(sorted(points)[:12])
            raise DataError(f"{path}: there are training files of {len(held_by)} clients, here are {known}")
        for provider in held:
            if owner.setdefault(provider, client) != client:
                raise DataError(f"{path}: provider {provider!r} is in client {owner[provider]} and client {client}")
        provider_of[client] = _invert(path, client, held)
    return provider_of


def _invert(path: Path, client: int, held: Mapping[str, Any]) -> dict[int, str]:
    provider_of: dict[int, str] = {}
    for provider, rows in held.items():
        for row in rows if isinstance(rows, list) else [rows]:
            if not isinstance(row, int) or row < 1:
                raise DataError(f"{path}: client {client}, provider {provider!r}: row {row!r}, but row 0 is the header")
            if provider_of.setdefault(row, provider) != provider:
                raise DataError(f"{path}: client {client}: row {row} is of {provider_of[row]!r} and of {provider!r}")
    return provider_of


def providers_of_documents(imdb: Path) -> dict[str, str]:
    """The provider of each document of the red test set, where the full release says it; else empty."""
    path = imdb / "red_doc2provider.json"
    return {doc: str(held["provider"]) for doc, held in _json(path).items()} if path.exists() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; it says which rows belong to which provider") from None
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: {type(content).__name__} given, a mapping is needed")
    return content
