"""SP- and MP-DocVQA as imdb files: answers as a list, one text or none; headers; pages as lists."""

import pickle

import numpy as np
import pytest
from sample_files import write_image, write_npy

from simfl.data.readers.docvqa_imdb import MpDocvqa, SpDocvqa
from simfl.errors import DataError

HEADER = {"dataset_name": "docvqa", "version": 1}


def single(id, answers, name="page_1", **more):
    record = {"question_id": id, "question": f"what {id}?", "image_name": name, "answers": answers}
    record |= {"ocr_tokens": ["a", "b"], "ocr_normalized_boxes": np.array([[0, 0, 0.5, 0.5], [0.5, 0.5, 1.1, 1]])}
    return {k: v for k, v in (record | more).items() if v is not None}


def many(id, answer_page, pages=("p0", "p1"), **more):
    record = {
        "question_id": id,
        "question": "?",
        "image_name": list(pages),
        "answers": ["x"],
        "answer_page_idx": answer_page,
    }
    record |= {
        "ocr_tokens": [["a"], ["b", "c"]],
        "ocr_normalized_boxes": [[[0, 0, 1, 1]], [[0, 0, 1, 1], [0, 0, 0.5, 1]]],
    }
    return {k: v for k, v in (record | more).items() if v is not None}


def load(kind, tmp_path, splits, images=("page_1.png",), **settings):
    root = tmp_path / "data"
    for split, entries in splits.items():
        write_npy(root / "imdb" / f"{'new_' if kind is SpDocvqa else ''}imdb_{split}.npy", entries)
    for name in images:
        write_image(root / "images" / name)
    return kind(str(root), **{"image_size": 8} | settings).load(tmp_path / "cache")


def test_sp_docvqa_answers_are_a_list_one_text_or_withheld(tmp_path):
    train = [HEADER, single(1, ["x", "y"]), single(2, "z"), single(3, [])]
    data = load(SpDocvqa, tmp_path, {"train": train, "test": [HEADER, single(4, None)]})
    assert data.splits["train"].examples["answers"].to_pylist() == [["x", "y"], ["z"]]
    assert data.splits["test"].examples["answers"].to_pylist() == [[]]
    assert data.card["dropped"]["train"] == {"no answer": 1}
    assert data.card["pages"] == {"train": 1, "test": 1}


def write_lmdb(folder, values):
    """Write an LMDB folder with these values under the keys 0, 1, 2, …"""
    lmdb = pytest.importorskip("lmdb")
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=2**20) as environment, environment.begin(write=True) as transaction:
        for row, value in enumerate(values):
            transaction.put(b"%d" % row, value)


def test_sp_docvqa_lmdb_folder_reads_the_same_records(tmp_path):
    """Eleven questions after a header: row 10 follows row 9, not row 1."""
    records = [HEADER, *(single(k, [f"a{k}"]) for k in range(11))]
    array = load(SpDocvqa, tmp_path, {"train": records})
    write_lmdb(tmp_path / "other" / "imdb" / "new_imdb_train.lmdb", map(pickle.dumps, records))
    write_image(tmp_path / "other" / "images" / "page_1.png")
    found = SpDocvqa(str(tmp_path / "other"), image_size=8).load(tmp_path / "cache")
    assert found.splits["train"].examples.equals(array.splits["train"].examples)
    assert found.sha256 == array.sha256


def test_mp_docvqa_lmdb_refuses_code_and_names_its_row(tmp_path):
    write_lmdb(tmp_path / "imdb" / "imdb_train.lmdb", [pickle.dumps(HEADER), pickle.dumps(print)])
    with pytest.raises(DataError, match=r"^[^\n]*imdb_train\.lmdb row 1: not a plain record [^\n]*print[^\n]*$"):
        MpDocvqa(str(tmp_path)).load(tmp_path / "cache")


def test_sp_docvqa_clips_boxes_and_stores_each_page_once(tmp_path):
    page = load(SpDocvqa, tmp_path, {"train": [HEADER, single(1, "x"), single(2, "x")]}).splits["train"].documents
    assert page.num_rows == 1
    np.testing.assert_allclose(page["boxes"][0].as_py(), [0, 0, 0.5, 0.5, 0.5, 0.5, 1, 1])


def test_sp_docvqa_without_header_keeps_all_questions_and_ids_default_to_rows(tmp_path):
    data = load(SpDocvqa, tmp_path, {"train": [single(None, "x"), single(None, "y")]})
    assert data.splits["train"].examples["id"].to_pylist() == ["new_imdb_train.npy row 0", "new_imdb_train.npy row 1"]


def test_mp_docvqa_uses_the_page_with_the_answer(tmp_path):
    data = load(MpDocvqa, tmp_path, {"train": [HEADER, many(1, 1), many(2, 0)]}, ["p0.jpg", "p1.jpg"])
    assert data.splits["train"].documents["words"].to_pylist() == [["b", "c"], ["a"]]
    assert data.splits["train"].examples["answer_page"].to_pylist() == [1, 0]


def test_mp_docvqa_first_and_all_pages_do_not_need_the_answer_page(tmp_path):
    splits = {"train": [HEADER, many(1, 1)], "test": [HEADER, many(2, None, answers=None)]}
    first = load(MpDocvqa, tmp_path, splits, ["p0.jpg", "p1.jpg"], pages="first")
    assert first.splits["test"].documents["words"].to_pylist() == [["a"]]
    both = load(MpDocvqa, tmp_path, splits, pages="all")
    assert both.splits["test"].documents["words"].to_pylist() == [["a", "b", "c"]]
    oracle = load(MpDocvqa, tmp_path, splits)
    assert "test" not in oracle.splits
    assert oracle.card["dropped"]["test"] == {"page of the answer withheld": 1}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (single(1, "x", question=""), r"new_imdb_train.npy row 1: question is '', expected text"),
        (single(1, 5), "row 1: answers is 5, expected a list of texts"),
        (single(1, "x", ocr_tokens="ab"), "row 1: ocr_tokens is 'ab', expected a list of texts"),
        (single(1, "x", ocr_tokens=["a"]), "row 1: ocr_normalized_boxes does not have 4 numbers for each of 1 words"),
        (single(1, "x", ocr_normalized_boxes=[[0, 0, 1, float("nan")]] * 2), "ocr_normalized_boxes contains nan"),
        ("text", "row 1: str, expected a mapping"),
        (single(1, "x", "absent"), r"row 1: the image .*absent\.png is missing"),
    ],
)
def test_sp_docvqa_errors_name_file_row_and_field(tmp_path, record, message):
    with pytest.raises(DataError, match=message):
        load(SpDocvqa, tmp_path, {"train": [HEADER, record]})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (many(1, 2), "row 1: answer_page_idx is 2, the question has 2 pages"),
        (many(1, 0, ocr_tokens=[["a"]]), "row 1: ocr_tokens does not have one entry for each of 2 pages"),
        (many(1, 0, image_name="p0"), "row 1: image_name is 'p0', expected a list of texts"),
    ],
)
def test_mp_docvqa_refuses_inconsistent_pages(tmp_path, record, message):
    with pytest.raises(DataError, match=message):
        load(MpDocvqa, tmp_path, {"train": [HEADER, record]}, ["p0.jpg", "p1.jpg"])


class Evil:
    def __reduce__(self):
        return (eval, ("print('run')",))  # not print itself, in whose place Ray puts its own


def test_sp_docvqa_refuses_code_without_running_it(tmp_path, capsys):
    with pytest.raises(DataError, match=r"new_imdb_train\.npy: .*builtins\.eval is not allowed"):
        load(SpDocvqa, tmp_path, {"train": [HEADER, {"question": Evil()}]})
    assert capsys.readouterr().out == ""


def test_sp_docvqa_error_names_the_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"new_imdb_train\.npy is missing"):
        SpDocvqa(str(tmp_path)).load(tmp_path / "cache")
