"""DUE in its official layout: several OCR tools, several pages, both layers, blank OCR, withheld answers."""

from pathlib import Path

import numpy as np
import pytest
from sample_files import write_image, write_json, write_lines, write_pdf

from simfl.data.readers.due import Due
from simfl.errors import DataError

BLANK = {"tool_name": "tesseract", "tokens_layer": {"tokens": [" "], "positions": [[0, 0, 0, 0]]}}


def read(tokens, positions, pages=((0, 0, 200, 400),), parts=None, tool="tesseract", layer="tokens_layer"):
    parts = parts or [[0, len(tokens)]]
    structures = {"pages": {"structure_value": parts, "positions": [list(p) for p in pages]}}
    return {
        "tool_name": tool,
        "text": " ".join(tokens),
        layer: {"tokens": tokens, "positions": positions, "structures": structures},
    }


def asked(id, key, *values):
    return {"id": id, "key": key, "values": list(values)}


def write(root: Path, folder: str, documents: list[tuple[str, list, list]], **more) -> None:
    write_lines(root / folder / "document.jsonl", [{"name": n, "annotations": a, **more} for n, a, _ in documents])
    write_lines(root / folder / "documents_content.jsonl", [{"name": n, "contents": c} for n, _, c in documents])
    for name, _, _ in documents:
        write_image(root / "png" / name / "0.png")


TWO_TOOLS = [
    read(["Total", "9"], [[20, 40, 100, 60], [120, 40, 140, 60]]),
    read(["T0tal"], [[20, 40, 100, 60]], tool="microsoft_cv", layer="common_format"),
]
TWO_PAGES = [
    read(
        ["one", "two"],
        [[20, 40, 40, 80], [100, 600, 300, 620]],
        [(0, 0, 200, 400), (0, 400, 400, 800)],
        [[0, 1], [1, 2]],
    )
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "docvqa"
    first = [asked("1", "what total?", {"value": "9", "value_variants": ["9", "9.00"]}, {"value": "second"})]
    write(
        root,
        "train",
        [("a", [*first, asked("2", "nothing?")], TWO_TOOLS), ("b", [asked("3", "two?", {"value": "two"})], TWO_PAGES)],
    )
    write(root, "dev", [("c", [asked("4", "blank?", {"value": "x"})], [BLANK])])
    write(root, "test", [("d", [asked("5", "hidden?", {"value": "0"})], TWO_TOOLS)])
    return root


def load(root: Path, **settings):
    return Due(str(root), **{"image_size": 16} | settings).load(root.parent / "cache")


def boxes(split, row: int) -> np.ndarray:
    return np.array(split.documents["boxes"][row].as_py()).reshape(-1, 4)


def test_due_reads_questions_and_drops_those_without_answers(root):
    data = load(root)
    rows = data.splits["train"].examples.to_pylist()
    assert [(r["id"], r["document"], r["answers"]) for r in rows] == [("1", 0, ["9", "9.00"]), ("3", 1, ["two"])]
    assert data.card["dropped"]["train"] == {"no answer": 1}
    assert data.card["pages"] == {"train": 2, "valid": 1, "test": 1}


def test_due_removes_placeholder_answers_of_the_test_split(root):
    data = load(root)
    assert data.splits["test"].examples["answers"].to_pylist() == [[]]
    assert data.card["noted"]["test"] == {"answers withheld: all are 0": 1}


def test_due_joins_several_values(root):
    assert load(root, values="joined").splits["train"].examples["answers"][0].as_py() == ["9, second"]


def test_due_uses_the_first_or_the_chosen_ocr_tool(root):
    assert load(root).splits["test"].documents["words"].to_pylist() == [["Total", "9"]]
    with pytest.raises(DataError, match=r"dev/documents_content.jsonl row 1|no words of tool 'microsoft_cv'"):
        load(root, tool="microsoft_cv")
    for part in ("dev", "train"):
        for file in (root / part).iterdir():
            file.unlink()
    assert load(root, tool="microsoft_cv").splits["test"].documents["words"].to_pylist() == [["T0tal"]]


def test_due_boxes_are_relative_to_their_page(root):
    np.testing.assert_allclose(boxes(load(root).splits["train"], 0), [[0.1, 0.1, 0.5, 0.15], [0.6, 0.1, 0.7, 0.15]])
    split = load(root, pages="all").splits["train"]
    # page 1 lies from (0, 400) to (400, 800): 100/400, (600-400)/400, 300/400, 220/400
    np.testing.assert_allclose(boxes(split, 1), [[0.1, 0.1, 0.2, 0.2], [0.25, 0.5, 0.75, 0.55]])


def test_due_uses_words_of_the_first_page_or_of_all(root):
    assert load(root).splits["train"].documents["words"][1].as_py() == ["one"]
    assert load(root, pages="all").splits["train"].documents["words"][1].as_py() == ["one", "two"]


def test_due_ignores_blank_ocr_tokens(root):
    assert load(root).splits["valid"].documents["words"].to_pylist() == [[]]


def test_due_rendered_boxes_are_relative_to_page_0_at_300_dpi(root):
    pytest.importorskip("pypdfium2")
    for name in "abcd":
        write_pdf(root / "pdfs" / f"{name}.pdf", [[(9, 9, name)]])  # 200 x 400 points: 834 x 1667 pixels
    wide = load(root, boxes="rendered", pages="all").splits["train"]
    np.testing.assert_allclose(boxes(wide, 0)[0], [20 / 834, 40 / 1667, 100 / 834, 60 / 1667], rtol=1e-6)
    assert boxes(wide, 1).max() <= 1


def test_due_renders_the_pdf_if_there_is_no_png(root):
    pytest.importorskip("pypdfium2")
    (root / "png" / "c" / "0.png").unlink()
    with pytest.raises(DataError, match=r"row 1: the image .*c\.pdf is missing"):
        load(root)
    write_pdf(root / "pdfs" / "c.pdf", [[(20, 200, "drawn")]])
    assert len(load(root).splits["valid"].documents["image"][0].as_py()) > 100


def test_due_drops_missing_pages_and_stores_paths(root):
    (root / "png" / "a" / "0.png").unlink()
    data = load(root, missing="drop", image_size=0)
    assert data.card["dropped"]["train"] == {"image missing": 2}
    assert data.splits["train"].documents.column("image_path").to_pylist() == [str(root / "png" / "b" / "0.png")]
    assert data.splits["train"].documents["width"].to_pylist() == [40]


def test_due_accepts_val_for_dev_and_hashes_the_content(root, tmp_path):
    before = load(root).sha256
    (root / "dev").rename(root / "val")
    moved = root.rename(tmp_path / "elsewhere")
    assert load(moved).sha256 == before


def test_due_reads_one_pair_of_files_with_the_split_in_each_line(tmp_path):
    root = tmp_path / "set"
    entries = [
        {"name": n, "split": s, "annotations": [asked(n, "?", {"value": n})]} for n, s in (("a", "train"), ("b", "dev"))
    ]
    write_lines(root / "document.jsonl", entries)
    write_lines(root / "documents_content.jsonl", [{"name": n, "contents": [BLANK]} for n in "ab"])
    for name in "ab":
        write_image(root / "png" / name / "0.png")
    data = load(root)
    assert {n: s.examples["id"].to_pylist() for n, s in data.splits.items()} == {"train": ["a"], "valid": ["b"]}
    write_lines(root / "document.jsonl", [entries[0], {k: v for k, v in entries[1].items() if k != "split"}])
    with pytest.raises(DataError, match="row 2: split is None, allowed: train, valid, dev, val, test"):
        load(root)


def test_due_reads_client_features_of_older_releases(tmp_path):
    root = tmp_path / "set"
    feature = {"name": "what?", "value": "x", "value_variants": ["x", "y"], "metadata": {"question_id": "77"}}
    write_json(root / "documents.json", [{"name": "a", "split": "train", "client_features": [feature]}])
    write_lines(root / "documents_content.jsonl", [{"name": "a", "contents": [BLANK]}])
    write_image(root / "png" / "a" / "0.png")
    (row,) = load(root).splits["train"].examples.to_pylist()
    assert (row["id"], row["question"], row["answers"]) == ("77", "what?", ["x", "y"])


def test_due_fields_are_kinds_and_nested_values_become_columns(tmp_path):
    root = tmp_path / "set"
    rows = [
        {"children": [{"key": "score", "values": [{"value": "9"}]}]},
        {"children": [{"key": "score", "values": [{"value": "8"}]}]},
    ]
    write(root, "train", [("a", [asked("1", "results", *rows)], [BLANK])])
    (row,) = load(root, fields=True, values="joined").splits["train"].examples.to_pylist()
    assert (row["id"], row["field"], row["answers"]) == ("1-score", "results: score", ["9, 8"])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["{"], r"documents_content.jsonl row 1: not JSON"),
        ([{"name": "z"}], r"document.jsonl row 1: 'c' does not match 'z'"),
        ([], r"documents_content.jsonl: fewer documents than in the other file"),
        ([{"name": "c", "contents": []}], "row 1: contents is empty"),
        ([{"name": "c", "contents": [{"tool_name": "t"}]}], "tokens_layer is missing, expected a mapping"),
        ([{"name": "c", "contents": [read(["a"], [[1, 2, 3]])]}], "positions does not have 4 numbers"),
        ([{"name": "c", "contents": [read(["a", "b"], [[1, 2, 3, 4]])]}], "2 tokens have 1 positions"),
        ([{"name": "c", "contents": [read(["a"], [[1, 2, 3, 4]], pages=())]}], "has 0 pages, but words are on 1"),
    ],
)
def test_due_content_errors_name_file_and_row(root, entries, message):
    write_lines(root / "dev" / "documents_content.jsonl", entries)
    with pytest.raises(DataError, match=message):
        load(root)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({}, "annotations is dict, expected a list"),
        ([{"key": 3}], "row 1 annotation 0: key is 3, expected text"),
        ([asked("1", "k", {"value": 9})], r"row 1 annotation 0: value is \[9\], expected text"),
    ],
)
def test_due_annotation_errors_name_file_and_row(root, annotations, message):
    write_lines(root / "dev" / "document.jsonl", [{"name": "c", "annotations": annotations}])
    with pytest.raises(DataError, match=message):
        load(root)


def test_due_refuses_another_layout(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"neither train/document.jsonl nor document.jsonl"):
        load(tmp_path / "empty")
