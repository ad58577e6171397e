"""Content hashes depend on values only, and cached data sets are read back as written."""

import pyarrow as pa
import pytest

from simfl.data.base import Dataset, Split
from simfl.data.io.arrow_store import content_sha256, read_dataset, write_dataset
from simfl.data.partition.base import column

VALUES = {
    "id": ["a", "bc", "", "d"],
    "answers": [["x"], [], ["yz", ""], ["w"]],
    "boxes": [[0.5], [], [1.0, 2.0], [3.0]],
    "label": [1, None, 3, 4],
}


def table(values: dict = VALUES) -> pa.Table:
    return pa.table(values)


def sha(examples: pa.Table) -> str:
    return content_sha256({"train": Split(examples)})


def test_content_hash_ignores_chunks_slices_and_column_order():
    whole = table()
    pieces = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 0), whole.slice(1)])
    padded = pa.concat_tables([whole, whole]).combine_chunks().slice(4)
    assert sha(whole) == sha(pieces) == sha(padded) == sha(whole.select(["label", "boxes", "answers", "id"]))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("id", ["ab", "c", "", "d"]),  # the same letters, cut otherwise
        ("answers", [["x"], ["yz"], [""], ["w"]]),  # the same texts, in other lists
        ("boxes", [[0.5], [1.0], [2.0], [3.0]]),
        ("label", [None, 1, 3, 4]),  # the same numbers, another one missing
        ("label", [1, 0, 3, 4]),
    ],
)
def test_content_hash_changes_with_any_value_or_its_position(name, values):
    assert sha(table(VALUES | {name: values})) != sha(table())


def test_content_hash_excludes_images_and_includes_also():
    with_image = table().append_column("image", pa.array([b"1", b"2", b"3", b"4"]))
    assert sha(with_image) == sha(table())
    assert content_sha256({"train": Split(table())}, also="pixels") != sha(table())


def test_dataset_round_trips_through_the_cache(tmp_path):
    rows = table().replace_schema_metadata({"simfl.clients": "[]"})
    write_dataset(
        tmp_path / "made", Dataset("made", {"train": Split(rows, table()), "test": Split(table())}, "ab", {"n": [1, 2]})
    )
    data = read_dataset(tmp_path / "made")
    assert (data.name, data.sha256, data.card) == ("made", "ab", {"n": [1, 2]})
    metadata = {"simfl.clients": "[]", "simfl.data_sha256": "ab"}
    assert data.splits["train"].examples.equals(rows.replace_schema_metadata(metadata), check_metadata=True)
    assert data.splits["train"].documents is not None
    assert data.splits["test"].documents is None


def test_column_reads_chunks_dictionaries_and_numbers():
    for values in (
        pa.chunked_array([["b", "a"], ["c", "a"]]),
        pa.chunked_array([pa.array(["b", "a", "c", "a"]).dictionary_encode()]),
        pa.chunked_array([[20, 10], [30, 10]]),
    ):
        codes, names = column(Split(pa.table({"g": values})), "g")
        assert codes.tolist() == [1, 0, 2, 0]
        assert names.to_pylist() in (["a", "b", "c"], ["10", "20", "30"])
