"""Lists of images by domain: spaces in names, labels from 0 or 1, unseen domains, and the real PACS."""

import io
from pathlib import Path

import pytest
from PIL import Image
from sample_files import write_image, write_lines

from simfl.data.partition.partitioners import Natural
from simfl.data.readers.image_lists import ImageLists, _read_list
from simfl.errors import ConfigError, DataError

KINDS = ("cat", "dog", "bird")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write two domains of three classes numbered from 1, with two training images and one test image each."""
    root = tmp_path / "data"
    for domain in ("photo", "sketch"):
        listed: dict[str, list[str]] = {"train": [], "test": []}
        for label, kind in enumerate(KINDS, start=1):
            for number, split in enumerate(("train", "train", "test")):
                name = f"{domain}/{kind}/n {number}.png" if number else f"{domain}/{kind}/{number}.png"
                write_image(root / name, colour=(60 * label, 80 * number, 0))
                listed[split].append(f"{name} {label}")
        for split, entries in listed.items():
            write_lines(root / f"{domain}_{split}.txt", entries)
    return root


def load(root: Path, **settings):
    return ImageLists(str(root), **{"image_size": 8, "valid": 0.2} | settings).load(root.parent / "cache")


def test_image_lists_count_labels_from_0(root):
    data = load(root)
    assert data.card["classes"] == list(KINDS)
    assert data.card["num_classes"] == 3
    assert data.card["shape"] == [3, 8, 8]
    rows = data.splits["test"].examples.to_pylist()
    assert [(r["id"], r["label"], r["class"], r["domain"]) for r in rows][:2] == [
        ("photo/cat/n 2.png", 0, "cat", "photo"), ("photo/dog/n 2.png", 1, "dog", "photo"),
    ]  # fmt: skip
    assert Image.open(io.BytesIO(rows[0]["image"])).size == (8, 8)


def test_image_lists_draw_validation_images_unless_listed(root):
    data = load(root)
    assert data.card["domains"]["train"] == {"photo": 4, "sketch": 4}
    assert data.card["domains"]["valid"] == {"photo": 2, "sketch": 2}
    write_lines(root / "photo_val.txt", ["photo/cat/0.png 1"])
    assert load(root).splits["valid"].examples["id"].to_pylist() == ["photo/cat/0.png"]


def test_image_lists_domains_are_clients_or_unseen(root):
    data = load(root, unseen=("sketch",))
    assert data.card["domains"]["unseen"] == {"sketch": 3}
    assert Natural(column="domain").split(data.splits["train"], 0).sizes.tolist() == [4]
    assert Natural(column="domain").split(load(root).splits["train"], 0).sizes.tolist() == [4, 4]


def test_image_lists_limit_classes_and_images_per_class(root):
    data = load(root, classes=("dog", "cat"), per_class=1)
    assert data.card["classes"] == ["dog", "cat"]
    assert data.card["examples"]["train"] <= 4
    assert set(data.splits["train"].examples["label"].to_pylist()) == {0, 1}


def test_image_lists_refuse_or_drop_missing_images(root):
    (root / "photo" / "cat" / "n 2.png").unlink()
    with pytest.raises(DataError, match=r"photo_test\.txt row 1: the image .*n 2\.png is missing"):
        load(root)
    assert load(root, missing="drop").card["dropped"]["test"] == {"image missing": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("photo/cat/0.png", r"photo_test\.txt row 1: 'photo/cat/0\.png', expected `DOMAIN/CLASS/FILE LABEL`"),
        ("cat/0.png 1", "DOMAIN/CLASS/FILE LABEL"),
        ("photo/dog/0.png 1", "label 1 is 'dog', elsewhere 'cat'"),
        ("photo/cat/0.png 7", "the class 'cat' has several labels"),
    ],
)
def test_image_lists_refuse_inconsistent_lines(root, line, message):
    write_lines(root / "photo_test.txt", [line])
    with pytest.raises(DataError, match=message):
        load(root)


def test_image_lists_suggest_the_nearest_domain_and_class(root):
    with pytest.raises(ConfigError, match="no lists of 'foto'; did you mean 'photo'"):
        load(root, domains=("foto",))
    with pytest.raises(ConfigError, match="no class 'cow'"):
        load(root, classes=("cow",))
    with pytest.raises(DataError, match=r"has no list DOMAIN_train\.txt"):
        load(root / "photo")


def test_image_lists_hash_covers_the_image_files(root):
    before = load(root).sha256
    write_image(root / "photo" / "cat" / "0.png", colour=(1, 2, 3))
    (root.parent / "cache").rename(root.parent / "old")
    assert load(root).sha256 != before


def test_real_pacs_has_its_published_size(real_data, tmp_path):
    root = real_data / "pacs"
    if not root.is_dir():
        pytest.skip("shared/data/pacs is not available")
    lists = ImageLists(str(root))._find_lists(root)
    listed = ImageLists(str(root))._relabel(
        {
            split: [image for path in paths for image in _read_list(path, root / "images")]
            for split, paths in lists.items()
        }
    )
    counts = {d: sum(image.domain == d for images in listed.values() for image in images) for d in ImageLists.PACS}
    assert counts == ImageLists.PACS
    assert {image.label for image in listed["train"]} == set(range(7))
    assert all(image.path.is_file() for image in listed["test"])
    few = ImageLists(str(root), domains=("photo", "sketch"), per_class=2, classes=("dog", "house"), image_size=32)
    data = few.load(tmp_path)
    assert data.card["domains"]["train"] == {"photo": 4, "sketch": 4}
