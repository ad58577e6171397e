"""Lists of pictures by domain: spaces in names, labels from 0 or 1, domains apart; and the real PACS."""

import io
from pathlib import Path

import pytest
from made import lines, picture
from PIL import Image

from simfl.data.partition.partitioners import Natural
from simfl.data.readers.image_lists import ImageLists, _read
from simfl.errors import ConfigError, DataError

KINDS = ("cat", "dog", "bird")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two domains, three classes numbered from 1, two pictures each to train and one to test; one name has a space."""
    root = tmp_path / "data"
    for domain in ("photo", "sketch"):
        told = {"train": [], "test": []}
        for label, kind in enumerate(KINDS, start=1):
            for number, split in enumerate(("train", "train", "test")):
                name = f"{domain}/{kind}/n {number}.png" if number else f"{domain}/{kind}/{number}.png"
                picture(root / name, colour=(60 * label, 80 * number, 0))
                told[split].append(f"{name} {label}")
        for split, entries in told.items():
            lines(root / f"{domain}_{split}.txt", entries)
    return root


def load(root: Path, **settings):
    return ImageLists(str(root), **{"image_size": 8, "valid": 0.2} | settings).load(root.parent / "cache")


def test_labels_are_numbered_from_0_in_the_order_of_the_lists(root):
    data = load(root)
    assert data.card["classes"] == list(KINDS)
    assert data.card["num_classes"] == 3
    assert data.card["shape"] == [3, 8, 8]
    rows = data.splits["test"].examples.to_pylist()
    assert [(r["id"], r["label"], r["class"], r["domain"]) for r in rows][:2] == [
        ("photo/cat/n 2.png", 0, "cat", "photo"), ("photo/dog/n 2.png", 1, "dog", "photo"),
    ]  # fmt: skip
    assert Image.open(io.BytesIO(rows[0]["image"])).size == (8, 8)


def test_a_share_of_each_domain_is_for_validation_where_there_are_no_lists_for_it(root):
    data = load(root)
    assert data.card["domains"]["train"] == {"photo": 4, "sketch": 4}
    assert data.card["domains"]["valid"] == {"photo": 2, "sketch": 2}
    lines(root / "photo_val.txt", ["photo/cat/0.png 1"])
    assert load(root).splits["valid"].examples["id"].to_pylist() == ["photo/cat/0.png"]


def test_a_domain_may_be_a_client_and_another_unseen(root):
    data = load(root, unseen=("sketch",))
    assert data.card["domains"]["unseen"] == {"sketch": 3}
    assert Natural(column="domain").split(data.splits["train"], 0).sizes.tolist() == [4]
    assert Natural(column="domain").split(load(root).splits["train"], 0).sizes.tolist() == [4, 4]


def test_classes_may_be_chosen_and_pictures_of_each_be_few(root):
    data = load(root, classes=("dog", "cat"), per_class=1)
    assert data.card["classes"] == ["dog", "cat"]
    assert data.card["examples"]["train"] <= 4
    assert set(data.splits["train"].examples["label"].to_pylist()) == {0, 1}


def test_missing_pictures_are_refused_or_dropped(root):
    (root / "photo" / "cat" / "n 2.png").unlink()
    with pytest.raises(DataError, match=r"photo_test\.txt row 1: the picture .*n 2\.png is not there"):
        load(root)
    assert load(root, missing="drop").card["dropped"]["test"] == {"picture missing": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("photo/cat/0.png", r"photo_test\.txt row 1: 'photo/cat/0\.png', `DOMAIN/CLASS/FILE LABEL` is needed"),
        ("cat/0.png 1", "DOMAIN/CLASS/FILE LABEL"),
        ("photo/dog/0.png 1", "label 1 is 'dog', elsewhere 'cat'"),
        ("photo/cat/0.png 7", "the class 'cat' has several labels"),
    ],
)
def test_lines_that_do_not_fit_are_refused(root, line, message):
    lines(root / "photo_test.txt", [line])
    with pytest.raises(DataError, match=message):
        load(root)


def test_unknown_domains_and_classes_name_the_nearest(root):
    with pytest.raises(ConfigError, match="no lists of 'foto'; did you mean 'photo'"):
        load(root, domains=("foto",))
    with pytest.raises(ConfigError, match="no class 'cow'"):
        load(root, classes=("cow",))
    with pytest.raises(DataError, match=r"has no list DOMAIN_train\.txt"):
        load(root / "photo")


def test_the_hash_is_of_the_pictures_themselves(root):
    before = load(root).sha256
    picture(root / "photo" / "cat" / "0.png", colour=(1, 2, 3))
    (root.parent / "cache").rename(root.parent / "old")
    assert load(root).sha256 != before


def test_the_real_pacs_has_its_published_size(real_data, tmp_path):
    root = real_data / "pacs"
    if not root.is_dir():
        pytest.skip("shared/data/pacs is not available")
    lists = ImageLists(str(root))._lists(root)
    told = ImageLists(str(root))._numbered(
        {split: [one for path in paths for one in _read(path, root / "images")] for split, paths in lists.items()}
    )
    counts = {d: sum(one.domain == d for pictures in told.values() for one in pictures) for d in ImageLists.PACS}
    assert counts == ImageLists.PACS
    assert {one.label for one in told["train"]} == set(range(7))
    assert all(one.path.is_file() for one in told["test"])
    few = ImageLists(str(root), domains=("photo", "sketch"), per_class=2, classes=("dog", "house"), image_size=32)
    data = few.load(tmp_path)
    assert data.card["domains"]["train"] == {"photo": 4, "sketch": 4}
