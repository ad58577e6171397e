"""Word lists in four line formats."""

import pytest
from sample_files import write_image, write_lines

from simfl.data.readers.word_lists import WordLists, parse_line
from simfl.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("form", "line", "expected"),
    [
        ("tab", "a/b c.png\tTwo words", ("a/b c.png", "Two words")),
        ("space", "a.png Two words", ("a.png", "Two words")),
        ("comma", 'word_1.png, "He said \\"no\\", twice"', ("word_1.png", 'He said "no", twice')),
        ("comma", "word_1.png, bare", ("word_1.png", "bare")),
        ("name", "./3000/7/182_slinking_71711.jpg 71711", ("./3000/7/182_slinking_71711.jpg", "slinking")),
    ],
)
def test_word_list_lines_are_parsed_in_every_format(form, line, expected):
    assert parse_line("x", line, form) == expected


@pytest.mark.parametrize(
    ("form", "line"), [("tab", "a.png b"), ("space", "a.png"), ("comma", "a"), ("name", "a_b.jpg 1")]
)
def test_word_list_lines_of_another_format_are_refused(form, line):
    with pytest.raises(DataError, match=f"gt.txt row 3: .* does not have the format {form}"):
        parse_line("gt.txt row 3", line, form)


def test_word_lists_are_sources_and_missing_images_are_counted(tmp_path):
    root = tmp_path / "data"
    write_lines(root / "one" / "gt.txt", ["a.png\tHello", "absent.png\tx", "broken.png\ty", "", "b.png\tsecond"])
    write_lines(root / "two.txt", ["one/b.png\tagain"])
    write_image(root / "one" / "a.png", (20, 10))
    write_image(root / "one" / "b.png")
    (root / "one" / "broken.png").write_bytes(b"x")
    data = WordLists(str(root), train=("one/gt.txt",), test=("two.txt",)).load(tmp_path / "cache")
    rows = data.splits["train"].examples.to_pylist()
    assert [(r["id"], r["text"], r["source"]) for r in rows] == [
        ("one/gt/a.png", "Hello", "one/gt"), ("one/gt/b.png", "second", "one/gt"),
    ]  # fmt: skip
    assert data.card["dropped"]["train"] == {"no image": 1, "image unreadable": 1}
    assert data.splits["test"].examples["text"].to_pylist() == ["again"]
    few = WordLists(str(root), train=("two.txt",), images="one", limit=1).load(tmp_path / "cache")
    assert few.card["dropped"]["train"] == {"no image": 1}


def test_word_lists_must_be_given_and_exist(tmp_path):
    with pytest.raises(ConfigError, match="give the names of list files"):
        WordLists(str(tmp_path)).load(tmp_path)
    with pytest.raises(DataError, match=r"the list .*gt\.txt is missing"):
        WordLists(str(tmp_path), train=("gt.txt",)).load(tmp_path)
