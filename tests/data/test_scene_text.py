"""Words in LMDB: keys from 1, broken entries are counted, and the real data sets."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from simfl.data.partition.partitioners import Natural
from simfl.data.readers.scene_text import SceneText
from simfl.errors import DataError

lmdb = pytest.importorskip("lmdb")


def png(width: int = 12, height: int = 8) -> bytes:
    out = io.BytesIO()
    Image.new("L", (width, height), 200).save(out, "PNG")
    return out.getvalue()


def write(
    folder: Path, words: Sequence[tuple[bytes | None, bytes | None]], lexicon: bytes | None = None, **head: bytes
) -> None:
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=2**24) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"num-samples", head.get("count", b"%d" % len(words)))
        for i, (image, label) in enumerate(words, start=1):
            for kind, value in ((b"image", image), (b"label", label), (b"lexicon", lexicon)):
                if value is not None:
                    transaction.put(b"%s-%09d" % (kind, i), value)


FIVE = [
    (png(20), b"Hello"),
    (b"no picture", b"lost"),
    (png(30), "Caf\u00e9!".encode()),
    (png(), b"\xff\xfe"),
    (png(), b" "),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "data" / "A_train", FIVE)
    write(tmp_path / "data" / "B_train", [(png(), b"two"), (None, b"gone"), (png(), None), (png()[:-30], b"cut")])
    write(tmp_path / "data" / "C_test", [(png(), b"UPPER")])
    return tmp_path / "data"


def load(root: Path, **settings):
    return SceneText(str(root), **settings).load(root.parent / "cache")


def test_scene_text_keys_start_at_1_and_words_keep_their_case(root):
    rows = load(root).splits["train"].examples.to_pylist()
    assert [(r["id"], r["text"], r["source"], r["width"]) for r in rows] == [
        ("A_train-1", "Hello", "A_train", 20),
        ("A_train-3", "Café!", "A_train", 30),
        ("B_train-1", "two", "B_train", 12),
    ]


def test_scene_text_counts_broken_entries(root):
    card = load(root).card
    assert card["dropped"]["train"] == {
        "image unreadable": 2, "label not UTF-8": 1, "label empty": 1, "no image": 1, "no label": 1,
    }  # fmt: skip
    assert card["words"] == {"train": 3, "test": 1}
    assert card["sources"]["train"] == {"A_train": 2, "B_train": 1}


def test_scene_text_leaves_out_words_outside_the_alphabet(root):
    assert load(root, alphabet="alphanumeric").splits["train"].examples["text"].to_pylist() == ["Hello", "two"]
    assert load(root, alphabet="printable").card["dropped"]["train"]["label not printable"] == 1


def test_scene_text_stores_images_unchanged(root):
    assert load(root).splits["test"].examples["image"][0].as_py() == png()


def test_scene_text_reads_lexicons(root):
    write(root / "D_test", [(png(), b"x")], lexicon=b"one two")
    rows = load(root).splits["test"].examples.to_pylist()
    assert [r["lexicon"] for r in rows] == [[], ["one", "two"]]


def test_scene_text_folders_are_assigned_to_splits_and_clients(root):
    data = load(root, train=("C_test", "A_train"), test=("B_train",))
    assert data.splits["train"].examples["source"].to_pylist() == ["C_test", "A_train", "A_train"]
    partition = Natural(column="source").split(data.splits["train"], seed=0)
    assert partition.sizes.tolist() == [2, 1]


def test_scene_text_limit_reads_the_first_words(root):
    assert load(root, limit=1).card["words"] == {"train": 2, "test": 1}


def test_scene_text_refuses_other_folders(root):
    with pytest.raises(DataError, match=r"nowhere is not an LMDB folder"):
        load(root, train=("nowhere",))
    write(root / "E_train", [], count=b"x")
    with pytest.raises(DataError, match=r"E_train: num-samples is b'x', expected a number"):
        load(root)
    (root / "E_train").rename(root / "E")
    with pytest.raises(DataError, match="contains neither train, val nor test"):
        load(root)
    (root / "E" / "data.mdb").write_bytes(b"x" * 9000)
    with pytest.raises(DataError, match=r"E: not a readable LMDB"):
        load(root, train=("E",))
    (root / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no folder with a data\.mdb"):
        load(root / "empty")


def test_real_scene_text_has_its_published_sizes(real_data, tmp_path):
    root = real_data / "scene_text"
    if not root.is_dir():
        pytest.skip("shared/data/scene_text is not available")
    data = SceneText(str(root), train=("IIIT5K_train", "SVT_train"), test=("SVT_test", "IC03_test")).load(tmp_path)
    assert data.card["sources"]["test"] == {"IC03_test": SceneText.TEST["IC03"], "SVT_test": SceneText.TEST["SVT"]}
    assert data.card["sources"]["train"] == {"IIIT5K_train": SceneText.TRAIN["IIIT5K"], "SVT_train": 257}
    assert not any(data.card["dropped"].values())
    texts = data.splits["train"].examples["text"].to_pylist()
    assert any(t.islower() for t in texts)
    assert any(t.isupper() for t in texts)
