"""What two splits share."""

import pyarrow as pa
import pytest

from simfl.data.base import Dataset, Split
from simfl.data.leaks import refuse, shared
from simfl.errors import ConfigError, DataError


def pages(ids: str, words: list[list[str]], providers: list[str]) -> Split:
    documents = pa.table({"id": list(ids), "provider": providers, "words": words, "image": [b"x"] * len(ids)})
    return Split(pa.table({"document": pa.array(range(len(ids)), pa.int32())}), documents)


TRAIN = pages("ab", [["one"], ["two"]], ["acme", ""])
TEST = pages("cd", [["two"], ["three"]], ["acme", ""])


def test_values_and_equal_pages_are_found_and_unknown_providers_are_not():
    assert shared(TRAIN, TEST, "provider") == ["acme"]
    assert shared(TRAIN, TEST, "document") == []
    assert shared(TRAIN, pages("bx", [["a"], ["b"]], ["", ""]), "document") == ["b"]
    assert shared(TRAIN, TEST, "content") == ["c"]


def test_equal_pictures_are_found_where_there_are_no_pages():
    first, second = (Split(pa.table({"image": images, "label": [0, 1]})) for images in ([b"a", b"b"], [b"c", b"b"]))
    assert shared(first, second, "content") == ["1"]


def test_a_spec_may_refuse_what_is_shared():
    dataset = Dataset("x", {"train": TRAIN, "test": TEST}, "")
    refuse(dataset, {"test": ["document"]})
    with pytest.raises(DataError, match=r"disjoint\.test: train and test share 1 of provider, such as 'acme'"):
        refuse(dataset, {"test": ["document", "provider"]})
    with pytest.raises(ConfigError, match=r"disjoint\.tset: the data has no such split; did you mean 'test'"):
        refuse(dataset, {"tset": ["document"]})
