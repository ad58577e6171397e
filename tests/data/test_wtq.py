"""WikiTableQuestions in its original release: escapes, several values, tables as csv; and the real files."""

import io
from pathlib import Path

import pytest
from made import lines
from PIL import Image

from simfl.data.readers.wtq import Wtq, questions, table
from simfl.errors import DataError

HEAD = "id\tutterance\tcontext\ttargetValue"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "wtq"
    row = "{}\t{}\tcsv/200-csv/{}.csv\t{}".format
    lines(
        root / "data" / "random-split-1-train.tsv",
        [HEAD, row("nt-0", "who?", 0, "A|B"), row("nt-1", r"what\pis\nit?", 1, r"a\pb")],
    )
    lines(root / "data" / "random-split-1-dev.tsv", [HEAD, row("nt-2", "how many?", 0, "2")])
    lines(root / "data" / "pristine-unseen-tables.tsv", [HEAD, row("nu-0", "which?", 2, "x")])
    for number, text in enumerate(['"Name","No. \\"1\\""\n"A","3"\n"B","4"\n', '"one\ntwo"\n"a, b"\n', '"c"\n"x"\n']):
        path = root / "csv" / "200-csv" / f"{number}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def load(root: Path, **settings):
    return Wtq(str(root), **{"image_size": 32} | settings).load(root.parent / "cache")


def test_questions_answers_and_pages(root):
    data = load(root)
    assert data.card["questions"] == {"train": 2, "valid": 1, "test": 1}
    first, second = data.splits["train"].examples.to_pylist()
    assert (first["answers"], first["targets"], first["document"]) == (["A, B"], ["A", "B"], 0)
    assert (second["question"], second["targets"]) == ("what|is\nit?", ["a|b"])
    page = data.splits["train"].documents.to_pylist()[0]
    assert page["id"] == "csv/200-csv/0.csv"
    assert page["words"] == ["Name", "No.", '"1"', "A", "3", "B", "4"]
    assert len(page["boxes"]) == 28
    assert Image.open(io.BytesIO(page["image"])).size == (32, 32)


def test_a_quoted_cell_may_hold_lines_and_commas(root):
    assert load(root).splits["train"].documents["words"][1].as_py() == ["one", "two", "a,", "b"]


def test_the_first_value_alone_may_be_asked_for(root):
    assert load(root, values="first").splits["train"].examples["answers"][0].as_py() == ["A"]


def test_questions_on_large_tables_are_left_out_and_counted(root):
    data = load(root, max_rows=1)
    assert data.card["dropped"] == {"train": {"table too large": 1}, "valid": {"table too large": 1}, "test": {}}
    assert load(root, max_columns=1).splits["train"].examples["id"].to_pylist() == ["nt-1"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data/random-split-1-dev.tsv", ["id\tx"], r"dev\.tsv row 1: the columns are 'id\\tx'"),
        ("data/random-split-1-dev.tsv", [HEAD, "nt-2\twhat?"], r"dev\.tsv row 2: 2 columns, 4 are needed"),
        ("data/random-split-1-dev.tsv", [HEAD, "a\tb\tcsv/9.csv\tc"], r"row 2: the table .*csv/9\.csv is not there"),
        ("csv/200-csv/0.csv", [""], r"0\.csv: a header is needed"),
    ],
)
def test_what_cannot_be_read_is_named(root, file, content, message):
    lines(root / file, content)
    with pytest.raises(DataError, match=message):
        load(root)


def test_a_missing_list_is_named(root):
    with pytest.raises(DataError, match=r"random-split-4-train\.tsv is missing"):
        load(root, fold=4)


def test_the_real_release_has_its_published_questions_and_every_table_can_be_read(real_data):
    root = real_data / "wtq"
    if not root.is_dir():
        pytest.skip("shared/data/wtq is not available")
    files = {"train": "random-split-1-train", "valid": "random-split-1-dev", "test": "pristine-unseen-tables"}
    told = {split: list(questions(root / "data" / f"{name}.tsv")) for split, name in files.items()}
    assert {split: len(rows) for split, rows in told.items()} == Wtq.QUESTIONS
    tables = {split: {row[3] for row in rows} for split, rows in told.items()}
    assert not tables["train"] & tables["valid"]
    assert not (tables["train"] | tables["valid"]) & tables["test"]
    assert len(tables["test"]) == 421
    read = {name: table(name, root / name) for part in tables.values() for name in part}
    assert min(len(rows) for rows in read.values()) > 1
    escapes = {cell for row in read["csv/203-csv/128.csv"] for cell in row}  # a table of escape sequences
    assert {"\\0", "\\b", '\\"', "\\'"} <= escapes


def test_some_real_tables_become_pages(real_data, tmp_path):
    root = real_data / "wtq"
    if not root.is_dir():
        pytest.skip("shared/data/wtq is not available")
    data = Wtq(str(root), max_rows=6, max_columns=4, image_size=64).load(tmp_path)
    pages = data.splits["test"].documents
    small = {row[3] for row in questions(root / "data" / "pristine-unseen-tables.tsv")}
    small = {n for n in small if len(t := table(n, root / n)) <= 7 and len(t[0]) <= 4}
    assert set(pages["id"].to_pylist()) == small
    assert len(small) > 3
    assert all(len(boxes) == 4 * len(words) for words, boxes in zip(pages["words"], pages["boxes"], strict=True))
