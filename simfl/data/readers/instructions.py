"""Instructions with answers, of several domains: data sets of the hub, folders or files in one of its layouts.

    data/train-00000-of-00001.parquet    or *.json (a list of records), *.jsonl (a record a line), in any folder

FlowerTune (Gao et al. 2025, "FlowerTune: A cross-domain benchmark for federated fine-tuning of large language models")
has four domains: vicgalle/alpaca-gpt4, FinGPT/fingpt-sentiment-train, medalpaca/medical_meadow_medical_flashcards and
lucasmccabe-lmi/CodeAlpaca-20k, all with the columns instruction, input and output.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from simfl.constraints import Fraction, PositiveInt
from simfl.data.base import Data, Dataset, Split
from simfl.data.io import records
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.tables import TableBuilder
from simfl.errors import ConfigError, DataError, nearest

VERSION = 1
FILES = ("*.parquet", "*.json", "*.jsonl")
ROLES = ("instruction", "input", "output")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),  # the instruction, and its input after a blank line
        ("answers", pa.list_(pa.string())),
        ("field", pa.string()),  # the domain
    ]
)
SPLITS = ("train", "valid", "test")
NO_DATA = ("dataset_infos.json", "dataset_dict.json")  # files of a hub's data set that hold no examples


@dataclass(frozen=True)
class Instructions(Data):
    """Instructions with answers of several domains, such as FlowerTune's four; the column `field` is the domain."""

    parts: Mapping[str, str]  # domain -> hub id of a data set, or a folder or file of Parquet, JSON or JSON lines
    path: str | None = None  # folder that folders and files of `parts` are relative to; ~ and $VARIABLES are expanded
    columns: Mapping[str, str] = field(default_factory=dict)  # instruction, input, output -> column, if named otherwise
    limit: PositiveInt | None = None  # examples of each domain, chosen by their hash; null: all
    valid: Fraction = 0.02  # share of each domain, chosen by the hash of the instruction with its input
    test: Fraction = 0.05  # share of each domain

    example: ClassVar[Mapping[str, object]] = {"parts": {"general": "instructions.jsonl"}}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files; data sets of the hub are downloaded once."""
        for name in self.columns:
            if name not in ROLES:
                raise ConfigError(f"data.columns: unknown column {name!r}; {nearest(name, ROLES)}")
        if not self.parts:
            raise ConfigError("data.parts: it is empty; allowed: a domain with a hub id, a folder or a file")
        if self.valid + self.test >= 1:
            raise ConfigError(f"data.valid and data.test: {self.valid} and {self.test} leave nothing to train on")
        base = Path() if self.path is None else records.resolve_folder(self.path)
        files = {domain: _files(base, source, f"data.parts.{domain}") for domain, source in self.parts.items()}
        sources = [path for paths in files.values() for path in paths]
        return load_or_build(cache, "instructions", VERSION, self, sources, lambda: self._build(files))

    def _build(self, files: Mapping[str, list[Path]]) -> Dataset:
        builders = {name: TableBuilder(SCHEMA) for name in SPLITS}
        dropped: Counter[str] = Counter()
        for domain, paths in files.items():
            found = sorted(self._examples(domain, paths, dropped))
            for digest, question, answer in found[: self.limit]:
                builder = builders[self._split(digest)]
                builder.add(id=f"{domain}-{digest[:12]}", question=question, answers=[answer], field=domain)
        splits = {name: Split(builder.table()) for name, builder in builders.items()}
        if not len(splits["train"]):
            raise DataError("data: no example is left for training; give more examples, or smaller data.valid and test")
        sizes = {name: dict(sorted(Counter(s.examples["field"].to_pylist()).items())) for name, s in splits.items()}
        card: dict[str, object] = {"examples": sizes, "sources": dict(self.parts), "dropped": dict(dropped)}
        return Dataset("instructions", splits, content_sha256(splits), card)

    def _split(self, digest: str) -> str:
        """Return the split of an instruction: the same for equal instructions, in whatever order they are read."""
        share = int(digest[-8:], 16) / (1 << 32)
        return "valid" if share < self.valid else "test" if share < self.valid + self.test else "train"

    def _examples(self, domain: str, paths: list[Path], dropped: Counter[str]) -> Iterator[tuple[str, str, str]]:
        """Yield hash, question and answer of each example; repeated questions and those without answer are dropped."""
        seen: set[str] = set()
        for path in paths:
            table = _read(path)
            names = {role: self.columns.get(role, role) for role in ROLES}
            for role in ("instruction", "output"):
                if names[role] not in table.column_names:
                    hint = nearest(names[role], table.column_names)
                    raise ConfigError(f"data.columns.{role}: {path} has no column {names[role]!r}; {hint}")
            present = [role for role in ROLES if names[role] in table.column_names]
            columns = [table[names[role]].to_pylist() for role in present]
            for row, values in enumerate(zip(*columns, strict=True)):
                texts = dict(zip(present, values, strict=True))
                where = f"{path} row {row}"
                question, answer = _question(where, texts), _text(where, texts, "output")
                digest = hashlib.sha256(f"{domain}\n{question}".encode()).hexdigest()
                reason = "no answer" if not answer else "no instruction" if not question else ""
                reason = reason or ("repeated instruction" if digest in seen else "")
                if reason:
                    dropped[f"{domain}: {reason}"] += 1
                    continue
                seen.add(digest)
                yield digest, question, answer


def _question(where: str, texts: Mapping[str, object]) -> str:
    given = [_text(where, texts, role) for role in ("instruction", "input")]
    return "\n\n".join(text for text in given if text)


def _text(where: str, texts: Mapping[str, object], role: str) -> str:
    """Return a text without blanks around it; "" for null. DataError if it is something else."""
    value = texts.get(role)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: {role} is {type(value).__name__}, expected text")
    return value.strip()


def _files(base: Path, source: str, setting: str) -> list[Path]:
    """Return the files of a data set: of its training split, if names say which they are."""
    path = base / Path(os.path.expandvars(source)).expanduser()
    if path.is_file():
        return [path]
    folder = path if path.is_dir() else _downloaded(source, setting)
    found = sorted(file for pattern in FILES for file in folder.rglob(pattern) if file.name not in NO_DATA)
    kept = [file for file in found if "train" in file.name or file.parent.name == "train"]
    if not found:
        raise DataError(f"{setting}: {folder} has no file of {', '.join(FILES)}")
    return kept or found


def _downloaded(source: str, setting: str) -> Path:
    """Return the folder of a data set of the hub, which is downloaded once."""
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) is None:
        raise ConfigError(f"{setting}: {source!r} is no folder, file or hub id of a data set")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, repo_type="dataset", allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{setting}: {source!r} is no folder or file, and cannot be downloaded: {reason}") from error


def _read(path: Path) -> pa.Table:
    """Return the records of a file; DataError if it is damaged."""
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        if path.suffix == ".jsonl":
            return pa_json.read_json(path)
        return pa.Table.from_pylist(records.as_list(str(path), records.read_json(path)))
    except (OSError, pa.ArrowException, AttributeError, TypeError) as error:
        raise DataError(f"{path}: not readable ({str(error).splitlines()[0]})") from error
