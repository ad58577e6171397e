"""TabFact in its original release: labels, captions, parts of the test, and the real files."""

from pathlib import Path

import pytest
from made import dump, lines

from simfl.data.readers.tabfact import TabFact
from simfl.errors import DataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tabfact"
    for name in "abcdefghij":
        lines(root / "all_csv" / f"{name}.csv", ["team#points", f"{name}#3", "x#4"])
    told = {f"{name}.csv": [[f"{name} has 3", f"{name} has 9"], [1, 0], f"list {name}"] for name in "abcdefghij"}
    dump(root / "train_examples.json", {k: told[k] for k in ("b.csv", "a.csv")})
    dump(root / "val_examples.json", {k: told[k] for k in list(told)[2:8]})
    dump(root / "test_examples.json", {k: told[k] for k in list(told)[8:]})
    dump(root / "simple_test_id.json", ["i.csv"])
    dump(root / "complex_test_id.json", ["j.csv"])
    return root


def load(root: Path, **settings):
    return TabFact(str(root), **{"image_size": 32} | settings).load(root.parent / "cache")


def test_statements_are_questions_with_two_answers_and_the_caption_is_on_the_page(root):
    data = load(root, answers=("false", "true"))
    rows = data.splits["train"].examples.to_pylist()
    assert [(r["id"], r["question"], r["answers"]) for r in rows][:2] == [
        ("a.csv-0", "a has 3", ["true"]), ("a.csv-1", "a has 9", ["false"]),
    ]  # fmt: skip
    assert data.splits["train"].documents["words"][0].as_py() == ["list", "a", "team", "points", "a", "3", "x", "4"]


def test_statements_of_the_test_tell_their_part(root):
    assert load(root).splits["test"].examples["field"].to_pylist() == ["simple", "simple", "complex", "complex"]


def test_validation_statements_may_stand_in_for_missing_training_ones(root):
    (root / "train_examples.json").unlink()
    with pytest.raises(DataError, match=r"train_examples\.json or .* is missing"):
        load(root)
    data = load(root, train="val", valid=0.34)
    assert data.card["pages"] == {"train": 4, "valid": 2, "test": 2}
    shown = {split: set(data.splits[split].documents["id"].to_pylist()) for split in ("train", "valid")}
    assert not shown["train"] & shown["valid"]


def test_large_tables_are_left_out_with_their_statements(root):
    lines(root / "all_csv" / "a.csv", ["team#points", *["x#1"] * 5])
    assert load(root, max_rows=4).card["dropped"]["train"] == {"table too large": 2}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([["s"], [1]], r"val_examples\.json table c\.csv: statements, labels and a caption are needed"),
        ([["s"], [1, 0], "t"], r"table c\.csv: 1 statements have 2 labels"),
        ([["s", "t"], [1, 2], "t"], r"table c\.csv statement 1: the label is 2, allowed: 0, 1"),
    ],
)
def test_what_cannot_be_read_is_named(root, entry, message):
    dump(root / "val_examples.json", {"c.csv": entry})
    with pytest.raises(DataError, match=message):
        load(root)


def test_a_missing_table_is_named(root):
    (root / "all_csv" / "a.csv").unlink()
    with pytest.raises(DataError, match=r"table a\.csv: the table .*a\.csv is not there"):
        load(root)


def test_some_real_tables_become_pages(real_data, tmp_path):
    root = real_data / "tabfact"
    if not root.is_dir():
        pytest.skip("shared/data/tabfact is not available")
    data = TabFact(str(root), train="val", max_rows=5, max_columns=6, image_size=64).load(tmp_path)
    kept, dropped = data.card["questions"], data.card["dropped"]
    total = {split: kept[split] + dropped[split].get("table too large", 0) for split in kept}
    assert total["train"] + total["valid"] == TabFact.QUESTIONS["valid"]
    assert total["test"] == TabFact.QUESTIONS["test"]
    right = [answers == ["yes"] for answers in data.splits["test"].examples["answers"].to_pylist()]
    assert 0.4 < sum(right) / len(right) < 0.6
