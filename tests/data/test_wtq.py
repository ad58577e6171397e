"""WikiTableQuestions in its original release: escapes, several values, CSV tables, and the real files."""

import io
from pathlib import Path

import pytest
from PIL import Image
from sample_files import write_lines

from simfl.data.readers.wtq import Wtq, read_questions, read_table
from simfl.errors import DataError

HEAD = "id\tutterance\tcontext\ttargetValue"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "wtq"
    row = "{}\t{}\tcsv/200-csv/{}.csv\t{}".format
    write_lines(
        root / "data" / "random-split-1-train.tsv",
        [HEAD, row("nt-0", "who?", 0, "A|B"), row("nt-1", r"what\pis\nit?", 1, r"a\pb")],
    )
    write_lines(root / "data" / "random-split-1-dev.tsv", [HEAD, row("nt-2", "how many?", 0, "2")])
    write_lines(root / "data" / "pristine-unseen-tables.tsv", [HEAD, row("nu-0", "which?", 2, "x")])
    for number, text in enumerate(['"Name","No. \\"1\\""\n"A","3"\n"B","4"\n', '"one\ntwo"\n"a, b"\n', '"c"\n"x"\n']):
        path = root / "csv" / "200-csv" / f"{number}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def load(root: Path, **settings):
    return Wtq(str(root), **{"image_size": 32} | settings).load(root.parent / "cache")


def test_wtq_reads_questions_answers_and_pages(root):
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


def test_wtq_quoted_cells_contain_line_breaks_and_commas(root):
    assert load(root).splits["train"].documents["words"][1].as_py() == ["one", "two", "a,", "b"]


def test_wtq_first_value_setting_uses_one_value(root):
    assert load(root, values="first").splits["train"].examples["answers"][0].as_py() == ["A"]


def test_wtq_drops_and_counts_large_tables(root):
    data = load(root, max_rows=1)
    assert data.card["dropped"] == {"train": {"table too large": 1}, "valid": {"table too large": 1}, "test": {}}
    assert load(root, max_columns=1).splits["train"].examples["id"].to_pylist() == ["nt-1"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data/random-split-1-dev.tsv", ["id\tx"], r"dev\.tsv row 1: the columns are 'id\\tx'"),
        ("data/random-split-1-dev.tsv", [HEAD, "nt-2\twhat?"], r"dev\.tsv row 2: 2 columns, expected 4"),
        ("data/random-split-1-dev.tsv", [HEAD, "a\tb\tcsv/9.csv\tc"], r"row 2: the table .*csv/9\.csv is missing"),
        ("csv/200-csv/0.csv", [""], r"0\.csv: the header is missing"),
    ],
)
def test_wtq_errors_name_file_and_row(root, file, content, message):
    write_lines(root / file, content)
    with pytest.raises(DataError, match=message):
        load(root)


def test_wtq_names_a_missing_list(root):
    with pytest.raises(DataError, match=r"random-split-4-train\.tsv is missing"):
        load(root, fold=4)


def test_real_wtq_has_its_published_size_and_readable_tables(real_data):
    root = real_data / "wtq"
    if not root.is_dir():
        pytest.skip("shared/data/wtq is not available")
    files = {"train": "random-split-1-train", "valid": "random-split-1-dev", "test": "pristine-unseen-tables"}
    questions = {split: list(read_questions(root / "data" / f"{name}.tsv")) for split, name in files.items()}
    assert {split: len(rows) for split, rows in questions.items()} == Wtq.QUESTIONS
    tables = {split: {line.table for line in rows} for split, rows in questions.items()}
    assert not tables["train"] & tables["valid"]
    assert not (tables["train"] | tables["valid"]) & tables["test"]
    assert len(tables["test"]) == 421
    read = {name: read_table(name, root / name) for part in tables.values() for name in part}
    assert min(len(rows) for rows in read.values()) > 1
    escapes = {cell for row in read["csv/203-csv/128.csv"] for cell in row}  # a table of escape sequences
    assert {"\\0", "\\b", '\\"', "\\'"} <= escapes


def test_real_wtq_tables_become_pages(real_data, tmp_path):
    root = real_data / "wtq"
    if not root.is_dir():
        pytest.skip("shared/data/wtq is not available")
    data = Wtq(str(root), max_rows=6, max_columns=4, image_size=64).load(tmp_path)
    pages = data.splits["test"].documents
    small = {line.table for line in read_questions(root / "data" / "pristine-unseen-tables.tsv")}
    small = {n for n in small if len(t := read_table(n, root / n)) <= 7 and len(t[0]) <= 4}
    assert set(pages["id"].to_pylist()) == small
    assert len(small) > 3
    assert all(len(boxes) == 4 * len(words) for words, boxes in zip(pages["words"], pages["boxes"], strict=True))
