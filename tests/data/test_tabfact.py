"""TabFact in its original release: labels, captions, parts of the test set, and the real files."""

from pathlib import Path

import pytest
from sample_files import write_json, write_lines

from simfl.data.readers.tabfact import TabFact
from simfl.errors import DataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tabfact"
    for name in "abcdefghij":
        write_lines(root / "all_csv" / f"{name}.csv", ["team#points", f"{name}#3", "x#4"])
    examples = {f"{name}.csv": [[f"{name} has 3", f"{name} has 9"], [1, 0], f"list {name}"] for name in "abcdefghij"}
    write_json(root / "train_examples.json", {k: examples[k] for k in ("b.csv", "a.csv")})
    write_json(root / "val_examples.json", {k: examples[k] for k in list(examples)[2:8]})
    write_json(root / "test_examples.json", {k: examples[k] for k in list(examples)[8:]})
    write_json(root / "simple_test_id.json", ["i.csv"])
    write_json(root / "complex_test_id.json", ["j.csv"])
    return root


def load(root: Path, **settings):
    return TabFact(str(root), **{"image_size": 32} | settings).load(root.parent / "cache")


def test_tabfact_statements_are_questions_and_the_caption_is_on_the_page(root):
    data = load(root, answers=("false", "true"))
    rows = data.splits["train"].examples.to_pylist()
    assert [(r["id"], r["question"], r["answers"]) for r in rows][:2] == [
        ("a.csv-0", "a has 3", ["true"]), ("a.csv-1", "a has 9", ["false"]),
    ]  # fmt: skip
    assert data.splits["train"].documents["words"][0].as_py() == ["list", "a", "team", "points", "a", "3", "x", "4"]


def test_tabfact_test_statements_have_their_part(root):
    assert load(root).splits["test"].examples["field"].to_pylist() == ["simple", "simple", "complex", "complex"]


def test_tabfact_can_train_on_validation_statements(root):
    (root / "train_examples.json").unlink()
    with pytest.raises(DataError, match=r"train_examples\.json or .* is missing"):
        load(root)
    data = load(root, train="val", valid=0.34)
    assert data.card["pages"] == {"train": 4, "valid": 2, "test": 2}
    shown = {split: set(data.splits[split].documents["id"].to_pylist()) for split in ("train", "valid")}
    assert not shown["train"] & shown["valid"]


def test_tabfact_drops_large_tables(root):
    write_lines(root / "all_csv" / "a.csv", ["team#points", *["x#1"] * 5])
    assert load(root, max_rows=4).card["dropped"]["train"] == {"table too large": 2}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([["s"], [1]], r"val_examples\.json table c\.csv: expected statements, labels and a caption"),
        ([["s"], [1, 0], "t"], r"table c\.csv: 1 statements have 2 labels"),
        ([["s", "t"], [1, 2], "t"], r"table c\.csv statement 1: the label is 2, allowed: 0, 1"),
    ],
)
def test_tabfact_errors_name_table_and_statement(root, entry, message):
    write_json(root / "val_examples.json", {"c.csv": entry})
    with pytest.raises(DataError, match=message):
        load(root)


def test_tabfact_names_a_missing_table(root):
    (root / "all_csv" / "a.csv").unlink()
    with pytest.raises(DataError, match=r"table a\.csv: the table .*a\.csv is missing"):
        load(root)


def test_real_tabfact_tables_become_pages(real_data, tmp_path):
    root = real_data / "tabfact"
    if not root.is_dir():
        pytest.skip("shared/data/tabfact is not available")
    data = TabFact(str(root), train="val", max_rows=5, max_columns=6, image_size=64).load(tmp_path)
    counts, dropped = data.card["questions"], data.card["dropped"]
    total = {split: counts[split] + dropped[split].get("table too large", 0) for split in counts}
    assert total["train"] + total["valid"] == TabFact.QUESTIONS["valid"]
    assert total["test"] == TabFact.QUESTIONS["test"]
    right = [answers == ["yes"] for answers in data.splits["test"].examples["answers"].to_pylist()]
    assert 0.4 < sum(right) / len(right) < 0.6
