"""PFL-DocVQA's official layout on a small release of two clients with three providers each."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from simfl.data.check import check_dataset
from simfl.data.partition.partitioners import Official, Provider
from simfl.data.readers.pfl_docvqa import PflDocvqa
from simfl.errors import DataError

HEADER = {"version": 1.0, "dataset_name": "made"}


def record(page: str, number: int, **other) -> dict:
    return {
        "question": f"What is Value {number}?",
        "answers": f"V{number}",
        "ocr_tokens": ["Total", "9.00"],
        "ocr_normalized_boxes": [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]],
        "image_name": page,
        "set_name": "train",
        "question_id": f"{page}-{number}",
    } | other


def save(path: Path, entries: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.empty(len(entries), object)
    array[:] = entries
    np.save(path, array, allow_pickle=True)


def write_image(path: Path, cut: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.Generator(np.random.Philox(1)).integers(0, 255, (120, 80, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    if cut:
        path.write_bytes(path.read_bytes()[:4000])


def without_id(page: str, number: int) -> dict:
    made = record(page, number)
    del made["question_id"]
    return made


# client 0: provider A has d1 (2 pages, 3 questions), B has d2, C has d3; client 1: D, E, F
CLIENT_0 = [
    HEADER,
    record("d1_0", 1),
    record("d1_0", 2, ocr_normalized_boxes=np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]])),
    record("d1_1", 3, ocr_tokens=[], ocr_normalized_boxes=[]),
    without_id("d2_0", 4),
    record("d3_0", 5, ocr_tokens=np.array(["a", "b"]), ocr_normalized_boxes=[[-0.1, 0, 1.2, 1], [0, 0, 1, 1]]),
]
CLIENT_1 = [HEADER, without_id("d4_0", 1), record("d5_0", 2), record("d6_0", 3, answers="")]
POINTS = {"client_0": {"A": [1, 2, 3], "B": [4], "C": [5]}, "client_1": {"D": [1], "E": [2], "F": [3]}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "release"
    save(root / "imdb" / "imdb_train_client_0.npy", CLIENT_0)
    save(root / "imdb" / "imdb_train_client_1.npy", CLIENT_1)
    save(root / "imdb" / "imdb_val.npy", [HEADER, record("v1_0", 1), record("v1_0", 2)])
    save(root / "imdb" / "imdb_test.npy", [HEADER, record("t1_0", 1, set_name="red_test_positive", answers=None)])
    (root / "imdb" / "data_points.json").write_text(json.dumps(POINTS))
    for page in ("d1_0", "d1_1", "d2_0", "d3_0", "d4_0", "d5_0", "d6_0", "v1_0", "t1_0"):
        write_image(root / "images" / f"{page}.jpg", cut=page == "d2_0")
    return root


def load(root: Path, image_size: int = 16):
    return PflDocvqa(str(root), image_size=image_size).load(root.parent / "cache")


def test_pfl_data_points_count_rows_from_the_header(root):
    train = load(root).splits["train"]
    pages, examples = train.documents.to_pylist(), train.examples.to_pylist()
    providers = [pages[e["document"]]["provider"] for e in examples]
    assert providers == ["A", "A", "A", "B", "C", "D", "E"]
    assert [e["question"][-2] for e in examples] == ["1", "2", "3", "4", "5", "1", "2"]
    assert [e["client"] for e in examples] == [0] * 5 + [1] * 2


def test_pfl_official_partition_has_the_clients_and_their_providers(root):
    partition = Official(clients=2).split(load(root).splits["train"], seed=0)
    assert [[name for name, _ in partition.groups(k)] for k in (0, 1)] == [["A", "B", "C"], ["D", "E"]]
    assert partition.sizes.tolist() == [5, 2]
    assert Provider(clients=5).split(load(root).splits["train"], seed=0).num_groups.tolist() == [1] * 5


def test_pfl_drops_and_counts_questions_without_an_answer(root):
    data = load(root)
    assert data.splits["train"].examples["answers"].to_pylist()[:2] == [["V1"], ["V2"]]
    assert data.card["dropped"]["train"] == {"no answer": 1}
    assert data.splits["test"].examples["answers"].to_pylist() == [[]]


def test_pfl_replaces_missing_and_duplicate_question_ids(root):
    ids = load(root).splits["train"].examples["id"].to_pylist()
    assert len(set(ids)) == 7
    assert "imdb_train_client_0-4" in ids
    assert "imdb_train_client_1-1" in ids
    save(root / "imdb" / "imdb_val.npy", [HEADER, record("v1_0", 1), record("v1_0", 1)])
    assert load(root).splits["valid"].examples["id"].to_pylist() == ["v1_0-1", "imdb_val-2"]


def test_pfl_reads_words_and_boxes_as_lists_or_arrays(root):
    pages = {p["id"]: p for p in load(root).splits["train"].documents.to_pylist()}
    np.testing.assert_allclose(pages["d1_0"]["boxes"], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], atol=1e-6)
    assert (pages["d1_1"]["words"], pages["d1_1"]["boxes"]) == ([], [])
    assert (pages["d3_0"]["words"], pages["d3_0"]["boxes"]) == (["a", "b"], [0, 0, 1, 1, 0, 0, 1, 1])


def test_pfl_reads_truncated_images(root):
    pages = {p["id"]: p for p in load(root).splits["train"].documents.to_pylist()}
    cut = Image.open(io.BytesIO(pages["d2_0"]["image"]))
    assert (cut.size, cut.mode) == ((16, 16), "RGB")
    assert (pages["d2_0"]["width"], pages["d2_0"]["height"]) == (16, 16)


def test_pfl_stores_paths_without_reading_images(root):
    for image in (root / "images").iterdir():
        image.unlink()
    train = load(root, image_size=0).splits["train"]
    assert train.documents["image_path"].to_pylist()[0] == str(root / "images" / "d1_0.jpg")
    missing = {f.message: f.count for f in check_dataset(load(root, image_size=0)).findings if f.split == "train"}
    assert missing["missing images"] == train.documents.num_rows == 6
    with pytest.raises(DataError, match=r"d1_0\.jpg: the file is missing"):
        load(root, image_size=8)


def test_pfl_card_counts_clients_as_the_paper_does(root):
    card = load(root).card
    assert card["clients"] == [
        {"providers": 3, "documents": 3, "pages": 4, "questions": 5},
        {"providers": 2, "documents": 2, "pages": 2, "questions": 2},
    ]
    assert card["splits"]["valid"] == {"providers": 0, "documents": 1, "pages": 1, "questions": 2}


def test_pfl_published_sizes_add_up():
    assert sum(size.questions for size in PflDocvqa.CLIENTS) == 221_319
    assert 221_319 + sum(size.questions for size in PflDocvqa.SPLITS.values()) == 295_401
    assert min(size.providers for size in PflDocvqa.CLIENTS) == 400


def test_pfl_test_questions_on_unseen_providers_form_a_split(root):
    save(
        root / "imdb" / "imdb_test.npy",
        [HEADER, record("t1_0", 1, set_name="red_test_positive"), record("t1_0", 2, set_name="red_test_negative")],
    )
    (root / "imdb" / "red_doc2provider.json").write_text(json.dumps({"t1": {"provider": "A"}}))
    splits = load(root).splits
    assert (len(splits["test"]), len(splits["unseen"])) == (1, 1)
    assert splits["test"].documents["provider"].to_pylist() == ["A"]


def test_pfl_full_release_has_providers_and_no_clients(root):
    imdb = root / "imdb"
    for path in imdb.glob("imdb_*"):
        path.unlink()
    save(imdb / "blue_train.npy", CLIENT_0)
    save(imdb / "blue_val.npy", [HEADER, record("v1_0", 1)])
    (imdb / "data_points.json").write_text(json.dumps(POINTS["client_0"]))
    data = load(root)
    assert sorted(data.splits) == ["train", "valid"]
    assert "client" not in data.splits["train"].examples.column_names
    assert data.card["clients"] == []
    assert Provider(clients=3).split(data.splits["train"], seed=0).sizes.tolist() == [3, 1, 1]


def test_pfl_refuses_a_provider_in_two_clients(root):
    points = {"client_0": POINTS["client_0"], "client_1": {"A": [1], "E": [2], "F": [3]}}
    (root / "imdb" / "data_points.json").write_text(json.dumps(points))
    with pytest.raises(DataError, match="provider 'A' is in client 0 and client 1"):
        load(root)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({"A": [0, 1, 2], "B": [3], "C": [4, 5]}, "provider 'A': row 0, but row 0 is the header"),
        ({"A": [1, 2, 3], "B": [4], "C": [4, 5]}, "row 4 belongs to 'B' and to 'C'"),
        ({"A": [1, 2, 3], "B": [4]}, "row 5: data_points.json assigns it to no provider"),
        ({"A": [1, 2, 3], "B": [4], "C": [5, 6]}, "lists row 6 of client 0, which is missing"),
        ({"A": [1], "B": [2, 3, 4], "C": [5]}, "page d1_0 belongs to 'B', elsewhere to 'A'"),
        ({"A": ["1"]}, "row '1'"),
    ],
)
def test_pfl_refuses_rows_that_do_not_match_the_file(root, points, message):
    (root / "imdb" / "data_points.json").write_text(json.dumps(POINTS | {"client_0": points}))
    with pytest.raises(DataError, match=message):
        load(root)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": ""}, "row 2: question is '', expected text"),
        ({"image_name": None}, "row 2: image_name is missing"),
        ({"answers": [1]}, r"row 2: answers is \[1\]"),
        ({"ocr_tokens": None}, "row 2: ocr_tokens is missing"),
        ({"ocr_tokens": [1, 2]}, r"row 2: ocr_tokens is \[1, 2\]"),
        ({"ocr_normalized_boxes": [[0, 0, 1, 1]]}, "row 2: ocr_normalized_boxes does not have 4 numbers for each"),
        (
            {"ocr_normalized_boxes": [[0, 0, 1], [0, 0, 1, 1]]},
            "row 2: ocr_normalized_boxes does not have 4 numbers for each",
        ),
        ({"ocr_normalized_boxes": [[0, 0, 1, 1], [0, 0, 1, float("nan")]]}, "row 2: ocr_normalized_boxes contains nan"),
    ],
)
def test_pfl_errors_name_file_and_row(root, change, message):
    save(root / "imdb" / "imdb_val.npy", [HEADER, record("v1_0", 1), record("v1_1", 2, **change)])
    with pytest.raises(DataError, match=r"imdb_val\.npy " + message):
        load(root)


def test_pfl_refuses_a_file_without_a_header(root):
    save(root / "imdb" / "imdb_val.npy", [record("v1_0", 1)])
    with pytest.raises(DataError, match=r"imdb_val\.npy row 0: expected a header without a question"):
        load(root)
    save(root / "imdb" / "imdb_val.npy", [HEADER, "text"])
    with pytest.raises(DataError, match=r"imdb_val\.npy row 1: str, expected a mapping"):
        load(root)


def test_pfl_counts_pages_with_different_words(root):
    save(root / "imdb" / "imdb_val.npy", [HEADER, record("v1_0", 1), record("v1_0", 2, ocr_tokens=["Tota1", "9.00"])])
    data = load(root)
    assert data.card["dropped"]["valid"] == {"other words of a known page": 1}
    assert data.splits["valid"].documents["words"].to_pylist() == [["Total", "9.00"]]


def test_pfl_names_missing_files(root):
    points = root / "imdb" / "data_points.json"
    points.rename(root / "away.json")
    with pytest.raises(DataError, match=r"data_points\.json: no such file"):
        load(root)
    (root / "away.json").rename(points)
    (root / "imdb" / "imdb_train_client_0.npy").unlink()
    with pytest.raises(DataError, match=r"imdb_train_client_0\.npy is missing, client 1 exists"):
        load(root)
    (root / "imdb" / "imdb_train_client_1.npy").unlink()
    with pytest.raises(DataError, match=r"imdb_train_client_0\.npy or blue_train\.npy is missing"):
        load(root)
    with pytest.raises(DataError, match="is not a folder"):
        load(root / "nowhere")


def test_pfl_data_points_and_files_must_have_the_same_clients(root):
    (root / "imdb" / "imdb_train_client_1.npy").unlink()
    with pytest.raises(DataError, match="there are training files of 1 clients, but the keys are client_0, client_1"):
        load(root)


class Trap:
    """An object whose pickle runs a shell command."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_pfl_refuses_a_malicious_file_without_running_it(root, tmp_path):
    save(root / "imdb" / "imdb_val.npy", [HEADER, Trap(f"touch {tmp_path / 'mark'}")])
    with pytest.raises(DataError, match=r"imdb_val\.npy: .*posix\.system is not allowed"):
        load(root)
    assert not (tmp_path / "mark").exists()


def test_pfl_cache_returns_the_same_data_set(root):
    first, again = load(root), load(root)
    assert first.sha256 == again.sha256
    assert again.splits["train"].documents.equals(first.splits["train"].documents)
    assert load(root, image_size=8).sha256 != first.sha256
