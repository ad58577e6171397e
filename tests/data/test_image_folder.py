"""Pictures in folders that tell their class."""

import pytest
from made import picture

from simfl.data.readers.image_folder import ImageFolder
from simfl.errors import ConfigError, DataError


def load(root, **settings):
    return ImageFolder(str(root), image_size=8, **settings).load(root.parent / "cache")


def test_folders_are_classes_and_shares_of_each_are_for_valid_and_test(tmp_path):
    for kind in ("cat", "dog"):
        for number in range(10):
            picture(tmp_path / "data" / kind / f"{number}.png")
    (tmp_path / "data" / "cat" / "readme.txt").write_text("x")
    data = load(tmp_path / "data")
    assert data.card["examples"] == {"train": 14, "valid": 2, "test": 4}
    assert data.card["classes"] == ["cat", "dog"]
    ids = {split: set(s.examples["id"].to_pylist()) for split, s in data.splits.items()}
    assert not ids["train"] & (ids["valid"] | ids["test"])


def test_folders_may_tell_split_and_domain(tmp_path):
    for split in ("train", "val", "test"):
        for domain in ("a", "b"):
            picture(tmp_path / "data" / split / domain / "cat" / "0.png")
    data = load(tmp_path / "data", layout="split/domain/class")
    assert data.card["domains"] == {s: {"a": 1, "b": 1} for s in ("train", "valid", "test")}


def test_what_is_no_picture_folder_is_refused(tmp_path):
    picture(tmp_path / "data" / "tarin" / "cat" / "0.png")
    with pytest.raises(DataError, match="tarin is no split, allowed: train, val"):
        load(tmp_path / "data", layout="split/class")
    with pytest.raises(DataError, match="has no pictures in folders class"):
        load(tmp_path / "data" / "tarin" / "cat")
    with pytest.raises(ConfigError, match="below 1 together"):
        load(tmp_path / "data", valid=0.5, test=0.5)
    (tmp_path / "data" / "tarin" / "cat" / "0.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"0\.png: not a readable picture"):
        load(tmp_path / "data", layout="domain/class")
