"""File format of PFL-DocVQA: the competition of 2023 and the later full release.

    imdb/imdb_train_client_I.npy  imdb_val.npy  imdb_test.npy     or  blue_train.npy  blue_val.npy  red_test.npy
    imdb/data_points.json         {"client_I": {provider: [row, ...]}}  or, with blue_train, {provider: [row, ...]}
    imdb/red_doc2provider.json    {document: {"provider": ...}}, in the full release
    images/NAME.jpg               one a page; the document is NAME up to its first "_"

A .npy file is an array of objects. Entry 0 is a header and counts as row 0, so the first question is row 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simfl.data.io import records
from simfl.data.io.records import Record
from simfl.data.io.restricted_pickle import load_object_array
from simfl.errors import DataError

TRAIN_FILE = re.compile(r"imdb_train_client_(\d+)\.npy")
EVALUATION_FILES = {"valid": ("imdb_val.npy", "blue_val.npy"), "test": ("imdb_test.npy", "red_test.npy")}
NO_CLIENT = -1  # key of the training file of the full release, which has no clients


@dataclass(frozen=True)
class PflQuestion:
    """One question as its file contains it."""

    where: str  # file and row, for error messages
    id: str | None  # None: the file has no id
    question: str
    answers: list[str]  # empty: withheld
    page: str  # name of the image
    set_name: str
    words: list[str]
    record: Record

    @property
    def document(self) -> str:
        """Document that the page belongs to."""
        return self.page.partition("_")[0]

    def boxes(self) -> np.ndarray:
        """Return the boxes of the words, float32 [4n], flat: left, top, right, bottom, clipped to [0, 1]."""
        return records.get_boxes(self.where, self.record, "ocr_normalized_boxes", len(self.words)).reshape(-1)


def annotation_folder(root: Path) -> Path:
    """Return the folder of the annotations: `imdb` in the root, or the root."""
    if not root.is_dir():
        raise DataError(f"data.path: {root} is not a folder")
    return root / "imdb" if (root / "imdb").is_dir() else root


def find_train_files(imdb: Path) -> dict[int, Path]:
    """Return the training file of each client, or of `NO_CLIENT` in the full release; DataError if one is missing."""
    found = {int(m[1]): path for path in imdb.iterdir() if (m := TRAIN_FILE.fullmatch(path.name))}
    if found:
        missing = sorted(set(range(max(found) + 1)) - set(found))
        if missing:
            raise DataError(f"{imdb}: imdb_train_client_{missing[0]}.npy is missing, client {max(found)} exists")
        return dict(sorted(found.items()))
    if (imdb / "blue_train.npy").exists():
        return {NO_CLIENT: imdb / "blue_train.npy"}
    raise DataError(f"{imdb}: imdb_train_client_0.npy or blue_train.npy is missing")


def find_evaluation_files(imdb: Path) -> dict[str, Path]:
    """Return the files of the splits without clients, as far as they exist."""
    found = {split: records.find(imdb, *names) for split, names in EVALUATION_FILES.items()}
    return {split: path for split, path in found.items() if path}


def read_questions(path: Path) -> Iterator[tuple[int, PflQuestion]]:
    """Yield the questions of a file with their rows, from row 1; DataError names the row that cannot be read."""
    entries = load_object_array(path)
    if not entries or not isinstance(entries[0], dict) or "question" in entries[0]:
        raise DataError(f"{path} row 0: expected a header without a question, as in the official files")
    for row in range(1, len(entries)):
        yield row, _parse(f"{path} row {row}", entries[row])
        entries[row] = None  # a file takes gigabytes as objects: free each entry once read


def _parse(where: str, entry: object) -> PflQuestion:
    record = records.as_mapping(where, entry)
    id = record.get("question_id")
    return PflQuestion(
        where=where,
        id=None if id is None else str(id),
        question=records.get_text(where, record, "question"),
        answers=_answers(where, record.get("answers")),
        page=records.get_text(where, record, "image_name"),
        set_name=str(record.get("set_name") or ""),
        words=records.get_texts(where, record, "ocr_tokens"),
        record=record,
    )


def _answers(where: str, value: object) -> list[str]:
    answers = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
        raise DataError(f"{where}: answers is {value!r}, expected text")
    return [a for a in answers if a.strip()]


def read_row_providers(imdb: Path, clients: list[int]) -> dict[int, dict[int, str]]:
    """Return the provider of each row of each client; DataError if a provider or a row is in two places."""
    path = imdb / "data_points.json"
    points = _read_json_mapping(path)
    entries = {NO_CLIENT: points} if clients == [NO_CLIENT] else {c: points.get(f"client_{c}") for c in clients}
    provider_of: dict[int, dict[int, str]] = {}
    owner: dict[str, int] = {}
    for client, rows_of in entries.items():
        if not isinstance(rows_of, dict) or (client >= 0 and len(points) != len(entries)):
            keys = ", ".join(sorted(points)[:12])
            raise DataError(f"{path}: there are training files of {len(entries)} clients, but the keys are {keys}")
        for provider in rows_of:
            if owner.setdefault(provider, client) != client:
                raise DataError(f"{path}: provider {provider!r} is in client {owner[provider]} and client {client}")
        provider_of[client] = _invert(path, client, rows_of)
    return provider_of


def _invert(path: Path, client: int, rows_of: Mapping[str, object]) -> dict[int, str]:
    provider_of: dict[int, str] = {}
    for provider, rows in rows_of.items():
        for row in rows if isinstance(rows, list) else [rows]:
            if not isinstance(row, int) or row < 1:
                raise DataError(f"{path}: client {client}, provider {provider!r}: row {row!r}, but row 0 is the header")
            if provider_of.setdefault(row, provider) != provider:
                raise DataError(
                    f"{path}: client {client}: row {row} belongs to {provider_of[row]!r} and to {provider!r}"
                )
    return provider_of


def read_document_providers(imdb: Path) -> dict[str, str]:
    """Return the provider of each document of the red test set; empty outside the full release."""
    path = imdb / "red_doc2provider.json"
    if not path.exists():
        return {}
    where = str(path)
    entries = {document: records.as_mapping(where, e) for document, e in _read_json_mapping(path).items()}
    return {document: str(entry["provider"]) for document, entry in entries.items()}


def _read_json_mapping(path: Path) -> dict[str, object]:
    if not path.exists():
        raise DataError(f"{path}: no such file; it assigns rows to providers")
    return records.read_json_mapping(path)
