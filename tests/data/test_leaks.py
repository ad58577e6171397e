"""Values and pages that two splits share."""

import pyarrow as pa
import pytest

from simfl.data.base import Dataset, Split
from simfl.data.leaks import check_disjoint, shared_values
from simfl.errors import ConfigError, DataError


def pages(ids: str, words: list[list[str]], providers: list[str]) -> Split:
    documents = pa.table({"id": list(ids), "provider": providers, "words": words, "image": [b"x"] * len(ids)})
    return Split(pa.table({"document": pa.array(range(len(ids)), pa.int32())}), documents)


TRAIN = pages("ab", [["one"], ["two"]], ["acme", ""])
TEST = pages("cd", [["two"], ["three"]], ["acme", ""])


def test_shared_values_and_equal_pages_are_found_without_unknown_providers():
    assert shared_values(TRAIN, TEST, "provider") == ["acme"]
    assert shared_values(TRAIN, TEST, "document") == []
    assert shared_values(TRAIN, pages("bx", [["a"], ["b"]], ["", ""]), "document") == ["b"]
    assert shared_values(TRAIN, TEST, "content") == ["c"]


def test_equal_images_are_found_without_pages():
    first, second = (Split(pa.table({"image": images, "label": [0, 1]})) for images in ([b"a", b"b"], [b"c", b"b"]))
    assert shared_values(first, second, "content") == ["1"]


def test_check_disjoint_raises_on_shared_values():
    dataset = Dataset("x", {"train": TRAIN, "test": TEST}, "")
    check_disjoint(dataset, {"test": ["document"]})
    with pytest.raises(DataError, match=r"disjoint\.test: train and test share 1 of provider, such as 'acme'"):
        check_disjoint(dataset, {"test": ["document", "provider"]})
    with pytest.raises(ConfigError, match=r"disjoint\.tset: the data has no such split; did you mean 'test'"):
        check_disjoint(dataset, {"tset": ["document"]})
