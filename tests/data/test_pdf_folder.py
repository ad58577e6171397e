"""Folders of PDFs: unlabelled pages, and headings from the outline."""

import pytest
from sample_files import write_pdf

from simfl.data.readers.pdf_folder import QUESTION, PdfFolder
from simfl.errors import ConfigError, DataError

pytest.importorskip("pypdfium2")
PAGES = [[(20, 350, "1. Setting up")], [], [(20, 350, "Using it"), (20, 300, "More")]]
OUTLINE = [("1. Setting up", 0), ("Gone", 1), ("Using it", 2), ("More", 2), ("Absent", 2)]


@pytest.fixture
def root(tmp_path):
    for provider in ("acme", "busy"):
        for number in range(5):
            write_pdf(tmp_path / "data" / provider / f"{number}.PDF", PAGES, outline=OUTLINE)
    (tmp_path / "data" / "broken.pdf").write_bytes(b"x")
    return tmp_path / "data"


def load(root, **settings):
    return PdfFolder(str(root), **{"image_size": 8, "valid": 0.3, "test": 0.3} | settings).load(root.parent / "cache")


def test_pdf_folder_reads_unlabelled_pages(root):
    data = load(root)
    rows = data.splits["train"].examples.to_pylist()
    assert {(r["question"], tuple(r["answers"]), r["field"]) for r in rows} == {("", (), "page")}
    assert sum(len(s) for s in data.splits.values()) == 10 * 2
    assert sum(d.get("page without text", 0) for d in data.card["dropped"].values()) == 10
    assert sum(d.get("unreadable file", 0) for d in data.card["dropped"].values()) == 1
    assert set(data.splits["train"].documents["provider"].to_pylist()) <= {"acme", "busy"}


def test_pdf_folder_asks_for_headings_that_are_printed(root):
    data = load(root, questions="headings", valid=0.0, test=0.0)
    rows = data.splits["train"].examples.to_pylist()[:2]
    assert [(r["question"], r["answers"]) for r in rows] == [
        (QUESTION, ["1. Setting up"]),
        (QUESTION, ["Using it", "More"]),
    ]
    assert data.card["dropped"]["train"] == {"page without text": 10, "unreadable file": 1}


def test_pdf_folder_keeps_files_in_one_split(root):
    data = load(root, unseen=("busy",))
    files = {s: {i.rpartition("-")[0] for i in split.examples["id"].to_pylist()} for s, split in data.splits.items()}
    assert files["unseen"] == {f"busy/{n}.PDF" for n in range(5)}
    assert sum(map(len, files.values())) == len(set().union(*files.values())) == 10
    assert load(root, pages=1).card["pages"] != data.card["pages"]


def test_pdf_folder_refuses_invalid_settings(root):
    with pytest.raises(ConfigError, match="no folder 'bussy'"):
        load(root, unseen=("bussy",))
    with pytest.raises(ConfigError, match="their sum must be below 1"):
        load(root, valid=0.5, test=0.5)
    (root / "none").mkdir()
    with pytest.raises(DataError, match="has no PDF"):
        load(root / "none")
