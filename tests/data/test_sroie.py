"""SROIE receipts in the official layout, generated and real."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from simfl.data.partition.partitioners import Provider
from simfl.data.readers.sroie import Sroie, group_duplicates
from simfl.data.readers.sroie_format import Receipt, split_line
from simfl.errors import ConfigError, DataError

REAL = Path(os.environ.get("SIMFL_REAL_DATA", "../shared/data")) / "sroie"


def write(root: Path, name: str, key: dict, lines: list[str] | None = None, size=(100, 200)) -> None:
    for part in ("img", "box", "key"):
        (root / part).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (250, 250, 250)).save(root / "img" / f"{name}.jpg")
    text = "\n".join(lines or [f"10,20,90,20,90,40,10,40,receipt {name}"])
    (root / "box" / f"{name}.csv").write_text(text, encoding="utf-8")
    (root / "key" / f"{name}.json").write_text(json.dumps(key), encoding="utf-8")


def key(company: str, number: int, **other: str) -> dict:
    return {"company": company, "date": f"{number:02d}/01/2018", "address": "1, MAIN ROAD", "total": "9.00"} | other


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write ten receipts of one shop in two spellings, and two of another."""
    for i in range(10):
        write(tmp_path / "data", f"{i:03d}", key("BIG SHOP" if i % 2 else "Big. Shop", i))
    for i in (10, 11):
        write(tmp_path / "data", f"{i:03d}", key("RARE SHOP", i))
    return tmp_path / "data"


def load(root: Path, **settings):
    return Sroie(str(root), image_size=16, **settings).load(root.parent / "cache")


def names(split) -> list[str]:
    return split.documents["id"].to_pylist()


def test_sroie_divides_frequent_companies_and_rare_ones_are_unseen(root):
    data = load(root)
    assert data.card["receipts"] == {"train": 7, "valid": 1, "test": 2, "unseen": 2}
    assert names(data.splits["unseen"]) == ["010", "011"]
    seen = [n for part in ("train", "valid", "test") for n in names(data.splits[part])]
    assert sorted(seen) == [f"{i:03d}" for i in range(10)]
    assert set(data.splits["train"].documents["provider"].to_pylist()) == {"BIGSHOP"}


def test_sroie_asks_for_each_available_field_once(root):
    split = load(root).splits["unseen"]
    rows = split.examples.to_pylist()
    assert [r["field"] for r in rows] == ["company", "date", "address", "total"] * 2
    assert rows[1]["answers"] == ["10/01/2018"]
    assert [r["document"] for r in rows] == [0] * 4 + [1] * 4
    assert len({r["id"] for r in rows}) == 8


def test_sroie_wordings_apply_to_training_and_differ(root):
    data = load(root, wordings=4)
    assert data.card["questions"] == {"train": 7 * 16, "valid": 4, "test": 8, "unseen": 8}
    first = data.splits["train"].examples.to_pylist()[:16]
    assert len({r["question"] for r in first}) == 16


def test_sroie_drops_and_counts_missing_fields(tmp_path):
    root = tmp_path / "data"
    write(root, "a", key("SHOP", 1, total=""))
    no_address = key("SHOP", 2)
    del no_address["address"]
    write(root, "b", no_address)
    data = load(root)
    assert [r["id"].rsplit("-", 1)[0] for r in data.splits["unseen"].examples.to_pylist()] == [
        "a-company", "a-date", "a-address", "b-company", "b-date", "b-total",
    ]  # fmt: skip
    assert data.card["dropped"] == {
        "company not given": 0, "date not given": 0, "address not given": 1, "total not given": 1,
    }  # fmt: skip


def test_sroie_interpolates_word_boxes_in_their_line():
    assert list(split_line(" ab cdef ")) == [("ab", 0.0, 2 / 7), ("cdef", 3 / 7, 1.0)]


def test_sroie_words_keep_commas_and_boxes_are_relative(tmp_path):
    root = tmp_path / "data"
    # a line from x 10 to 90 of 100, y 20 to 40 of 200: "A,B C" has 5 characters, 16 pixels each
    write(root, "a", key("SHOP", 1), ["10,20,90,20,90,40,10,40,A,B C", "", "0,50,300,50,300,60,0,60,X"])
    page = load(root).splits["unseen"].documents
    assert page["words"][0].as_py() == ["A,B", "C", "X"]
    np.testing.assert_allclose(
        np.array(page["boxes"][0].as_py()).reshape(3, 4),
        [[0.10, 0.10, 0.58, 0.20], [0.74, 0.10, 0.90, 0.20], [0.0, 0.25, 1.0, 0.30]],
        atol=1e-6,
    )


def test_sroie_images_are_grey_and_resized(root):
    from io import BytesIO

    page = load(root).splits["test"].documents.to_pylist()[0]
    image = Image.open(BytesIO(page["image"]))
    assert (image.mode, image.size, page["width"], page["height"]) == ("L", (16, 16), 16, 16)


def receipt(name: str, text: str, **fields: str) -> Receipt:
    return Receipt(name, Path(), tuple(text.split()), (), fields)


def test_sroie_duplicates_match_by_transcript_or_by_company_date_and_total():
    every = [
        receipt("a", "total 5.00", company="X"),
        receipt("b", "Total 500", company="X"),  # a's transcript but for case and points
        receipt("c", "other words", company="Y.", date="1/1", total="5"),
        receipt("d", "different scan", company="y", date="11", total="5"),  # c's company, date and total
        receipt("e", "different SCAN"),  # d's transcript: joins c and d
        receipt("f", "", company="Y", date="", total="5"),  # no date: alone
        receipt("g", "", company="Y", total="5"),
    ]
    assert [[r.name for r in group] for group in group_duplicates(every)] == [["a", "b"], ["c", "d", "e"], ["f"], ["g"]]


def test_sroie_duplicates_stay_in_one_split(tmp_path):
    root = tmp_path / "data"
    for i in range(12):
        for scan in "ab":
            write(root, f"{i:02d}{scan}", key("SHOP", i), [f"0,0,9,0,9,9,0,9,scan {scan} of {i}"])
    data = load(root, valid=0.25, test=0.25)
    for split in data.splits.values():
        assert sorted(names(split)) == sorted(n[:2] + scan for n in names(split) if n[2] == "a" for scan in "ab")
    assert data.card["receipts"] == {"train": 12, "valid": 6, "test": 6, "unseen": 0}
    assert len(data.card["same_receipt"]) == 12


def test_sroie_receipts_without_a_company_are_unseen(tmp_path):
    root = tmp_path / "data"
    for i in range(9):
        write(root, f"{i}", key("", i))
    assert load(root).card["receipts"]["unseen"] == 9


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        (
            "box/001.csv",
            b"1,2,3,4,5,6,7,8,fine\n1,2,3,4,broken",
            r"box/001\.csv row 2: expected eight numbers and a text",
        ),
        ("box/001.csv", b"1,2,3,4,5,6,7,x,text", r"box/001\.csv row 1: expected eight numbers"),
        ("box/001.csv", b"1,2,3,4,5,6,7,8,a\n1,2,3,4,5,6,7,8,\xff", r"box/001\.csv row 2: not UTF-8"),
        ("key/001.json", b"{", r"key/001\.json: not JSON"),
        ("key/001.json", b"[1]", r"key/001\.json: list given"),
        ("key/001.json", b'{"total": 9}', r"key/001\.json: total is 9, expected text"),
        ("img/001.jpg", b"no picture", r"img/001\.jpg: not a readable image"),
        ("img/001.jpg", None, r"img/001\.jpg is missing, box/001\.csv exists"),
    ],
)
def test_sroie_errors_name_file_and_row(root, part, content, message):
    (root / part).unlink()
    if content is not None:
        (root / part).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(root)


def test_sroie_refuses_a_truncated_scan(root):
    path = root / "img" / "001.jpg"
    noise = np.random.Generator(np.random.Philox(1)).integers(0, 255, (200, 200), np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"img/001\.jpg: not a readable image"):
        load(root)


def test_sroie_refuses_another_layout(tmp_path):
    with pytest.raises(DataError, match=r"has no folder img/; SROIE has img/, box/ and key/"):
        load(tmp_path / "nothing")


def test_sroie_refuses_invalid_settings(root):
    with pytest.raises(ConfigError, match="5 given, allowed: 1 to 4"):
        load(root, wordings=5)
    with pytest.raises(ConfigError, match="their sum below 1"):
        load(root, valid=0.5, test=0.5)


def test_sroie_rebuilds_only_if_a_source_changed(root, monkeypatch):
    first = load(root)
    built = []
    original = Sroie._build
    monkeypatch.setattr(Sroie, "_build", lambda self, found: built.append(1) or original(self, found))
    again = load(root)
    assert not built
    assert again.sha256 == first.sha256
    assert again.card == first.card
    assert all(again.splits[n].examples.equals(first.splits[n].examples) for n in first.splits)
    write(root, "003", key("BIG SHOP", 3, total="123.45"))
    changed = load(root)
    assert built
    assert changed.sha256 != first.sha256


def test_sroie_hash_covers_content_and_not_the_folder(root, tmp_path):
    before = load(root).sha256
    moved = root.rename(tmp_path / "elsewhere")
    assert load(moved).sha256 == before
    assert Sroie(str(moved), image_size=17).load(tmp_path).sha256 != before


def test_sroie_names_a_damaged_cache(root):
    load(root)
    (folder,) = (root.parent / "cache").iterdir()
    (folder / "train.examples.arrow").write_bytes(b"x")
    with pytest.raises(DataError, match="this cached data set is damaged, delete the folder"):
        load(root)


@pytest.mark.skipif(not REAL.is_dir(), reason="shared/data/sroie is not available")
def test_real_sroie_has_17_providers_and_keeps_duplicates_together(tmp_path):
    data = Sroie(str(REAL), image_size=32).load(tmp_path)
    assert sum(data.card["receipts"].values()) == 626
    assert sum(data.card["questions"].values()) == 4 * 626 - 2
    assert data.card["receipts"] == {"train": 239, "valid": 34, "test": 64, "unseen": 289}
    assert data.card["providers"] == {"train": 17, "valid": 17, "test": 17, "unseen": 210}
    assert data.card["dropped"]["total not given"] == data.card["dropped"]["address not given"] == 1
    known = [
        ["012", "015"],
        ["016", "018"],
        ["074", "624"],
        ["076", "625"],
        ["235", "237"],
        ["277", "452"],
        ["444", "445"],
    ]
    assert all(pair in data.card["same_receipt"] for pair in known)
    where = {name: part for part, split in data.splits.items() for name in names(split)}
    assert all(where[a] == where[b] for a, b in data.card["same_receipt"])
    assert sum(len(words) for split in data.splits.values() for words in split.documents["words"].to_pylist()) > 33_626
    partition = Provider(clients=10).split(data.splits["train"], seed=0)
    assert partition.num_groups.sum() == 17
    assert partition.num_groups.min() == 1
    assert partition.sizes.max() == 128  # the biggest provider alone
    assert partition.sizes.sum() == 955
