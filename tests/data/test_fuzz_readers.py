"""Readers on damaged and hostile files: each ends in time, with a value or one error of simfl.

Seeded: the fast test reads the same few files each time. The slow test reads others for a minute for each format;
`SIMFL_FUZZ_SEED` and `SIMFL_FUZZ_SECONDS` choose which and how long.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sample_files import write_lines, write_npy, write_pdf

from simfl import config
from simfl.data.io import records
from simfl.data.io.pdf import UnreadablePdf, extract_text, open_pdf
from simfl.data.io.restricted_pickle import load_object_array
from simfl.data.readers.hf_disk import HfDisk
from simfl.data.readers.invoice_xml import parse_header
from simfl.errors import SimflError
from simfl.images import measure_image, read_image
from simfl.json_files import JsonLines, seal
from simfl.models.pretrained import read_config, read_tensors
from simfl.runs import tables
from simfl.runs.folder import FORMAT, read_json
from simfl.runs.manifest import RunManifest
from simfl.sweeps import file as sweep_file
from simfl.tracking.watch import RunView

SEED, SECONDS = int(os.environ.get("SIMFL_FUZZ_SEED", 1)), float(os.environ.get("SIMFL_FUZZ_SECONDS", 60))
FAST, SLOWEST = 12, 60.0  # files of each format in the fast test; seconds that one file may take
LARGEST, RESERVED = 1 << 30, 8 << 30  # bytes that a file may use and reserve: Pillow's largest image needs 0.5 GiB
INTERESTING = (b"\x00", b"\xff" * 4, b"\x80", b"\x1b[2J", b"..", b"/../", b"%n", b"-1", b"1e999", b"NaN", b"[" * 2000)
EXPERIMENT = """name: a
data: digits
partition: {by: dirichlet, column: label, alpha: 0.5, clients: 20}
model: {name: mlp, hidden_sizes: [8]}
phases:
  - objective: classification
    rounds: 2
    participation: 0.5
    local: {optimizer: sgd, learning_rate: 0.1}
"""
LOG = [
    {"event": "started", "time": 1.0, "rounds": 2, "resumed_at": None, "clients": 3, "workers": 1, "name": "n"},
    {"event": "round", "time": 2.0, "step": 1, "phase": 0, "loss": 1.0, "sampled": 1, "download_bytes": 1,
     "upload_bytes": 1, "timings": {"train": 1.0}, "busy": [1.0], "seconds": 2.0, "memory": [1]},
]  # fmt: skip
XML = b"""<Invoice xmlns="urn:oasis:names:specification:ubl:schema:xsd:Invoice-2"
 xmlns:cbc="urn:oasis:names:specification:ubl:schema:xsd:CommonBasicComponents-2"><cbc:ID>1</cbc:ID></Invoice>"""


@dataclass(frozen=True)
class Format:
    """A kind of file: how a sound one is written, and how it is read."""

    name: str  # of the file
    write: Callable[[Path], object]
    read: Callable[[Path], object]


def _image(kind: str) -> Format:
    def write(path: Path) -> None:
        Image.new("RGB", (20, 10), (200, 30, 30)).save(path, kind)

    def read(path: Path) -> None:
        measure_image(path.read_bytes(), "image", whole=True)
        read_image(path.read_bytes(), "RGB", "image")

    return Format(f"x.{kind.lower()}", write, read)


def _hf(path: Path) -> None:
    """Write the data set that the file `path` belongs to."""
    content = io.BytesIO()
    Image.new("RGB", (8, 8)).save(content, "PNG")
    table = pa.table({"image": [content.getvalue()] * 2, "label": [0, 1]})
    folder = path.parent if path.parent.name == "train" else path.parent / "train"
    folder.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(folder / "d.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "d.arrow"}]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"label": {"names": ["a", "b"]}}}))
    (folder.parent / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))


def _read_hf(path: Path) -> None:
    root = path.parent.parent if path.parent.name == "train" else path.parent
    HfDisk(path=str(root), columns={"image": "image", "label": "label"}, image_size=8).load(root / "cache")


def _read_log(path: Path) -> None:
    """Read a log whose checksums are right, as a forger would make them."""
    view = RunView()
    for line in path.read_bytes().split(b"\n"):
        forged = path.with_name("forged.jsonl")
        text = line.rpartition(b', "crc"')[0]
        forged.write_bytes(text + b', "crc": "%08x"}\n' % zlib.crc32(text + b"}"))
        for values in JsonLines(forged).lines():
            view.update(values)


def _read_manifest(path: Path) -> None:
    """Read a manifest whose hash is right, as a forger would make it."""
    content = records.read_json_mapping(path)
    path.with_name("manifest.json").write_text(json.dumps(seal(content, FORMAT)))
    RunManifest.read(path.parent)


def _read_pdf(path: Path) -> None:
    with suppress(UnreadablePdf), open_pdf(path) as document:  # readers of folders count such files
        for page in document:
            extract_text(page)


MANIFEST: dict[str, Any] = {
    "simfl": "1", "commit": None, "dirty": False, "python": "3", "libraries": {"torch": "2"}, "machine": {"gpus": []},
    "data_sha256": "a", "partition_sha256": "b", "experiment_sha256": "c", "resumes": [],
    "identity": {"mode": "sequential", "clients_per_batch": 1, "threads": 1, "device": "cpu"},
}  # fmt: skip
FORMATS = [
    Format("experiment.yaml", lambda p: p.write_text(EXPERIMENT), config.load),
    Format("sweep.yaml", lambda p: p.write_text(f"{EXPERIMENT}seeds: [1, 2]\n"), sweep_file.load),
    Format("run.json", lambda p: p.write_text(json.dumps(seal({"a": [1, {"b": None}]}, FORMAT))), read_json),
    Format("plain.json", lambda p: p.write_text(json.dumps(MANIFEST)), _read_manifest),
    Format("log.jsonl", lambda p: JsonLines(p).append(*LOG), _read_log),
    Format("cut.jsonl", lambda p: JsonLines(p).append(*LOG), lambda p: JsonLines(p).repair()),
    Format("rows.parquet", lambda p: tables.write(p, [{"a": 1, "b": "x"}] * 50), tables.read),
    Format("x.safetensors", lambda p: save_file({"a": torch.ones(4, 4)}, p), lambda p: read_tensors(p.parent)),
    Format("pytorch_model.bin", lambda p: torch.save({"a": torch.ones(4)}, p), lambda p: read_tensors(p.parent)),
    Format("config.json", lambda p: p.write_text('{"d_model": 8}'), lambda p: read_config(p.parent)),
    Format("x.npy", lambda p: write_npy(p, [{"words": ["a"], "boxes": np.ones((1, 4))}]), load_object_array),
    Format("questions.json", lambda p: p.write_text('{"data": [{"q": "a"}]}'), records.read_json),
    Format("lines.jsonl", lambda p: write_lines(p, [{"a": 1}, {"b": [2]}]), lambda p: list(records.read_json_lines(p))),
    Format("x.pdf", lambda p: write_pdf(p, [[(30, 300, "total 12.50")]]), _read_pdf),
    Format("invoice.xml", lambda p: p.write_bytes(XML), lambda p: parse_header(p.read_bytes())),
    Format("dataset_dict.json", _hf, _read_hf),
    Format("train/state.json", _hf, _read_hf),
    Format("train/dataset_info.json", _hf, _read_hf),
    Format("train/d.arrow", _hf, _read_hf),
    *map(_image, ("PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP")),
]


def damaged(content: bytes, draws: random.Random) -> bytes:
    """Return a content with one to four changes: bits, cuts, repeats, insertions, exchanged values."""
    for _ in range(draws.randrange(1, 5)):
        at = draws.randrange(len(content) + 1)
        end = min(len(content), at + draws.choice((1, 2, 4, 16, 256)))
        match draws.randrange(6):
            case 0 if at < len(content):
                content = content[:at] + bytes([content[at] ^ 1 << draws.randrange(8)]) + content[at + 1 :]
            case 1:
                content = content[:at]
            case 2:
                content = content[:at] + content[end:]
            case 3:
                content = content[:at] + content[at:end] * draws.choice((2, 30)) + content[end:]
            case 4:
                content = content[:at] + draws.choice(INTERESTING) + content[end:]
            case _:
                old = draws.choice((b"1", b'"', b"[", b"{", b"a", b"null", b": "))
                content = content.replace(old, draws.choice((b"2", b"-", b"", b"null", b"[]", b"9" * 40)), 1)
    return content


def try_file(format: Format, folder: Path, draws: random.Random) -> None:
    """Write a damaged file and read it; any error but one of simfl fails the test, and so does a file elsewhere."""
    path = folder / "set" / format.name
    path.parent.mkdir(parents=True, exist_ok=True)
    format.write(path)
    content = damaged(path.read_bytes(), draws)
    path.write_bytes(content)
    began, most = time.monotonic(), resident()
    try:
        with suppress(SimflError):
            format.read(path)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}; content: {content[:2000]!r}") from error
    assert time.monotonic() - began < SLOWEST
    assert resident() - most < LARGEST, f"memory grew by {resident() - most:,} bytes; content: {content[:2000]!r}"
    assert [found.name for found in folder.iterdir()] == ["set"], "a file was written outside of the folder"


def resident() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Let a reservation of memory beyond RESERVED raise MemoryError, before it takes the machine with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + RESERVED, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


IDS: Any = [format.name for format in FORMATS]


@pytest.mark.parametrize("format", FORMATS, ids=IDS)
def test_damaged_file_is_read_or_refused(format: Format, tmp_path: Path) -> None:
    for number in range(FAST):
        try_file(format, tmp_path, random.Random(f"{format.name} {number}"))


@pytest.mark.slow
@pytest.mark.timeout(max(300, 10 * SECONDS))
@pytest.mark.parametrize("format", FORMATS, ids=IDS)
def test_damaged_files_of_a_minute_are_read_or_refused(format: Format, tmp_path: Path) -> None:
    deadline, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline:
        try_file(format, tmp_path, random.Random(f"{SEED} {format.name} {number}"))
        number += 1
