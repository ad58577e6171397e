"""Images in folders named by class, split and domain."""

import os
from functools import partial
from pathlib import Path

import pytest
from sample_files import write_image

from simfl.data.readers.image_folder import ImageFolder
from simfl.errors import ConfigError, DataError


def load(root, **settings):
    return ImageFolder(str(root), image_size=8, **settings).load(root.parent / "cache")


def test_image_folder_divides_each_class_into_splits(tmp_path):
    for kind in ("cat", "dog"):
        for number in range(10):
            write_image(tmp_path / "data" / kind / f"{number}.png")
    (tmp_path / "data" / "cat" / "readme.txt").write_text("x")
    data = load(tmp_path / "data")
    assert data.card["examples"] == {"train": 14, "valid": 2, "test": 4}
    assert data.card["classes"] == ["cat", "dog"]
    ids = {split: set(s.examples["id"].to_pylist()) for split, s in data.splits.items()}
    assert not ids["train"] & (ids["valid"] | ids["test"])


def test_image_folder_reads_split_and_domain_from_folders(tmp_path):
    for split in ("train", "val", "test"):
        for domain in ("a", "b"):
            write_image(tmp_path / "data" / split / domain / "cat" / "0.png")
    data = load(tmp_path / "data", layout="split/domain/class")
    assert data.card["domains"] == {s: {"a": 1, "b": 1} for s in ("train", "valid", "test")}


def test_image_folder_refuses_unknown_layouts_and_broken_images(tmp_path):
    write_image(tmp_path / "data" / "tarin" / "cat" / "0.png")
    with pytest.raises(DataError, match="tarin is not a split, allowed: train, val"):
        load(tmp_path / "data", layout="split/class")
    with pytest.raises(DataError, match="has no images in folders class"):
        load(tmp_path / "data" / "tarin" / "cat")
    with pytest.raises(ConfigError, match="their sum must be below 1"):
        load(tmp_path / "data", valid=0.5, test=0.5)
    (tmp_path / "data" / "tarin" / "cat" / "0.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"0\.png: not a readable image"):
        load(tmp_path / "data", layout="domain/class")


def test_image_folder_refuses_links_special_files_and_names_that_are_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cat"
    write_image(folder / "0.png")
    for name, make, said in (
        (b"9.png", partial(os.symlink, "/nowhere/x.png"), r"9\.png: a broken link to /nowhere/x\.png"),
        (b"9.png", os.mkfifo, r"9\.png: not a regular file"),
        (b"\xff\xfe.png", os.mkfifo, r"the file name b'cat/\\xff\\xfe\.png' is not UTF-8; rename it"),
    ):
        path = os.path.join(os.fsencode(folder), name)
        make(path)
        with pytest.raises(DataError, match=said):
            load(tmp_path / "data")
        os.unlink(path)
    (folder / "9.png").mkdir()
    assert load(tmp_path / "data").card["examples"] == {"train": 1}
