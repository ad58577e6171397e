"""Damaged files of data sets are one line; changed contents are noticed, whatever the times of the files say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from simfl.data.base import Data, Dataset, Split
from simfl.data.io import file_hashes
from simfl.data.io.arrow_store import FORMAT, load_or_build, read_dataset, write_dataset
from simfl.data.io.file_hashes import MEMO, FileHashes
from simfl.data.readers.hf_disk import HfDisk
from simfl.errors import DataError

TABLE = pa.table({"id": ["a", "b"], "label": [0, 1]})


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A data set in a folder."""
    folder = tmp_path / "set"
    write_dataset(folder, Dataset("set", {"train": Split(TABLE)}, "ab", {"n": 1}))
    return folder


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def read_or_line(read: Callable[[], Dataset]) -> Dataset | str:
    """Return the data set, or the error that names what is wrong."""
    try:
        return read()
    except DataError as error:
        return str(error)


def test_every_altered_byte_of_a_stored_data_set_is_noticed_or_has_no_effect(stored: Path) -> None:
    for path in sorted(stored.iterdir()):
        original = path.read_bytes()
        for at in range(0, len(original), 3):
            flip(path, at)
            found = read_or_line(lambda: read_dataset(stored))
            if isinstance(found, str):
                assert "\n" not in found
                assert str(stored) in found
            else:
                values = found.sha256, found.card, found.splits["train"].examples.to_pydict()
                assert values == ("ab", {"n": 1}, TABLE.to_pydict())
            path.write_bytes(original)


@pytest.mark.parametrize("length", [0, 8, 200, -1])
def test_a_shorter_table_is_refused_before_it_is_mapped(stored: Path, length: int) -> None:
    path = stored / "train.examples.arrow"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"^[^\n]*damaged, delete the folder \(train\.examples\.arrow has \d+ bytes"):
        read_dataset(stored)
    path.unlink()
    with pytest.raises(DataError, match=r"^[^\n]*train\.examples\.arrow: No such file or directory\)$"):
        read_dataset(stored)


def test_a_changed_byte_is_noticed_although_the_times_are_restored(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_hashes, "SETTLED_SECONDS", -1.0)  # hashes are kept at once
    read_dataset(stored)
    assert (stored.parent / MEMO).exists()
    path = stored / "train.examples.arrow"
    before = path.stat()
    flip(path, 300)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match="does not match its hash"):
        read_dataset(stored)


@dataclass(frozen=True)
class Counted(Data):
    """A data set that counts how often it is built."""

    path: str = ""

    def load(self, cache: Path) -> Dataset:
        source = Path(self.path)
        return load_or_build(cache, "counted", 1, self, [source], lambda: self._build(source))

    def _build(self, source: Path) -> Dataset:
        with open(source.with_name("builds"), "a") as file:
            file.write(".")
        return Dataset("counted", {"train": Split(TABLE)}, "ab", {"text": source.read_text()})


def builds(folder: Path) -> int:
    return len((folder / "builds").read_text())


def test_a_data_set_is_keyed_by_the_content_of_its_sources_and_not_by_their_times(tmp_path: Path) -> None:
    source, cache = tmp_path / "source", tmp_path / "cache"
    source.write_text("one")
    data = Counted(str(source))
    assert data.load(cache).card["text"] == "one"
    os.utime(source, ns=(1, 1))
    assert data.load(cache).card["text"] == "one"
    assert builds(tmp_path) == 1
    before = source.stat()
    source.write_text("two")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size, same time of modification
    assert data.load(cache).card["text"] == "two"
    assert builds(tmp_path) == 2


@pytest.mark.parametrize("number", [None, FORMAT + 1])
def test_a_card_of_another_format_is_built_again_and_refused_by_a_reader(tmp_path: Path, number: int | None) -> None:
    source, cache = tmp_path / "source", tmp_path / "cache"
    source.write_text("one")
    Counted(str(source)).load(cache)
    (card,) = cache.glob("*/card.json")
    content = {name: value for name, value in json.loads(card.read_text()).items() if name != "format"}
    card.write_text(json.dumps(content | ({} if number is None else {"format": number})))
    with pytest.raises(DataError, match=rf"^[^\n]*card\.json: [^\n]* found, format {FORMAT} expected[^\n]*$"):
        read_dataset(card.parent)
    assert Counted(str(source)).load(cache).card["text"] == "one"
    assert builds(tmp_path) == 2


def test_a_damaged_memo_of_hashes_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hashes, "SETTLED_SECONDS", -1.0)
    path = tmp_path / "file"
    path.write_text("x")
    hashes = FileHashes(tmp_path)
    expected = hashes.sha256(path)
    hashes.save()
    original = (tmp_path / MEMO).read_bytes()
    assert FileHashes(tmp_path).sha256(path) == expected
    for at in range(0, len(original), 7):
        flip(tmp_path / MEMO, at)
        assert FileHashes(tmp_path).sha256(path) == expected
        (tmp_path / MEMO).write_bytes(original)


def saved_by_datasets(folder: Path) -> Path:
    """Write a data set of two labelled images as `datasets` saves it, and return its Arrow file."""
    (folder / "train").mkdir(parents=True)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    (folder / "train" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    table = pa.table({"text": ["one", "two"], "label": [0, 1], "words": [["a"], ["b", "c"]]})
    with pa.ipc.new_stream(str(folder / "train" / "data.arrow"), table.schema) as writer:
        writer.write_table(table)
    return folder / "train" / "data.arrow"


def test_a_damaged_arrow_file_of_others_never_ends_the_process(tmp_path: Path) -> None:
    path = saved_by_datasets(tmp_path / "set")
    reader, whole = HfDisk(str(tmp_path / "set"), {"question": "text", "words": "words"}), path.read_bytes()
    for number in range(0, len(whole), 11):
        for content in (whole[:number], whole[:number] + bytes([whole[number] ^ 0xFF]) + whole[number + 1 :]):
            path.write_bytes(content)
            found = read_or_line(lambda: reader.load(tmp_path / "cache"))
            assert not isinstance(found, str) or "\n" not in found


def test_a_damaged_lmdb_is_one_line_and_never_ends_the_process(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    from simfl.data.io import records

    folder = tmp_path / "words"
    with lmdb.open(str(folder), map_size=2**20) as environment, environment.begin(write=True) as transaction:
        for number in range(200):
            transaction.put(b"image-%09d" % number, bytes([number % 256]) * 3000)
    data = folder / "data.mdb"
    whole = data.read_bytes()

    def spoil(content: bytes) -> None:
        data.write_bytes(content)
        with pytest.raises(DataError, match=r"^[^\n]*words: not a readable LMDB [^\n]*$"), records.open_lmdb(folder):
            pass

    spoil(whole[: len(whole) // 2])
    spoil(whole[:100])
    spoil(whole[:8192] + b"\xff" * (len(whole) - 8192))
